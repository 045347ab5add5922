"""The typed ElasticJob: the operator reads the fields it knows, whatever a newer CRD adds."""

from __future__ import annotations

from typing import Any

import pydantic
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


@pytest.mark.parametrize(
    ("workers", "smallest", "largest"),
    [
        pytest.param({"replicas": 4}, 4, 4, id="fixed size"),
        pytest.param({"replicas": 4, "minReplicas": 2}, 2, 4, id="may shrink"),
        pytest.param({"replicas": 4, "maxReplicas": 8}, 4, 8, id="may grow"),
        pytest.param({"replicas": 4, "minReplicas": 1, "maxReplicas": 9}, 1, 9, id="both"),
    ],
)
def test_bounds_default_to_the_replicas(workers: dict[str, int], smallest: int, largest: int) -> None:
    job = ElasticJob.parse(body(**workers))
    assert (job.min_replicas, job.max_replicas) == (smallest, largest)


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [({}, 1), ({"minReplicas": 3}, 3), ({"minReplicas": 3, "replicas": 1}, 3), ({"minReplicas": 3, "replicas": 4}, 4)],
)
def test_a_job_without_replicas_has_the_smallest_size(workers: dict[str, int], replicas: int) -> None:
    job = ElasticJob.parse(body(**workers))
    assert (job.replicas, job.max_replicas) == (replicas, replicas)


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
    message = str(caught.value)
    for part in (
        "spec.workers.replicas",
        "got 0",
        "spec.workers.procsPerWorker",
        "'many'",
        "spec.lifecycle.cleanPods",
        "'Some'",
    ):
        assert part in message


def test_a_job_with_a_deletion_timestamp_is_deleting() -> None:
    deleting = body()
    deleting["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert ElasticJob.parse(deleting).is_deleting


def test_a_parsed_job_is_immutable() -> None:
    job = ElasticJob.parse(body())
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        job.spec.workers.replicas = 5  # type: ignore[misc]  # the test checks that this fails


@pytest.mark.parametrize(
    ("workers", "replicas", "least", "allowed"),
    [
        pytest.param({"replicas": 5, "minReplicas": 1, "maxReplicas": 9}, 5, 1, [], id="every size"),
        pytest.param(
            {"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "allowedReplicas": [2, 4, 8]},
            4,
            2,
            [2, 4, 8],
            id="allowed",
        ),
        pytest.param(
            {"replicas": 7, "minReplicas": 2, "maxReplicas": 8, "allowedReplicas": [8, 4, 2]},
            4,
            2,
            [2, 4, 8],
            id="rounded down",
        ),
        pytest.param(
            {"replicas": 7, "minReplicas": 2, "maxReplicas": 8, "allowedReplicas": [4, 8]},
            4,
            4,
            [4, 8],
            id="the least allowed",
        ),
        pytest.param(
            {"replicas": 7, "minReplicas": 2, "maxReplicas": 8, "replicaSize": 2}, 6, 2, [], id="whole replicas"
        ),
        pytest.param({"replicas": 1, "minReplicas": 4, "replicaSize": 2}, 4, 4, [], id="as many as the minimum"),
    ],
)
def test_replicas_are_rounded_down_to_an_allowed_size(
    workers: dict[str, Any], replicas: int, least: int, allowed: list[int]
) -> None:
    job = ElasticJob.parse(body(**workers))
    assert (job.replicas, job.min_replicas, job.allowed_sizes) == (replicas, least, allowed)


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
