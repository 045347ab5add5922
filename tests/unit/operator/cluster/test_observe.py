from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.building.pods import worker_pod
from elasticjob_operator.cluster.observe import job_of, node_of, pod_of
from elasticjob_operator.world import Blocked, PodPhase

from tests.unit.operator.builders import UID, make_job

TWO = {"spec": {"containers": [{"name": "logger"}, {"name": "trainer"}]}}
ENDED = {
    "terminated": {
        "exitCode": 3,
        "reason": "Error",
        "message": "boom",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:01:00Z",
    }
}


def body(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    pod = worker_pod(make_job(template=TWO, workers={"container": "trainer"}), index=4, run=2, endpoint="x:1")
    pod["metadata"] |= {"uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return {**pod, "status": status or {}}


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def test_labels_are_read_back() -> None:
    pod = pod_of(body())
    assert (pod.name, pod.index, pod.run, pod.job_uid, pod.component) == ("digits-worker-4", 4, 2, UID, "worker")
    assert job_of(body()) == ("ml", "digits")
    assert pod.phase is PodPhase.PENDING


def test_only_the_training_containers_end_counts() -> None:
    assert (
        pod_of(body({"phase": "Running", "containerStatuses": [container("logger", **ENDED), container("trainer", running={})]})).end
        is None
    )
    pod = pod_of(body({"phase": "Running", "containerStatuses": [container("logger", running={}), container("trainer", **ENDED)]}))
    assert pod.end is not None
    assert (pod.end.exit_code, pod.end.message, pod.ended, pod.failed) == (3, "boom", True, True), (
        "a sidecar that goes on does not keep it alive"
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [container("trainer", waiting={"reason": "ContainerCreating"})]}, None),
        (
            {"containerStatuses": [container("trainer", waiting={"reason": "ErrImagePull", "message": "no"})]},
            Blocked(reason="ErrImagePull", message="no"),
        ),
        ({"initContainerStatuses": [container("init", waiting={"reason": "ImagePullBackOff"})]}, Blocked(reason="ImagePullBackOff")),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
            Blocked(reason="Unschedulable", message="0/3 nodes"),
        ),
        ({"phase": "Running"}, None),
    ],
    ids=["ordinary", "image", "init container", "unschedulable", "running"],
)
def test_why_a_pod_does_not_start(status: dict[str, Any], expected: Blocked | None) -> None:
    assert pod_of(body({"phase": "Pending", **status})).blocked == expected


def test_deletion_and_disruption() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"}
    pod = pod_of(body({"phase": "Running", "conditions": [condition]}, deletionTimestamp="2026-01-01T00:00:30Z"))
    assert pod.terminating
    assert not pod.running
    assert pod.disruption is not None
    assert pod.disruption.reason == "PreemptionByScheduler"


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_node_that_is_silent_is_not_ready(status: str, ready: bool) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:07Z"}
    node = node_of({"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"conditions": [condition]}})
    assert (node.ready, node.since.second) == (ready, 7)
