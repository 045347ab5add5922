"""A job in a queue: nothing is held while it waits, it goes where it is admitted, and comes back from a preemption as
another run.

The queue is tests/integration/operator/queue.py, which acts as Kueue does; Kueue itself is not here. The contract:
docs/guides/queueing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticjob_runtime.contract import OutcomeState

from hack.support import eventually
from tests.integration.operator.conftest import TEMPLATE
from tests.integration.operator.kube import Json, Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.queue import QUEUE, PodSet, Queue, queued
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.shared import operator
from tests.integration.operator.test_workers import nodes

__all__ = ["nodes", "operator"]

LONG = 90.0


def manifest(endpoint: str, **spec: Any) -> Json:
    """As its user writes it."""
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "labels": {QUEUE: "research"}},
        "spec": {
            "workers": {"replicas": 4, "minReplicas": 2, "maxReplicas": 4, "template": TEMPLATE},
            "rendezvous": {"type": "External", "endpoint": endpoint},
            **spec,
        },
    }


def environment(pod: Json) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][0]["env"]}


def on(pool: str, count: int) -> PodSet:
    """Admitted to a flavor of nodes."""
    return PodSet(
        count=count,
        node_selector={"pool": pool},
        tolerations=({"key": "spot", "operator": "Exists", "effect": "NoSchedule"},),
        labels={"kueue.x-k8s.io/podset": "main"},
        annotations={"kueue.x-k8s.io/workload": "digits"},
    )


def assert_placed(pod: Json, pool: str) -> None:
    """It is where it was admitted to."""
    assert pod["spec"]["nodeSelector"] == {"pool": pool}
    assert "spot" in [toleration.get("key") for toleration in pod["spec"]["tolerations"]]
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "digits"


def assert_whole(job: Json) -> None:
    """Every condition says why, in a word and a sentence, and of which spec it speaks."""
    assert len(job["status"]["conditions"]) >= 5
    for condition in job["status"]["conditions"]:
        assert condition["reason"]
        assert condition["message"]
        assert condition["observedGeneration"] == job["metadata"]["generation"], condition["type"]


def test_queued_job_holds_nothing_goes_where_it_is_admitted_and_returns_from_preemption(
    ns: Namespace, operator: Operator, endpoint: str, nodes: tuple[str, str], agents_of: Callable[[str], Agents]
) -> None:
    assert operator
    ns.create("elasticjobs", queued(manifest(endpoint)))
    queue = Queue(ns, "digits")
    original = ns.job("digits")["spec"]["workers"]
    eventually(lambda: ns.is_true("digits", "Suspended"), LONG, what="it waits")
    queue.reconcile()
    assert not queue.job.is_active()
    assert not ns.all("pods")
    assert not ns.all("services")

    queue.admit(on("a", count=3))
    eventually(lambda: len(ns.workers()) == 3, LONG, what="as many as were admitted")
    pod = ns.workers()["digits-worker-0"]
    assert_placed(pod, "a")
    accepted_at = ns.condition("digits", "Accepted")["lastTransitionTime"]
    uid, first = environment(pod)["ELASTICJOB_UID"], environment(pod)["PET_RDZV_ID"]
    for name in ns.workers():
        ns.run(name, nodes[0])
    agents = agents_of("digits")
    agents.plan(1, size=3)
    agents.progress(120, last_checkpoint_step=100)
    eventually(lambda: queue.job.pods_ready() and ns.status("digits").get("progress"), LONG, what="PodsReady")

    queue.preempt()
    assert queue.holds_quota(), "the pods are there still"
    assert ns.job("digits")["spec"]["workers"] == original, "template and size are restored in the same write"
    eventually(
        lambda: all("deletionTimestamp" in worker["metadata"] for worker in ns.workers().values()),
        LONG,
        what="the pods are to end",
    )
    eventually(
        lambda: ns.condition("digits", "Suspended").get("reason") == "Suspending", LONG, what="the operator says so"
    )
    queue.reconcile()
    assert queue.job.is_active()
    assert queue.holds_quota(), "until the last pod is gone"
    for name in ns.workers():
        ns.remove(name)
    eventually(queue.is_free, LONG, what="the quota is free")
    suspended = eventually(
        lambda: ns.is_true("digits", "Suspended") and ns.condition("digits", "Suspended"), LONG, what="Suspended"
    )
    assert suspended
    assert suspended["lastTransitionTime"] >= ns.condition("digits", "Accepted")["lastTransitionTime"]
    assert (ns.status("digits")["replicas"], ns.status("digits")["worldSize"]) == (0, 0)
    assert not queue.job.pods_ready()

    queue.admit(on("b", count=4))
    eventually(lambda: len(ns.workers()) == 4, LONG, what="all of them")
    pods = ns.workers().values()
    for pod in pods:
        assert_placed(pod, "b")
    assert {environment(item)["ELASTICJOB_UID"] for item in pods} == {uid}, "by which its checkpoints are found"
    (second,) = {environment(item)["PET_RDZV_ID"] for item in pods}
    assert second != first
    assert ns.status("digits")["progress"]["lastCheckpointStep"] == 100
    eventually(
        lambda: ns.status("digits").get("rendezvous", {}).get("id") == second, LONG, what="the new run in status"
    )
    agents_of("digits").outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    eventually(queue.hears_of_the_end, LONG, what="the queue hears of the end")
    assert ns.condition("digits", "Accepted")["lastTransitionTime"] == accepted_at, "it was so all the time"
    assert_whole(ns.job("digits"))
    assert queue.finished == ("All worker processes exited successfully.", True)
    assert not queue.holds_quota()
