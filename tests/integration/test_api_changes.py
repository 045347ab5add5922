"""Changes of a job that exists, on a real API server: what may change when, and how to do what may not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.cluster import ControlPlane
from tests.integration.manifests import (
    BASE,
    GONE,
    POD,
    TRAINER,
    WORKERS,
    Case,
    Cluster,
    api,
    changed,
    cluster,
    namespace,
)

__all__ = ["api", "cluster"]


@pytest.fixture(scope="module")
def running(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace in which the job exists already, for changes that are only tried."""
    with namespace(api) as cluster:
        cluster.apply(BASE)
        yield cluster


@pytest.fixture(scope="module")
def resting(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace in which the job exists, suspended."""
    with namespace(api) as cluster:
        cluster.apply(changed({"spec.lifecycle.suspend": True}))
        yield cluster


FORBIDDEN = "is immutable: delete the job and apply it again, or create a job with another name"
FIXED = (
    "cannot be changed while the job is running: set lifecycle.suspend to true first, then change it and set suspend "
    "to false"
)
TEMPLATE_FORBIDDEN = (f"spec.workers.template: Forbidden: template {FIXED}",)

CHANGES = {
    "size": Case({f"{WORKERS}.replicas": 6}),
    "bounds": Case({f"{WORKERS}.minReplicas": 1, f"{WORKERS}.maxReplicas": 9}),
    "most below the size": Case(
        {f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)
    ),
    "least above the size": Case(
        {f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)
    ),
    "allowed sizes without the size's bounds": Case(
        {f"{WORKERS}.allowedReplicas": [2, 4]}, ("allowedReplicas [2, 4] must be between",)
    ),
    "metrics of a fixed size": Case(
        {"spec.scaling.metrics": [{"type": "Resource"}]}, ("set workers.minReplicas below workers.maxReplicas",)
    ),
    "metrics with room": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}
    ),
    "restarts": Case({"spec.restartPolicy.maxRestarts": 3}),
    "restarts within a window": Case({"spec.restartPolicy": {"maxRestarts": 3, "windowSeconds": 60}}),
    "etcd of its own": Case({"spec.rendezvous.etcd": {}}, (f"spec.rendezvous.etcd: Forbidden: etcd {FIXED}",)),
    "backend": Case({"spec.rendezvous.backend": "c10d"}, (f"spec.rendezvous.backend: Forbidden: backend {FIXED}",)),
    "what happens behind a partition": Case({"spec.rendezvous.onPartition": "Consistent"}),
    "name of the trainer": Case({f"{TRAINER}.name": "main"}, TEMPLATE_FORBIDDEN),
    "network": Case({f"{POD}.hostNetwork": True}, TEMPLATE_FORBIDDEN),
    "time to save": Case({"spec.lifecycle.gracefulShutdownSeconds": 120}),
    "cleaning": Case({"spec.lifecycle.cleanPods": "None"}),
    "labels of the job": Case({"metadata.labels": {"a": "b"}}),
    "image": Case({f"{TRAINER}.image": "train:2"}, TEMPLATE_FORBIDDEN),
    "one argument": Case({f"{TRAINER}.command": ["torchrun", "other.py"]}, TEMPLATE_FORBIDDEN),
    "value of a variable": Case({f"{TRAINER}.env.0.value": "0.2"}, TEMPLATE_FORBIDDEN),
    "source of a variable": Case(
        {f"{TRAINER}.env.0": {"name": "LR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}},
        TEMPLATE_FORBIDDEN,
    ),
    "a further variable": Case({f"{TRAINER}.env.1": {"name": "SEED", "value": "1"}}, TEMPLATE_FORBIDDEN),
    "a value deep inside": Case({f"{POD}.nodeSelector": {"disk": "hdd"}}, TEMPLATE_FORBIDDEN),
    "a key deep inside": Case({f"{POD}.nodeSelector": {"zone": "ssd"}}, TEMPLATE_FORBIDDEN),
    "one field for another": Case(
        {f"{POD}.nodeSelector": GONE, f"{POD}.tolerations": [{"operator": "Exists"}]}, TEMPLATE_FORBIDDEN
    ),
    "a further field": Case({f"{POD}.priorityClassName": "high"}, TEMPLATE_FORBIDDEN),
    "fewer containers": Case({f"{POD}.containers.1": GONE}, TEMPLATE_FORBIDDEN),
    "labels of the pods": Case({"spec.workers.template.metadata.labels": {"team": "speech"}}, TEMPLATE_FORBIDDEN),
    "annotations of the pods": Case({"spec.workers.template.metadata.annotations": {"a": "b"}}, TEMPLATE_FORBIDDEN),
    "container": Case({f"{WORKERS}.container": "trainer"}, (f"spec.workers.container: Forbidden: container {FIXED}",)),
    "processes": Case(
        {f"{WORKERS}.procsPerWorker": 2}, (f"spec.workers.procsPerWorker: Forbidden: procsPerWorker {FIXED}",)
    ),
    "checkpoints": Case({"spec.checkpoint": {}}, (f"spec.checkpoint: Forbidden: checkpoint {FIXED}",)),
    "suspension": Case({"spec.lifecycle.suspend": True}),
    "suspension and image at once": Case({"spec.lifecycle.suspend": True, f"{TRAINER}.image": "train:2"}),
    "avoidance of nodes": Case({"spec.scheduling.avoidNodesAfter": 0}),
    "priority": Case(
        {"spec.scheduling.priorityClassName": "high"},
        (f"spec.scheduling.priorityClassName: Forbidden: priorityClassName {FIXED}",),
    ),
    "deadlines": Case({"spec.lifecycle.activeDeadlineSeconds": 9, "spec.lifecycle.ttlSecondsAfterFinished": 9}),
    "manager": Case({"spec.managedBy": "a.b/c"}, (f"spec.managedBy: Forbidden: managedBy {FORBIDDEN}",)),
    "manager of its life": Case(
        {"spec.lifecycle.managedBy": "a.b/c"}, (f"spec.lifecycle.managedBy: Forbidden: managedBy {FORBIDDEN}",)
    ),
    "rendezvous": Case(
        {"spec.rendezvous.endpoint": "etcd:2379"}, (f"spec.rendezvous.endpoint: Forbidden: endpoint {FIXED}",)
    ),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES.keys())
def test_change_of_a_job_is_taken_or_refused_with_the_way_to_do_it(running: Cluster, case: Case) -> None:
    if not case.words:
        running.try_to_change(changed(case.changes))
        return
    refusal = running.refusal(changed(case.changes), change=True)
    for words in case.words:
        assert words in refusal


WHILE_SUSPENDED = {
    "image": Case({f"{TRAINER}.image": "train:2"}),
    "image, and on": Case({f"{TRAINER}.image": "train:2", "spec.lifecycle.suspend": False}),
    "nodes, as a queue does": Case({f"{POD}.nodeSelector": {"pool": "a"}, "spec.lifecycle.suspend": False}),
    "container, processes, checkpoints": Case(
        {f"{WORKERS}.container": "trainer", f"{WORKERS}.procsPerWorker": 2, "spec.checkpoint": {"directory": "/a"}}
    ),
    "rendezvous": Case({"spec.rendezvous.endpoint": "etcd:2379"}),
    "backend, and on": Case({"spec.rendezvous.backend": "c10d", "spec.lifecycle.suspend": False}),
}


@pytest.mark.parametrize("case", WHILE_SUSPENDED.values(), ids=WHILE_SUSPENDED.keys())
def test_change_of_a_suspended_job(resting: Cluster, case: Case) -> None:
    manifest = changed({"spec.lifecycle.suspend": True, **case.changes})
    if not case.words:
        resting.try_to_change(manifest)
        return
    refusal = resting.refusal(manifest, change=True)
    for words in case.words:
        assert words in refusal


def test_order_of_containers_counts_because_the_first_one_trains(cluster: Cluster) -> None:
    plain = changed({f"{POD}.containers.1.env": GONE})
    cluster.apply(plain)
    trainer, sidecar = plain["spec"]["workers"]["template"]["spec"]["containers"]
    assert TEMPLATE_FORBIDDEN[0] in cluster.refusal(changed({f"{POD}.containers": [sidecar, trainer]}), change=True)
