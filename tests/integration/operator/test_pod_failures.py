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
from tests.integration.operator.kube import Namespace
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
    return [event["message"] for event in ns.events("digits") if event["reason"] == reason]


def times_told(ns: Namespace, reason: str) -> int:
    """The same Event again is counted."""
    return sum(event["count"] for event in ns.events("digits") if event["reason"] == reason)


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
        eventually(lambda: [item for item in told(ns, "PodRejected") if "no pods on Fridays" in item], what="a Warning")
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
    variables = {variable["name"]: variable.get("value") for variable in new["spec"]["containers"][0]["env"]}
    assert variables["PET_PREFLIGHT"] == "Basic"
    assert variables["PET_PREFLIGHT_COMMAND"] == "/opt/check 'two words'"
    assert variables["PET_PREFLIGHT_TIMEOUT"] == "30"
    assert ns.status("digits")["restarts"]["total"] == 0


@pytest.mark.parametrize("replaces", [False, True])
def test_a_slow_rank_is_named_and_its_worker_pod_replaced_if_wanted(
    ns: Namespace, nodes: tuple[str, str], training: Callable[..., Agents], replaces: bool
) -> None:
    good, bad = nodes
    policy = {"failurePolicy": {"stragglers": "Replace"}} if replaces else {}
    agents = training(replicas=3, node=good, spec=policy)
    before = uid_of(ns, "digits-worker-2")
    ns.delete("pods", ns.pod_name("digits-worker-2"))
    ns.remove("digits-worker-2")
    slow = successor(ns, "digits-worker-2", before)
    ns.run("digits-worker-2", bad)
    agents.plan(2, size=3)
    agents.stragglers(2, slow["metadata"]["name"], "its CPU limit slows it down")
    text = f"rank 1 in {slow['metadata']['name']} on node {bad}: own time 50 ms; its CPU limit slows it down"
    eventually(lambda: any(text in item for item in told(ns, "RanksSlow")), what="a Warning")
    if not replaces:
        condition = ns.condition("digits", "StragglersFound")
        assert condition["status"] == "True"
        assert text in condition["message"]
    else:
        new = successor(ns, "digits-worker-2", slow["metadata"]["uid"])
        (term,) = new["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]
        assert ns.status("digits")["failingNodes"][0]["check"].startswith("slow: rank 1 in ")
    agents.stragglers(2)
    eventually(lambda: not ns.is_true("digits", "StragglersFound"), what="it is slow no more")
    assert ns.status("digits")["restarts"]["total"] == 0
