"""Worker pods that start together, with the PodGroups of a real API server."""

from __future__ import annotations

from collections.abc import Callable

from hack.support import eventually
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.shared import operator

__all__ = ["operator"]

GANG = {"scheduling": {"gang": {"provider": "Native"}}}


def group_of(pod: Json) -> str:
    return str(pod["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


def test_worker_pods_name_a_group_of_kubernetes_that_needs_minimum_replicas(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(replicas=3, minReplicas=2, spec=GANG)
    eventually(lambda: len(ns.workers()) == 3, what="all worker pods are created, or none could start")
    group = ns.get("podgroups", "digits-1")
    assert group
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
    assert {group_of(pod) for pod in ns.workers().values()} == {"digits-1"}
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: _end_pods(ns), what="its pods end")
    eventually(lambda: _is_gone(ns.get("podgroups", "digits-1")), what="the group goes with its run")


def _end_pods(ns: Namespace) -> bool:
    """As kubelets do, once pods are deleted."""
    for name, pod in ns.workers().items():
        if "deletionTimestamp" in pod["metadata"]:
            ns.remove(name)
    return not ns.workers()


def _is_gone(group: Json | None) -> bool:
    """A finalizer of Kubernetes keeps a group until its controller, which does not run here, has seen its pods end."""
    return group is None or group["metadata"].get("deletionTimestamp", "") != ""


def test_scheduler_that_is_not_installed_is_named_with_a_remedy(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    submit(spec={"scheduling": {"gang": {"provider": "Volcano"}}})
    found = eventually(lambda: ns.condition("digits", "Accepted"), what="Accepted")
    assert found
    assert (found["status"], found["reason"]) == ("False", "GangUnavailable")
    assert "PodGroup.scheduling.volcano.sh" in found["message"]
    assert "What to do: " in found["message"]
    assert ns.workers() == {}
