"""The table of pod failures, row by row: what the cluster does to a worker, what it costs, and what becomes of the worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.test_workers import nodes, successor, uid_of
from tests.support import eventually

__all__ = ["nodes"]

WORKER = "digits-worker-1"


def ends(code: int, reason: str = "") -> Callable[[Namespace], None]:
    """The container ends, having run for ten minutes."""
    return lambda ns: ns.end(WORKER, code, reason=reason, at=rfc3339(), started=rfc3339(-600))


def fails(**status: Any) -> Callable[[Namespace], None]:
    def happens(ns: Namespace) -> None:
        ns.patch("pods", WORKER, {"status": {"phase": "Failed", **status}}, "status")

    return happens


def disrupted(reason: str) -> Callable[[Namespace], None]:
    return fails(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "by the cluster"}])


def deleted(ns: Namespace) -> None:
    ns.delete("pods", WORKER)


class Row(NamedTuple):
    happens: Callable[[Namespace], None]
    causes: dict[str, int]
    """status.restarts.byCause in the end; empty: it is free."""


REPLACED = {
    "application exit": Row(ends(1), {"ApplicationError": 1}),
    "signal": Row(ends(139), {"Signal": 1}),
    "OOMKilled": Row(ends(137, "OOMKilled"), {"OutOfMemory": 1}),
    "left gracefully": Row(ends(143), {}),
    "container vanished with a reboot": Row(ends(137, "ContainerStatusUnknown"), {}),
    "evicted by the kubelet": Row(fails(reason="Evicted", message="The node was low on resource: memory"), {}),
    "preempted by the scheduler": Row(disrupted("PreemptionByScheduler"), {}),
    "drained (eviction API)": Row(disrupted("EvictionByEvictionAPI"), {}),
    "node shut down": Row(disrupted("TerminationByKubelet"), {}),
    "deleted by hand": Row(deleted, {}),
}


@pytest.mark.parametrize("row", REPLACED.values(), ids=REPLACED.keys())
def test_worker_is_replaced(ns: Namespace, training: Callable[..., Agents], row: Row) -> None:
    training(replicas=2)
    before = uid_of(ns, WORKER)
    other = uid_of(ns, "digits-worker-0")
    row.happens(ns)
    successor(ns, WORKER, before)
    eventually(lambda: ns.status("digits")["restarts"].get("byCause", {}) == row.causes, what=f"restarts {row.causes}")
    assert ns.status("digits")["restarts"]["total"] == sum(row.causes.values())
    assert uid_of(ns, "digits-worker-0") == other, "the other one is left alone"


def waiting(reason: str, message: str) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "trainer", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Pending", "containerStatuses": [container]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: insufficient GPU"}],
}
STUCK = {
    "image that cannot be pulled": (waiting("ErrImagePull", "not found"), "ImageUnavailable", "not found"),
    "config error": (waiting("CreateContainerConfigError", 'secret "token" not found'), "ContainerConfigError", 'secret "token" not found'),
    "unschedulable": (UNSCHEDULABLE, "Unschedulable", "0/3 nodes: insufficient GPU"),
}


@pytest.mark.parametrize(("status", "reason", "words"), STUCK.values(), ids=STUCK.keys())
def test_worker_that_cannot_start_is_shown_with_its_cause_and_kept(
    ns: Namespace, operator: Operator, submit: Callable[..., str], status: Json, reason: str, words: str
) -> None:
    assert operator
    submit()
    eventually(lambda: WORKER in ns.workers(), what="the pods")
    before = uid_of(ns, WORKER)
    ns.patch("pods", WORKER, {"status": status}, "status")
    eventually(lambda: ns.condition("digits", "Running").get("reason") == reason, what=reason)
    assert words in ns.condition("digits", "Running")["message"]
    assert WORKER in ns.condition("digits", "Running")["message"]
    told = eventually(lambda: [each for each in ns.events("digits") if each["reason"] == reason], what="an Event")
    assert words in told[0]["message"]
    assert uid_of(ns, WORKER) == before


def test_worker_refused_by_admission_is_shown_in_its_words(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=2)
    name = f"deny-{uuid.uuid4().hex[:8]}"
    admission = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false", "message": "no pods on Fridays"}]},
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

        eventually(refused, what="the policy is in force, and its words are in the condition")
    finally:
        ns.kube.call("DELETE", f"{admission}/validatingadmissionpolicybindings/{name}")
        ns.kube.call("DELETE", f"{admission}/validatingadmissionpolicies/{name}")
    eventually(lambda: WORKER in ns.workers(), what="it comes when it may")
    assert ns.status("digits")["restarts"]["total"] == 0


def test_node_where_workers_keep_failing_is_avoided(ns: Namespace, nodes: tuple[str, str], training: Callable[..., Agents]) -> None:
    good, bad = nodes
    training(replicas=2, node=good, spec={"scheduling": {"avoidNodesAfter": 1}, "restartPolicy": {"maxRestarts": 5}})
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
