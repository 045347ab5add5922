"""A failed worker pod, end to end: its cause, what it costs, its replacement and the Events.

One row for each way in which the API reports a failure; tests/unit/operator/policies/test_failures.py has all causes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.shared import operator
from tests.integration.operator.test_workers import nodes, successor, uid_of

__all__ = ["nodes", "operator"]

WORKER = "digits-worker-1"


def ends(code: int, reason: str = "") -> Callable[[Namespace], None]:
    """The container ends, having run for ten minutes."""
    return lambda ns: ns.end(WORKER, code, reason=reason, at=rfc3339(), started=rfc3339(-600))


def fails(**status: Any) -> Callable[[Namespace], None]:
    def happens(ns: Namespace) -> None:
        ns.patch("pods", WORKER, {"status": {"phase": "Failed", **status}}, "status")

    return happens


def disrupted(reason: str, phase_reason: str = "") -> Callable[[Namespace], None]:
    return fails(
        reason=phase_reason,
        conditions=[{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "by the cluster"}],
    )


def deleted(ns: Namespace) -> None:
    ns.delete("pods", WORKER)


class Row(NamedTuple):
    happens: Callable[[Namespace], None]
    causes: dict[str, int]
    """status.restarts.byCause in the end; empty: it is free."""
    words: str
    """What the condition Restarting and its Event say."""


REPLACED = {
    "application exit": Row(ends(1), {"ApplicationError": 1}, f"{WORKER} failed (ApplicationError, exit code 1)"),
    "evicted by the kubelet": Row(disrupted("TerminationByKubelet", phase_reason="Evicted"), {}, "by the cluster"),
    "deleted by hand": Row(deleted, {}, "Lost "),
}


def told(ns: Namespace, reason: str) -> list[str]:
    """Messages of all Events of that reason."""
    return [each["message"] for each in ns.events("digits") if each["reason"] == reason]


def times_told(ns: Namespace, reason: str) -> int:
    """The same Event again is counted."""
    return sum(each["count"] for each in ns.events("digits") if each["reason"] == reason)


@pytest.mark.parametrize("row", REPLACED.values(), ids=REPLACED.keys())
def test_a_failed_worker_pod_is_replaced(ns: Namespace, training: Callable[..., Agents], row: Row) -> None:
    agents = training(replicas=2, minReplicas=2)
    before, words = uid_of(ns, WORKER), row.words.replace(WORKER, ns.pod_name(WORKER))
    other = uid_of(ns, "digits-worker-0")
    row.happens(ns)
    successor(ns, WORKER, before)
    eventually(
        lambda: ns.status("digits").get("restarts", {}).get("byCause", {}) == row.causes, what=f"restarts {row.causes}"
    )
    assert ns.status("digits")["restarts"]["total"] == sum(row.causes.values())
    assert uid_of(ns, "digits-worker-0") == other, "the other one is left alone"
    eventually(lambda: words in ns.condition("digits", "Restarting").get("message", ""), what="Restarting says why")
    reason = "WorkerFailed" if row.causes else "WorkerLost"
    assert (ns.condition("digits", "Restarting")["status"], ns.condition("digits", "Restarting")["reason"]) == (
        "True",
        reason,
    )
    ns.run(WORKER)
    agents.plan(2, size=2, restart_count=0)
    eventually(lambda: ns.is_true("digits", "Running") and ns.status("digits")["round"] == 2, what="it trains again")
    eventually(lambda: f"Created {WORKER}." in told(ns, "WorkerCreated"), what="the successor is told")
    (once,) = told(ns, reason)
    assert row.words in once, "by its host name, so that repeated Events are counted"
    assert told(ns, "WorkerCreated").count(f"Created {WORKER}.") == 1
    assert len(told(ns, "WorkerDeleted")) == (0 if row.happens is deleted else 1), "what it did itself, once"


@pytest.mark.parametrize("backend", [pytest.param("etcd-v2", marks=pytest.mark.nightly), "c10d"])
def test_a_crash_under_torchruns_own_backends_costs_one_restart(
    ns: Namespace, submit: Callable[..., str], operator: Operator, backend: str
) -> None:
    """The torchrun that fails closes the rendezvous of its run ID: a torchrun that joins it later fails too."""
    assert operator
    rendezvous = {"backend": backend, **({"type": "External", "endpoint": "v2:2379"} if backend == "etcd-v2" else {})}
    submit(replicas=2, minReplicas=2, spec={"rendezvous": rendezvous})
    workers = ("digits-worker-0", WORKER)
    for attempt in (1, 2, 3):
        eventually(lambda: len(ns.workers()) == 2, what="the pods of the attempt are there")
        before = {worker: uid_of(ns, worker) for worker in workers}
        (run_id,) = {rendezvous_id(ns, worker) for worker in workers}
        assert run_id.endswith("-1" if attempt == 1 else f"-1.{attempt}")
        for worker in workers:
            ns.run(worker)
        eventually(lambda: ns.is_true("digits", "Running"), what=f"attempt {attempt} trains")
        assert ns.status("digits")["rendezvous"]["id"] == run_id
        ns.end(WORKER, 1, at=rfc3339(), started=rfc3339(-600))
        for worker in workers:
            successor(ns, worker, before[worker])
    assert ns.status("digits")["restarts"]["total"] == 3, "one for each crash"


def rendezvous_id(ns: Namespace, worker: str) -> str:
    pod = ns.get("pods", worker)
    assert pod is not None
    (container,) = pod["spec"]["containers"]
    return next(str(each["value"]) for each in container["env"] if each["name"] == "PET_RDZV_ID")


def test_a_worker_pod_in_a_crash_loop_waits_and_status_says_until_when(
    ns: Namespace, training: Callable[..., Agents]
) -> None:
    training(replicas=2, spec={"failurePolicy": {"backoff": {"initialSeconds": 600, "maxSeconds": 600}}})
    before = uid_of(ns, WORKER)
    ns.end(WORKER, 1, at=rfc3339(-60))
    before = successor(ns, WORKER, before)["metadata"]["uid"]
    name = ns.pod_name(WORKER)
    ns.end(WORKER, 1, at=rfc3339(6), message="ValueError: no")
    eventually(lambda: ns.status("digits").get("restarts", {}).get("total") == 2, what="counted")
    degraded = ns.condition("digits", "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "WorkerFailed")
    assert degraded["message"].startswith(
        f"1 of 2 worker pods are training. {name} failed (ApplicationError, exit code 1: ValueError: no); "
        "restart 2 of at most 10."
    )
    assert "Its replacement is created at 20" in degraded["message"]
    ns.scale("digits", 3)
    eventually(lambda: "digits-worker-2" in ns.workers(), what="a third pod: the operator has looked")
    assert uid_of(ns, WORKER) == before, "its log can be read"
    assert "ValueError: no" in ns.status("digits")["lastFailure"]["message"]
    eventually(lambda: len(told(ns, "WorkerFailed")) == 2, what="each failure is told")


def test_a_pod_rejected_by_its_kubelet_is_free_and_waits(ns: Namespace, training: Callable[..., Agents]) -> None:
    """The scheduler would choose the same node again."""
    training(replicas=2, minReplicas=2)
    before = uid_of(ns, WORKER)
    ns.patch(
        "pods",
        WORKER,
        {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough cpu"}},
        "status",
    )
    eventually(
        lambda: "enough cpu" in ns.condition("digits", "Restarting").get("message", ""), what="the kubelet's words"
    )
    assert (
        "this does not count towards maxRestarts. Its replacement is created at 20"
        in ns.condition("digits", "Restarting")["message"]
    )
    assert uid_of(ns, WORKER) == before
    assert ns.status("digits")["restarts"]["total"] == 0


def test_a_failed_init_container_counts_and_is_named(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=2, minReplicas=2)
    failed = ns.pod_name(WORKER)
    ended = {"exitCode": 3, "reason": "Error", "message": "curl: no such data set", "finishedAt": rfc3339(0)}
    download = {"name": "download", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [{**download, "state": {"terminated": ended}}]
    ns.patch(
        "pods",
        WORKER,
        {"status": {"phase": "Failed", "initContainerStatuses": statuses, "containerStatuses": None}},
        "status",
    )
    eventually(lambda: ns.status("digits")["restarts"]["total"] == 1, what="it counts")
    last = ns.status("digits")["lastFailure"]
    assert (last["worker"], last["reason"], last["exitCode"]) == (failed, "InitContainerFailed", 3)
    assert last["message"] == "init container download: exit code 3: curl: no such data set"
    assert "failingNodes" not in ns.status("digits"), "no other node shows that it can end well"


def waiting(reason: str, message: str) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "trainer", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Pending", "containerStatuses": [container]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: insufficient GPU"}
    ],
}
STUCK = {
    "image that cannot be pulled": (waiting("ErrImagePull", "not found"), "ImageUnavailable", "not found"),
    "unschedulable": (UNSCHEDULABLE, "Unschedulable", "0/3 nodes: insufficient GPU"),
}


@pytest.mark.parametrize(("status", "reason", "words"), STUCK.values(), ids=STUCK.keys())
def test_a_pod_that_cannot_start_is_shown_with_its_cause_and_kept(
    ns: Namespace,
    operator: Operator,
    submit: Callable[..., str],
    agents_of: Callable[[str], Agents],
    status: Json,
    reason: str,
    words: str,
) -> None:
    assert operator
    submit()
    eventually(lambda: WORKER in ns.workers(), what="the pods")
    before = uid_of(ns, WORKER)
    ns.patch("pods", WORKER, {"status": status}, "status")
    eventually(lambda: ns.condition("digits", "Running").get("reason") == reason, what=reason)
    assert words in ns.condition("digits", "Running")["message"]
    assert WORKER in ns.condition("digits", "Running")["message"]
    eventually(lambda: told(ns, reason), what="an Event")
    assert uid_of(ns, WORKER) == before
    assert ns.status("digits")["restarts"]["total"] == 0
    # The cause goes away.
    for name in ns.workers():
        ns.run(name)
    agents_of("digits").plan(1, size=2)
    eventually(lambda: ns.condition("digits", "Running").get("reason") == "Training", what="it trains")
    assert words not in ns.condition("digits", "Running")["message"]
    (once,) = told(ns, reason)
    assert words in once
    assert not told(ns, "WorkerDeleted")


def test_a_pod_rejected_by_admission_is_shown_with_the_servers_message(
    ns: Namespace, training: Callable[..., Agents]
) -> None:
    training(replicas=2)
    name = f"deny-{uuid.uuid4().hex[:8]}"
    admission = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "no pods on Fridays"}],
        },
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": ns.name}}
    binding = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector}},
    }
    ns.kube.call("POST", f"{admission}/validatingadmissionpolicies", policy)
    ns.kube.call("POST", f"{admission}/validatingadmissionpolicybindings", binding)
    try:

        def refused() -> bool:
            ns.delete("pods", WORKER)
            return "no pods on Fridays" in ns.condition("digits", "Running")["message"]

        eventually(refused, 60, what="the policy is in force, and its words are in the condition")
        eventually(lambda: [each for each in told(ns, "PodRejected") if "no pods on Fridays" in each], what="a Warning")
        created = times_told(ns, "WorkerCreated")  # Events come in their order: those of before the policy are there
        assert WORKER not in ns.workers()
        assert (ns.condition("digits", "Degraded")["status"], ns.condition("digits", "Degraded")["reason"]) == (
            "True",
            "PodRejected",
        )
    finally:
        ns.kube.call("DELETE", f"{admission}/validatingadmissionpolicybindings/{name}")
        ns.kube.call("DELETE", f"{admission}/validatingadmissionpolicies/{name}")
    eventually(lambda: WORKER in ns.workers(), 60, what="it comes when it may")
    eventually(lambda: times_told(ns, "WorkerCreated") == created + 1, what="told once, and only when it came")
    eventually(lambda: "Fridays" not in ns.condition("digits", "Running")["message"], what="it is forgotten")
    assert ns.status("digits")["restarts"]["total"] == 0


def test_a_node_where_worker_pods_keep_failing_is_avoided(
    ns: Namespace, nodes: tuple[str, str], training: Callable[..., Agents]
) -> None:
    good, bad = nodes
    training(replicas=2, node=good, spec={"scheduling": {"avoidNodesAfter": 1}, "failurePolicy": {"maxRestarts": 5}})
    ns.scale("digits", 3)
    eventually(lambda: "digits-worker-2" in ns.workers(), what="a third pod")
    before = uid_of(ns, "digits-worker-2")
    ns.run("digits-worker-2", bad)
    ns.end("digits-worker-2", 1, at=rfc3339(), started=rfc3339(-600))
    eventually(lambda: ns.status("digits").get("failingNodes"), what="the node is blamed")
    assert [(each["name"], each["failures"]) for each in ns.status("digits")["failingNodes"]] == [(bad, 1)]
    ns.remove("digits-worker-2")
    new = successor(ns, "digits-worker-2", before)
    (term,) = new["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]


def test_a_worker_pod_on_a_suspect_machine_is_replaced_and_its_node_named(
    ns: Namespace, nodes: tuple[str, str], training: Callable[..., Agents]
) -> None:
    good, bad = nodes
    preflight = {"checks": ["Basic"], "command": ["/opt/check", "two words"], "timeoutSeconds": 30}
    training(replicas=2, node=good, preflight=preflight)
    ns.scale("digits", 3)
    eventually(lambda: "digits-worker-2" in ns.workers(), what="a third pod")
    before = uid_of(ns, "digits-worker-2")
    ns.run("digits-worker-2", bad)
    why = "the preflight checks of this machine fail: command: exit code 3: no link"
    ns.end("digits-worker-2", 79, at=rfc3339(), started=rfc3339(-5), message=why)
    condition = eventually(lambda: ns.condition("digits", "NodesSuspected"), what="the node is suspect")
    assert (condition["status"], condition["reason"]) == ("True", "CheckFailed")
    assert f"{bad} (command: exit code 3: no link)" in condition["message"]
    eventually(lambda: told(ns, "CheckFailed"), what="a Warning")
    assert ns.status("digits")["failingNodes"][0]["check"] == "command: exit code 3: no link"
    ns.remove("digits-worker-2")
    new = successor(ns, "digits-worker-2", before)
    (term,) = new["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]
    variables = {each["name"]: each.get("value") for each in new["spec"]["containers"][0]["env"]}
    assert variables["PET_PREFLIGHT"] == "Basic"
    assert variables["PET_PREFLIGHT_COMMAND"] == "/opt/check 'two words'"
    assert variables["PET_PREFLIGHT_TIMEOUT"] == "30"
    assert ns.status("digits")["restarts"]["total"] == 0
