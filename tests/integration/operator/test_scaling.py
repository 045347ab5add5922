"""The number of worker pods: `kubectl scale`, allowed sizes, the scale-up delay and the autoscaler."""

from __future__ import annotations

import uuid
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


def indices(ns: Namespace) -> set[str]:
    return {name.rpartition("-")[2] for name, pod in ns.workers().items() if "deletionTimestamp" not in pod["metadata"]}


def test_status_shows_a_resize_until_training_has_the_new_size(ns: Namespace, training: Callable[..., Agents]) -> None:
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


def test_sizes_that_are_not_allowed_are_rounded_down(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2, allowedReplicas=[2, 4])
    ns.scale("digits", 3)
    ns.scale("digits", 5)
    eventually(lambda: len(ns.workers()) == 4, what="four workers")
    spec = eventually(lambda: (known := agents.spec()) and known.wanted == 4 and known, what="the agents are told")
    assert spec
    assert spec.allowed == [2, 4]
    eventually(lambda: ns.status("digits")["workers"] == "2/4", what="status says so")


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


def test_scaling_down_tells_the_agents_before_it_deletes_pods(ns: Namespace, training: Callable[..., Agents]) -> None:
    node = f"node-{uuid.uuid4().hex[:6]}"
    ns.add_node(node)
    agents = training(replicas=2, node=node)
    ns.scale("digits", 4)
    eventually(lambda: indices(ns) == {"0", "1", "2", "3"}, what="four workers")
    for pod in ("digits-worker-2", "digits-worker-3"):
        ns.run(pod, node)
    told = eventually(lambda: (spec := agents.spec()) and spec.wanted == 4 and spec, what="the agents are told to grow")
    assert told
    draining = [ns.pod_name(host) for host in ("digits-worker-2", "digits-worker-3")]
    agents.plan(2, size=4)
    eventually(lambda: ns.status("digits")["worldSize"] == 4, what="world size")
    eventually(lambda: ns.status("digits")["workers"] == "4/4", what="all are ready")

    ns.scale("digits", 2)
    eventually(lambda: indices(ns) == {"0", "1"}, what="the highest two are deleted")
    # Bound pods stay until their kubelet ends them, so this is what the agents knew when SIGTERM came.
    spec = agents.spec()
    assert spec is not None
    assert (spec.wanted, spec.draining) == (2, draining)
    assert ns.workers()["digits-worker-2"]["metadata"]["deletionGracePeriodSeconds"] == 30, (
        "they get their time to save"
    )
    for pod in ("digits-worker-2", "digits-worker-3"):
        ns.remove(pod)
    eventually(lambda: (spec := agents.spec()) and spec.draining == [], what="no member is draining")
    assert ns.status("digits")["restarts"]["total"] == 0
    ns.remove_node(node)


def test_scaling_up_uses_the_lowest_free_index(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=3)
    ns.scale("digits", 1)
    eventually(lambda: indices(ns) == {"0"}, what="one worker")
    ns.scale("digits", 2)
    eventually(lambda: indices(ns) == {"0", "1"}, what="index 1 again")
    assert ns.status("digits")["selector"] == "elasticjob.dev/job-name=digits,elasticjob.dev/component=worker"
