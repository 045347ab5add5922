"""Changes to an existing job on a real API server: which are accepted when, and the remedy for those that are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from hack.cluster import ControlPlane
from hack.cluster.output import ClusterError
from tests.integration.manifests import (
    BASE,
    GONE,
    POD,
    TRAINER,
    WORKERS,
    Case,
    Cluster,
    Manifest,
    api,
    changed,
    cluster,
    namespace,
)

__all__ = ["api", "cluster"]


STAGES: dict[str, tuple[Manifest, Manifest]] = {
    "running": (BASE, {"round": 1}),
    "never trained": (BASE, {"summary": "ImageUnavailable", "startTime": "2026-01-01T00:00:00Z"}),
    "failed before it could train": (BASE, {"completionTime": "2026-01-01T00:00:00Z"}),
    "suspended": (changed({"spec.suspend": True}), {}),
}
"""Of a job: its manifest, and its status."""


@pytest.fixture(scope="module")
def jobs(api: ControlPlane) -> Iterator[dict[str, Cluster]]:
    """A namespace with the job for each stage, for dry runs of changes."""
    with contextlib.ExitStack() as stack:
        found = {stage: stack.enter_context(namespace(api)) for stage in STAGES}
        for stage, (manifest, status) in STAGES.items():
            found[stage].create(manifest)
            found[stage].set_status(status)
        yield found


FORBIDDEN = "is immutable: delete the job and apply it again, or create a job with another name"
FIXED = (
    "cannot be changed while the job is running: set spec.suspend to true first, then change it and set suspend "
    "to false"
)
ONCE_TRAINED = (
    "cannot be changed once the job has trained: set spec.suspend to true first, then change it and set suspend "
    "to false; if the job has finished, delete it and apply it again"
)
EXTERNAL = {"type": "External", "endpoint": "etcd:2379"}
TEMPLATE_FORBIDDEN = (f"spec.workers.template: Forbidden: template {ONCE_TRAINED}",)

CHANGES = {
    "replicas": Case({f"{WORKERS}.replicas": 6}),
    "bounds": Case({f"{WORKERS}.minReplicas": 1, f"{WORKERS}.maxReplicas": 9}),
    "maximum below replicas": Case(
        {f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)
    ),
    "minimum above replicas": Case(
        {f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)
    ),
    "allowed sizes outside the bounds": Case(
        {f"{WORKERS}.allowedReplicas": [2, 4]}, ("allowedReplicas [2, 4] must be between",)
    ),
    "replicas of two": Case({f"{WORKERS}.replicaSize": 2}, (f"replicaSize {ONCE_TRAINED}",)),
    "credentials": Case(
        {"spec.rendezvous": {"type": "External", "endpoint": "https://etcd:2379", "secretName": "mine"}},
        (f"spec.rendezvous.secretName: Forbidden: secretName {FIXED}",),
    ),
    "metrics with a fixed size": Case(
        {"spec.scaling.metrics": [{"type": "Resource"}]}, ("set workers.minReplicas below workers.maxReplicas",)
    ),
    "metrics with room to scale": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}
    ),
    "restarts": Case({"spec.failurePolicy.maxRestarts": 3}),
    "restarts within a window": Case({"spec.failurePolicy": {"maxRestarts": 3, "windowSeconds": 60}}),
    "its own etcd": Case(
        {"spec.rendezvous": {"type": "Dedicated", "etcd": {}}},
        (f"spec.rendezvous.type: Forbidden: type {FIXED}", f"spec.rendezvous.etcd: Forbidden: etcd {FIXED}"),
    ),
    "backend": Case({"spec.rendezvous.backend": "c10d"}, (f"spec.rendezvous.backend: Forbidden: backend {FIXED}",)),
    "partition policy": Case({"spec.rendezvous.onPartition": "Consistent"}),
    "container name": Case({f"{TRAINER}.name": "main"}, TEMPLATE_FORBIDDEN),
    "host network": Case({f"{POD}.hostNetwork": True}, TEMPLATE_FORBIDDEN),
    "graceful shutdown time": Case({"spec.lifecycle.gracefulShutdownSeconds": 120}),
    "pod cleanup": Case({"spec.lifecycle.cleanPods": "None"}),
    "job labels": Case({"metadata.labels": {"a": "b"}}),
    "image": Case({f"{TRAINER}.image": "train:2"}, TEMPLATE_FORBIDDEN),
    "one argument": Case({f"{TRAINER}.command": ["torchrun", "other.py"]}, TEMPLATE_FORBIDDEN),
    "value of a variable": Case({f"{TRAINER}.env.0.value": "0.2"}, TEMPLATE_FORBIDDEN),
    "source of a variable": Case(
        {f"{TRAINER}.env.0": {"name": "LR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}},
        TEMPLATE_FORBIDDEN,
    ),
    "another variable": Case({f"{TRAINER}.env.1": {"name": "SEED", "value": "1"}}, TEMPLATE_FORBIDDEN),
    "nested value": Case({f"{POD}.nodeSelector": {"disk": "hdd"}}, TEMPLATE_FORBIDDEN),
    "nested key": Case({f"{POD}.nodeSelector": {"zone": "ssd"}}, TEMPLATE_FORBIDDEN),
    "one field for another": Case(
        {f"{POD}.nodeSelector": GONE, f"{POD}.tolerations": [{"operator": "Exists"}]}, TEMPLATE_FORBIDDEN
    ),
    "an image and a status in one request": Case(
        {f"{TRAINER}.image": "train:2", "status": {"writes": 99}}, TEMPLATE_FORBIDDEN
    ),
    "another field": Case({f"{POD}.priorityClassName": "high"}, TEMPLATE_FORBIDDEN),
    "fewer containers": Case({f"{POD}.containers.1": GONE}, TEMPLATE_FORBIDDEN),
    "pod labels": Case({"spec.workers.template.metadata.labels": {"team": "speech"}}, TEMPLATE_FORBIDDEN),
    "pod annotations": Case({"spec.workers.template.metadata.annotations": {"a": "b"}}, TEMPLATE_FORBIDDEN),
    "container": Case(
        {f"{WORKERS}.container": "trainer"}, (f"spec.workers.container: Forbidden: container {ONCE_TRAINED}",)
    ),
    "processes": Case(
        {f"{WORKERS}.procsPerWorker": 2}, (f"spec.workers.procsPerWorker: Forbidden: procsPerWorker {ONCE_TRAINED}",)
    ),
    "checkpoints": Case({"spec.checkpoint": {}}, (f"spec.checkpoint: Forbidden: checkpoint {ONCE_TRAINED}",)),
    "checkpoints in another kind of volume": Case(
        {"spec.checkpoint": {"volume": {"hostPath": {"path": "/a"}}}},
        (f"spec.checkpoint: Forbidden: checkpoint {ONCE_TRAINED}",),
    ),
    "suspension": Case({"spec.suspend": True}),
    "suspension and image at once": Case({"spec.suspend": True, f"{TRAINER}.image": "train:2"}),
    "node avoidance": Case({"spec.scheduling.avoidNodesAfter": 0}),
    "priority": Case(
        {"spec.scheduling.priorityClassName": "high"},
        (f"spec.scheduling.priorityClassName: Forbidden: priorityClassName {ONCE_TRAINED}",),
    ),
    "deadlines": Case({"spec.lifecycle.activeDeadlineSeconds": 9, "spec.lifecycle.ttlSecondsAfterFinished": 9}),
    "manager": Case({"spec.managedBy": "a.b/c"}, (f"spec.managedBy: Forbidden: managedBy {FORBIDDEN}",)),
    "rendezvous": Case({"spec.rendezvous": EXTERNAL}, (f"spec.rendezvous.endpoint: Forbidden: endpoint {FIXED}",)),
}


WHILE_SUSPENDED = {
    "image": Case({f"{TRAINER}.image": "train:2"}),
    "image and resume": Case({f"{TRAINER}.image": "train:2", "spec.suspend": False}),
    "node selector and resume, as a queue does": Case({f"{POD}.nodeSelector": {"pool": "a"}, "spec.suspend": False}),
    "container, processes, checkpoints": Case(
        {f"{WORKERS}.container": "trainer", f"{WORKERS}.procsPerWorker": 2, "spec.checkpoint": {"directory": "/a"}}
    ),
    "rendezvous": Case({"spec.rendezvous": EXTERNAL}),
    "credentials": Case(
        {"spec.rendezvous": {"type": "External", "endpoint": "https://etcd:2379", "secretName": "mine"}}
    ),
    "backend and resume": Case({"spec.rendezvous.backend": "c10d", "spec.suspend": False}),
}


UNTIL_IT_TRAINS = {
    "image": Case({f"{TRAINER}.image": "train:2"}),
    "container, processes, checkpoints, priority": Case(
        {
            f"{WORKERS}.container": "trainer",
            f"{WORKERS}.procsPerWorker": 2,
            "spec.checkpoint": {"directory": "/a"},
            "spec.scheduling.priorityClassName": "high",
        }
    ),
    "rendezvous": Case({"spec.rendezvous": EXTERNAL}, (f"spec.rendezvous.endpoint: Forbidden: endpoint {FIXED}",)),
}


AFTER_THE_END = {
    "image": Case({f"{TRAINER}.image": "train:2"}, TEMPLATE_FORBIDDEN),
    "replicas": Case({f"{WORKERS}.replicas": 6}, ("replicas cannot be changed: the job has finished",)),
    "time to live": Case({"spec.lifecycle.ttlSecondsAfterFinished": 9}),
}


TABLES = dict(zip(STAGES, (CHANGES, UNTIL_IT_TRAINS, AFTER_THE_END, WHILE_SUSPENDED), strict=True))


@pytest.mark.parametrize(
    ("stage", "case"),
    [pytest.param(stage, case, id=f"{stage}: {name}") for stage, of in TABLES.items() for name, case in of.items()],
)
def test_a_change_of_a_job_is_accepted_or_rejected_with_a_remedy(
    jobs: dict[str, Cluster], stage: str, case: Case
) -> None:
    jobs[stage].judges(case, STAGES[stage][0], change=True)


def test_kubectl_scale_of_a_finished_job_says_that_it_has_finished(jobs: dict[str, Cluster]) -> None:
    with pytest.raises(ClusterError, match="the job has finished"):
        jobs["failed before it could train"].kubectl("scale", "elasticjob/digits", "--replicas=6")


def test_reordering_the_containers_changes_the_template(cluster: Cluster) -> None:
    plain = changed({f"{POD}.containers.1.env": GONE})
    cluster.apply(plain)
    cluster.set_status({"round": 1})
    trainer, sidecar = plain["spec"]["workers"]["template"]["spec"]["containers"]
    cluster.judges(Case({f"{POD}.containers": [sidecar, trainer]}, TEMPLATE_FORBIDDEN), change=True)
