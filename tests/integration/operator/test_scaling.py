"""The number of workers: as wanted, as allowed, put off for a while, or by an autoscaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hack.support import eventually
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents

METRIC = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "0.5"}},
}


def resizing(ns: Namespace) -> tuple[str, str]:
    found = ns.condition("digits", "Resizing")
    return found.get("status", ""), found.get("reason", "")


def test_resize_shows_from_the_wish_to_the_training(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2)
    eventually(lambda: resizing(ns) == ("False", "Resized"), what="no change of size is under way")
    ns.scale("digits", 3)
    eventually(lambda: resizing(ns) == ("True", "ScalingUp"), what="Resizing")
    eventually(lambda: "digits-worker-2" in ns.workers(), what="a third pod")
    ns.run("digits-worker-2")
    eventually(lambda: ns.status("digits")["readyReplicas"] == 3, what="it is ready")
    assert resizing(ns) == ("True", "ScalingUp"), "it does not train yet"
    agents.plan(2, size=3)
    eventually(lambda: resizing(ns) == ("False", "Resized"), what="resized")
    assert ns.condition("digits", "Degraded")["status"] == "False"
    ns.patch("pods", "digits-worker-2", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "status")
    eventually(lambda: ns.is_true("digits", "Degraded"), what="Degraded")
    assert "2 of 3 worker pods are training" in ns.condition("digits", "Degraded")["message"]
    assert resizing(ns) == ("False", "Resized"), "a worker that is lost is no change of size"


def test_leaving_worker_is_drained_before_it_is_deleted(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=3)
    ns.scale("digits", 2)
    eventually(lambda: set(ns.workers()) == {"digits-worker-0", "digits-worker-1"}, what="the highest leaves")
    spec = agents.spec()
    assert spec is not None
    assert (spec.wanted, spec.members) == (2, ["digits-worker-0", "digits-worker-1"])


def test_sizes_in_between_are_rounded_down(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2, allowedReplicas=[2, 4])
    ns.scale("digits", 3)
    ns.scale("digits", 5)
    eventually(lambda: len(ns.workers()) == 4, what="four workers")
    spec = eventually(lambda: (known := agents.spec()) and known.wanted == 4 and known, what="the agents are told")
    assert spec
    assert spec.allowed == [2, 4]
    eventually(lambda: ns.status("digits")["workers"] == "2/4", what="status says so")


def test_more_workers_are_put_off_exactly_even_over_a_restart(
    ns: Namespace, operator: Operator, training: Callable[..., Agents]
) -> None:
    training(replicas=1, spec={"scaling": {"scaleUpDelaySeconds": 6}})
    ns.scale("digits", 2)
    eventually(lambda: resizing(ns) == ("True", "ScaleUpDelayed"), what="put off")
    due = ns.status("digits")["scaleUpTime"]
    operator.kill()
    operator.restart()
    ns.scale("digits", 4)
    eventually(lambda: len(ns.workers()) == 4, what="both wishes at once")
    created = {pod["metadata"]["creationTimestamp"] for name, pod in ns.workers().items() if name != "digits-worker-0"}
    assert min(created) >= due


def test_metrics_make_an_autoscaler_that_is_kept_and_taken_away(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    assert operator
    scaling: dict[str, Any] = {"metrics": [METRIC], "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}
    submit(spec={"scaling": scaling})

    def scaler() -> Any:
        return ns.get("horizontalpodautoscalers", "digits")

    made = eventually(scaler, what="an autoscaler")
    assert made["spec"]["scaleTargetRef"] == {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "name": "digits",
    }
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (1, 8)
    assert made["metadata"]["ownerReferences"][0]["uid"] == ns.job("digits")["metadata"]["uid"]
    ns.patch("horizontalpodautoscalers", "digits", {"spec": {"maxReplicas": 99}})
    eventually(lambda: scaler()["spec"]["maxReplicas"] == 8, what="it is put right")
    assert operator.log_text().count("PatchObject digits") == 1, (
        "quantities that the server spells its own way are no change"
    )
    ns.patch("elasticjobs", "digits", {"spec": {"scaling": {"metrics": []}}})
    eventually(lambda: scaler() is None, what="it is gone")
