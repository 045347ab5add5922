from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator import names
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.convert import job_of, node_of, object_of, pod_of
from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.state import Blocked, Kind, PodPhase

from tests.unit.operator.builders import NOW, UID, at, make_job

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


def test_labels_round_trip() -> None:
    pod = pod_of(body())
    assert (pod.index, pod.run, pod.job_uid, pod.component, pod.in_dns) == (4, 2, UID, "worker", True)
    assert job_of(body()) == ("ml", "digits")
    assert pod.phase is PodPhase.PENDING


def test_a_pod_without_its_labels_is_still_of_its_run_and_attempt() -> None:
    pod = worker_pod(make_job(), index=4, run=2, attempt=3, endpoint="x:1")
    pod["metadata"] |= {"uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}}
    found = pod_of({**pod, "status": {}})
    assert (found.index, found.run, found.attempt, found.component) == (4, 2, 3, "worker")


def test_a_pod_without_an_owner_belongs_to_no_job() -> None:
    """A copy with the labels of a worker pod, or one whose job was deleted with --cascade=orphan."""
    assert pod_of(body(ownerReferences=[])).job_uid == ""


def test_only_the_training_containers_end_counts() -> None:
    assert (
        pod_of(
            body(
                {
                    "phase": "Running",
                    "containerStatuses": [container("logger", **ENDED), container("trainer", running={})],
                }
            )
        ).end
        is None
    )
    pod = pod_of(
        body(
            {"phase": "Running", "containerStatuses": [container("logger", running={}), container("trainer", **ENDED)]}
        )
    )
    assert pod.end is not None
    assert (pod.end.exit_code, pod.end.message, pod.ended, pod.failed) == (3, "boom", True, True), (
        "a running sidecar does not keep the pod alive"
    )


NOT_READY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}


@pytest.mark.parametrize(
    ("condition", "trainer", "expected"),
    [
        pytest.param({"type": "Ready", "status": "True"}, {"ready": True}, (True, True), id="all containers run"),
        pytest.param(NOT_READY, {"ready": True}, (True, True), id="another container has exited"),
        pytest.param(NOT_READY, {"ready": False}, (False, True), id="its own readiness probe fails"),
        pytest.param({**NOT_READY, "reason": "NodeNotReady"}, {"ready": True}, (False, False), id="the node is silent"),
        pytest.param(
            {**NOT_READY, "reason": "ReadinessGatesNotReady"}, {"ready": True}, (False, False), id="a gate is closed"
        ),
    ],
)
def test_only_the_training_container_must_be_ready(condition: Json, trainer: Json, expected: tuple[bool, bool]) -> None:
    containers = [container("logger", **ENDED), {**container("trainer", running={}), **trainer}]
    pod = pod_of(body({"phase": "Running", "conditions": [condition], "containerStatuses": containers}))
    assert (pod.ready, pod.may_train) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [container("trainer", waiting={"reason": "ContainerCreating"})]}, None),
        (
            {"containerStatuses": [container("trainer", waiting={"reason": "ErrImagePull", "message": "no"})]},
            Blocked(reason="ErrImagePull", message="no"),
        ),
        (
            {"initContainerStatuses": [container("init", waiting={"reason": "ImagePullBackOff"})]},
            Blocked(reason="ImagePullBackOff"),
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ]
            },
            Blocked(reason="Unschedulable", message="0/3 nodes"),
        ),
        ({"phase": "Running"}, None),
    ],
    ids=["ordinary", "image", "init container", "unschedulable", "running"],
)
def test_the_reason_a_pod_does_not_start_is_found(status: dict[str, Any], expected: Blocked | None) -> None:
    assert pod_of(body({"phase": "Pending", **status})).blocked == expected


def test_scheduling_gates_are_named() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Blocked"}
    found = body({"phase": "Pending", "conditions": [scheduled]})
    found["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    assert pod_of(found).blocked == Blocked(reason="SchedulingGated", message="Blocked: example.com/wait")


def test_a_claim_that_the_scheduler_waits_for_in_silence_is_found() -> None:
    """While a volume is made for its first pod, the pod has no condition PodScheduled."""
    found = body({"phase": "Pending"})
    found["spec"].pop("nodeName", None)
    found["spec"]["volumes"] = [{"name": "ck", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    assert pod_of(found).blocked == Blocked(reason="", claims=("checkpoints",))
    found["spec"]["nodeName"] = "n1"
    assert pod_of(found).blocked is None


@pytest.mark.parametrize(
    ("component", "ready", "state", "expected"),
    [
        ("etcd", "False", {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}, "CrashLoopBackOff"),
        ("etcd", "False", {"running": {}}, "it is not ready"),
        ("etcd", "True", {"running": {}}, None),
        ("worker", "False", {"running": {}}, None),
    ],
)
def test_an_etcd_that_runs_and_is_not_ready_says_so(
    component: str, ready: str, state: Json, expected: str | None
) -> None:
    since = "2026-01-01T11:59:00Z"
    found = body(
        {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
            "containerStatuses": [container("etcd", **state)],
        }
    )
    found["metadata"]["labels"] = {**found["metadata"].get("labels", {}), names.LABEL_COMPONENT: component}
    blocked = pod_of(found).blocked
    assert (blocked.reason if blocked else None) == expected
    assert blocked is None or blocked.since == at(-60)


def test_the_init_container_that_made_a_pod_fail_is_found() -> None:
    failed = body(
        {"phase": "Failed", "initContainerStatuses": [container("proxy", **ENDED), container("data", **ENDED)]}
    )
    failed["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "data"}]
    pod = pod_of(failed)
    assert pod.init_end is not None
    assert (pod.init_end.container, pod.init_end.exit_code, pod.init_end.message) == ("data", 3, "boom")
    assert pod.failed
    done = {"terminated": {"exitCode": 0}}
    ended = {"initContainerStatuses": [container("data", **done)], "containerStatuses": [container("trainer", **ENDED)]}
    assert pod_of(body({"phase": "Failed", **ended})).init_end is None


def test_deletion_and_disruption() -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "for another",
    }
    pod = pod_of(body({"phase": "Running", "conditions": [condition]}, deletionTimestamp="2026-01-01T00:00:30Z"))
    assert pod.terminating
    assert not pod.running
    assert pod.disruption is not None
    assert pod.disruption.reason == "PreemptionByScheduler"


def test_a_deletion_was_requested_its_grace_period_before_its_timestamp() -> None:
    deleted = pod_of(body(deletionTimestamp="2026-01-01T12:00:30Z", deletionGracePeriodSeconds=30))
    assert deleted.deletion_requested_at == at(0)
    assert pod_of(body(deletionTimestamp="2026-01-01T12:00:30Z")).deletion_requested_at == at(30)
    assert pod_of(body()).deletion_requested_at is None


def node_body(status: str, since: str = "2026-01-01T00:00:07Z", taint: str = "") -> Json:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": since}
    metadata = {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"taints": [{"key": taint}]}, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("status", "health"),
    [
        ("True", NodeHealth.READY),
        ("False", NodeHealth.NOT_READY),
        ("Unknown", NodeHealth.SILENT),
        ("", NodeHealth.NOT_READY),
    ],
)
def test_a_not_ready_node_is_distinguished_from_a_silent_one(status: str, health: NodeHealth) -> None:
    node = node_of(node_body(status), None, NOW)
    assert (node.health, node.since.second, node.seen_at, node.recovered_at) == (health, 7, NOW, None)


def test_durations_count_from_when_the_operator_saw_the_change() -> None:
    first = node_of(node_body("Unknown"), None, at(0))
    again = node_of(node_body("Unknown", since="2026-01-01T00:00:09Z"), first, at(5))
    assert again.seen_at == at(0)
    back = node_of(node_body("True"), again, at(6))
    assert (back.seen_at, back.recovered_at) == (at(6), at(6))
    assert node_of(node_body("True"), back, at(9)) == back, "no news"


def test_the_out_of_service_taint_is_recognised() -> None:
    assert node_of(node_body("Unknown", taint="node.kubernetes.io/out-of-service"), None, NOW).out_of_service
    assert not node_of(node_body("Unknown", taint="node.kubernetes.io/unreachable"), None, NOW).out_of_service


@pytest.mark.parametrize(
    ("labels", "ports"),
    [({}, 40_000), ({f"l{number}": "x" * 60 for number in range(12_000)}, 1)],
    ids=["spec", "labels"],
)
def test_of_an_object_that_is_too_large_only_the_names_of_its_fields_are_kept(
    labels: dict[str, str], ports: int
) -> None:
    """All of them differ from what is wanted, so the object is corrected."""
    spec = {"podSelector": {}, "ingress": [{"ports": [{"port": number} for number in range(ports)]}]}
    found = object_of(Kind.NETWORK_POLICY)(
        {"metadata": {"name": "digits-worker", "namespace": "ml", "uid": "u", "labels": labels}, "spec": spec}
    )
    assert found.body == {"metadata": {}, "spec": {"podSelector": None, "ingress": None}}
