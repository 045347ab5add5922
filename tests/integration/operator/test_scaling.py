"""The number of worker pods: `kubectl scale`, allowed sizes, the scale-up delay and the autoscaler."""

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


def test_the_scale_up_delay_survives_a_restart_of_the_operator(
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


def test_the_autoscaler_follows_the_spec_and_edits_are_reverted(
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


def test_the_worker_pods_of_a_replica_are_removed_together(ns: Namespace, training: Callable[..., Agents]) -> None:
    """Which those are, the agents decide: here by where the pods run, and not by their numbers."""
    agents = training(replicas=4, replicaSize=2, minReplicas=2)
    names = [ns.workers()[f"digits-worker-{index}"]["metadata"]["name"] for index in range(4)]
    agents.put_together(0, names[0], names[3])
    agents.put_together(1, names[2], names[1])
    replicas = [{"replica": 0, "workers": [0, 3]}, {"replica": 1, "workers": [2, 1]}]
    eventually(lambda: ns.job("digits")["status"].get("replicaWorkers") == replicas, what="status says which they are")
    ns.scale("digits", 2)
    eventually(lambda: ns.workers().keys() == {"digits-worker-0", "digits-worker-3"}, what="replica 1 has left")
    spec = agents.spec()
    assert spec is not None
    assert spec.wanted == 2
    ns.scale("digits", 4)
    eventually(lambda: len(ns.workers()) == 4, what="another replica is created")
