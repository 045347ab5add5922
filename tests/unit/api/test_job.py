"""The typed ElasticJob: the operator reads the fields it knows, whatever a newer CRD adds."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import CleanPods, ElasticJob, InvalidJobError, RendezvousBackend


def body(**workers: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "train"}, {"name": "logs", "image": "logs"}]}}
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": "8c", "generation": 3},
        "spec": {"workers": {"template": template, **workers}},
    }


def test_a_minimal_job_has_the_documented_defaults() -> None:
    job = ElasticJob.parse(body())
    assert (job.name, job.namespace, job.uid, job.generation, job.is_deleting) == ("digits", "team", "8c", 3, False)
    assert (job.replicas, job.spec.workers.procs_per_worker, job.spec.checkpoint) == (1, "auto", None)
    assert job.spec.rendezvous.backend is RendezvousBackend.ETCD_V3
    assert job.spec.rendezvous.endpoint == ""
    assert job.spec.failure_policy.max_restarts == 10
    assert job.spec.lifecycle.clean_pods is CleanPods.RUNNING
    deleted = body()
    deleted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert ElasticJob.parse(deleted).is_deleting


def sized(
    replicas: int | None = None, least: int | None = None, most: int | None = None, **more: Any
) -> dict[str, Any]:
    """The body of a job with these sizes. None: a field that is not there."""
    sizes = {"replicas": replicas, "minReplicas": least, "maxReplicas": most}
    return body(**{name: size for name, size in sizes.items() if size is not None}, **more)


@pytest.mark.parametrize(
    ("given", "replicas", "least", "most"),
    [
        pytest.param(sized(), 1, 1, 1, id="the default"),
        pytest.param(sized(4), 4, 4, 4, id="fixed size"),
        pytest.param(sized(4, 2), 4, 2, 4, id="may shrink"),
        pytest.param(sized(4, most=8), 4, 4, 8, id="may grow"),
        pytest.param(sized(5, 1, 9), 5, 1, 9, id="both"),
        pytest.param(sized(None, 3), 3, 3, 3, id="no replicas: the smallest size"),
        pytest.param(sized(1, 3), 3, 3, 3, id="as many as the minimum"),
        pytest.param(sized(4, 3), 4, 3, 4, id="more than the minimum"),
        pytest.param(sized(4, 2, 8, allowedReplicas=[2, 4, 8]), 4, 2, 8, id="allowed"),
        pytest.param(sized(7, 2, 8, allowedReplicas=[8, 4, 2]), 4, 2, 8, id="rounded down to an allowed size"),
        pytest.param(sized(7, 2, 8, allowedReplicas=[4, 8]), 4, 4, 8, id="the least allowed"),
        pytest.param(sized(7, 2, 8, replicaSize=2), 6, 2, 8, id="rounded down to whole replicas"),
        pytest.param(sized(1, 4, replicaSize=2), 4, 4, 4, id="as many whole replicas as the minimum"),
    ],
)
def test_sizes_are_bounded_and_rounded_down_to_allowed_ones(
    given: dict[str, Any], replicas: int, least: int, most: int
) -> None:
    job = ElasticJob.parse(given)
    assert (job.replicas, job.min_replicas, job.max_replicas) == (replicas, least, most)
    assert job.allowed_sizes == sorted(given["spec"]["workers"].get("allowedReplicas", []))


def test_the_training_container_is_the_named_one_or_the_first() -> None:
    assert ElasticJob.parse(body()).training_container == "trainer"
    assert ElasticJob.parse(body(container="logs")).training_container == "logs"


def test_the_template_is_kept_as_written() -> None:
    written = body()["spec"]["workers"]["template"]
    written["spec"]["aFieldOfTheFuture"] = {"deep": [1, None]}
    assert ElasticJob.parse(body(template=written)).spec.workers.template == written


def test_fields_of_a_newer_version_are_ignored_everywhere() -> None:
    newer = body(future=1)
    newer["future"] = newer["spec"]["future"] = newer["metadata"]["future"] = {}
    newer["status"] = {"future": 1, "restarts": {"total": 2, "byCause": {}}, "conditions": []}
    assert ElasticJob.parse(newer).status.restarts.total == 2


def test_an_invalid_body_is_rejected_with_every_field_and_value() -> None:
    wrong = body(replicas=0, procsPerWorker="many")
    wrong["spec"]["lifecycle"] = {"cleanPods": "Some"}
    with pytest.raises(InvalidJobError) as caught:
        ElasticJob.parse(wrong)
    for part in ("workers.replicas", "got 0", "workers.procsPerWorker", "'many'", "lifecycle.cleanPods", "'Some'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("rendezvous", "wrong"),
    [
        pytest.param({"endpoint": "etcd:2379"}, "endpoint", id="an endpoint from before there were types"),
        pytest.param({"etcd": {}}, "etcd", id="settings of an etcd from before there were types"),
        pytest.param({"type": "External", "endpoint": "etcd:2379", "etcd": {}}, "etcd", id="settings of the other's"),
        pytest.param({"type": "External"}, "endpoint", id="no endpoint"),
    ],
)
def test_a_rendezvous_that_contradicts_its_type_is_never_read(rendezvous: dict[str, Any], wrong: str) -> None:
    contradictory = body()
    contradictory["spec"]["rendezvous"] = rendezvous
    with pytest.raises(InvalidJobError, match=rf"^spec\.rendezvous\.{wrong} is "):
        ElasticJob.parse(contradictory)
