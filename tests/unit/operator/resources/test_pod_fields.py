"""A field that shapes worker pods is fixed once the job has trained, and part of the template hash, by one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_api import ElasticJob, Spec
from elasticjob_api.crd.definition import custom_resource_definition
from elasticjob_api.fields import Model
from elasticjob_api.pod_fields import FIXED_ONCE_TRAINED
from elasticjob_operator.resources.pods import hash_of, worker_pod

from tests.unit.operator.builders import make_job

CHANGES: dict[str, Any] = {
    "checkpoint": {"volume": {"nfs": {"server": "nfs", "path": "/"}}},
    "workers.template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}, {"name": "logs"}]}},
    "workers.container": "logs",
    "workers.procsPerWorker": 2,
    "workers.runtime.inject": "None",
    "workers.preflight": {"checks": ["Basic"], "command": ["check"]},
    "workers.replicaSize": 1,
    "scheduling.priorityClassName": "high",
}
"""Another value of each field that shapes worker pods."""
READ_ELSEWHERE = {
    "workers.runtime.inject": "the injection of the runtime, which changes pods after `worker_pod`",
}
WITHOUT_A_NEW_RUN: dict[str, Any] = {
    "workers.replicas": 5,
    "workers.minReplicas": 3,
    "workers.maxReplicas": 7,
    "workers.allowedReplicas": [4],
    "failurePolicy.maxRestarts": 3,
    "failurePolicy.windowSeconds": 60,
    "failurePolicy.beforeFirstStep": "Restart",
    "failurePolicy.rules": [{"exitCodes": [1], "action": "Fail"}],
    "failurePolicy.backoff.initialSeconds": 2,
    "failurePolicy.backoff.maxSeconds": 200,
    "failurePolicy.stragglers": "Replace",
    "failurePolicy.hang.action": "Report",
    "failurePolicy.hang.factor": 5,
    "failurePolicy.hang.minSeconds": 300,
    "scaling.scaleUpDelaySeconds": 5,
    "scaling.metrics": [{"type": "Resource"}],
    "scaling.behavior": {},
    "scheduling.avoidNodesAfter": 1,
    "scheduling.gang": {"provider": "Volcano"},
    "scheduling.queue.step": 2,
    "scheduling.queue.surplusPriorityClassName": "low",
    "suspend": True,
    "lifecycle.activeDeadlineSeconds": 60,
    "lifecycle.startupDeadlineSeconds": 60,
    "lifecycle.ttlSecondsAfterFinished": 60,
    "lifecycle.gracefulShutdownSeconds": 60,
    "lifecycle.cleanPods": "All",
    "managedBy": "a.b/c",
    "rendezvous.type": "Dedicated",
    "rendezvous.backend": "c10d",
    "rendezvous.endpoint": "etcd:2379",
    "rendezvous.secretName": "mine",
    "rendezvous.etcd": {"members": 3, "storage": {}},
    "rendezvous.onPartition": "Consistent",
}
"""Another value of each other field: agents read it from etcd, the operator acts on it, or new pods get it."""
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}, {"name": "logs"}]}}


def leaves(model: type[Model], path: str = "") -> Iterator[str]:
    """The fields of a model, and those of the objects in it that have a default."""
    for field in model.model_fields.values():
        below = field.get_default(call_default_factory=True)
        kind = type(below) if isinstance(below, Model) else field.annotation
        name = f"{path}{field.alias}"
        if isinstance(kind, type) and issubclass(kind, Model):
            yield from leaves(kind, f"{name}.")
        else:
            yield name


def changed(path: str, value: Any) -> ElasticJob:
    spec: dict[str, Any] = {"workers": {"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "template": TEMPLATE}}
    *parents, last = path.split(".")
    at = spec
    for parent in parents:
        at = at.setdefault(parent, {})
    at[last] = value
    if path in ("rendezvous.endpoint", "rendezvous.etcd"):
        at["type"] = "External" if last == "endpoint" else "Dedicated"
    plain = make_job()
    return plain.model_copy(update={"spec": Spec.model_validate(spec)})


UNCHANGED = changed("workers.template", TEMPLATE)


def pod_of(job: ElasticJob) -> dict[str, Any]:
    return worker_pod(job, index=0, run=1, endpoint="etcd:2379", template_hash="same")


def test_every_field_of_the_spec_either_shapes_pods_or_does_not() -> None:
    """A new field needs a line above: one that shapes pods belongs in FIXED_ONCE_TRAINED as well."""
    assert set(leaves(Spec)) == {*CHANGES, *WITHOUT_A_NEW_RUN}
    assert set(CHANGES) == set(FIXED_ONCE_TRAINED)
    assert len({path.rpartition(".")[2] for path in FIXED_ONCE_TRAINED}) == len(FIXED_ONCE_TRAINED)


@pytest.mark.parametrize("path", FIXED_ONCE_TRAINED)
def test_a_field_that_shapes_pods_is_hashed_and_kept_by_the_crd(path: str) -> None:
    job = changed(path, CHANGES[path])
    assert hash_of(job) != hash_of(UNCHANGED)
    assert path in READ_ELSEWHERE or pod_of(job) != pod_of(UNCHANGED)
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    (rule,) = [item for item in schema["x-kubernetes-validations"] if item.get("fieldPath") == f".spec.{path}"]
    assert "cannot be changed once the job has trained" in rule["message"]


@pytest.mark.parametrize("path", WITHOUT_A_NEW_RUN)
def test_no_other_field_changes_the_hash(path: str) -> None:
    assert hash_of(changed(path, WITHOUT_A_NEW_RUN[path])) == hash_of(UNCHANGED)
