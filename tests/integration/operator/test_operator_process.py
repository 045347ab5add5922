"""The operator itself: killed in the middle, stopped, cut off from the API server, with the chart's rights alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Gate, Operator
from tests.integration.operator.rendezvous import Agents


def test_a_restarted_operator_continues_where_it_was_killed(
    ns: Namespace, operator: Operator, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=3)
    agents.plan(4, size=3, restart_count=2)
    eventually(lambda: ns.status("digits").get("restarts", {}).get("total") == 2, what="restarts")
    kept = {name: pod["metadata"]["uid"] for name, pod in ns.workers().items()}
    operator.kill()
    # While no operator runs: a pod is deleted, a pod fails, the job is scaled, the agents continue.
    ns.delete("pods", "digits-worker-0")
    ns.end("digits-worker-1", 143, at=rfc3339())
    ns.scale("digits", 4)
    agents.plan(6, size=1, restart_count=2)
    agents.progress(50)
    operator.restart()
    eventually(lambda: set(ns.workers()) == {f"digits-worker-{index}" for index in range(4)}, what="four workers")
    eventually(
        lambda: ns.workers().get("digits-worker-1", {}).get("status", {}).get("phase") == "Pending",
        what="the failed one is replaced",
    )
    assert ns.workers()["digits-worker-2"]["metadata"]["uid"] == kept["digits-worker-2"], "who trained is left alone"
    eventually(lambda: ns.status("digits").get("round") == 6, what="round")
    eventually(
        lambda: ns.status("digits")["restarts"]["total"] == 3, what="the agents' two, and the pod that failed meanwhile"
    )
    assert ns.status("digits")["progress"]["step"] == 50
    assert operator.stop() == 0, "it stops cleanly"
    assert "Traceback" not in operator.log_text()


def test_the_operator_continues_after_losing_the_api_server(
    ns: Namespace, gate: Gate, gated: Path, start_operator: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    operator = start_operator(gated)
    submit(replicas=2)
    submit("other", replicas=1)
    eventually(lambda: len(ns.workers()) == 3, what="worker pods")
    gate.shut()
    ns.delete("pods", "digits-worker-0")
    ns.delete("elasticjobs", "other")
    ns.scale("digits", 3)
    eventually(lambda: "other-worker-0" not in ns.workers(), what="the garbage collector took the other job's pod")
    assert operator.probe("/healthz") == 200, "an API server that is away is no fault of ours"
    gate.open()
    eventually(
        lambda: set(ns.workers()) == {f"digits-worker-{index}" for index in range(3)}, what="three workers", timeout=150
    )
    gate.cut()
    ns.scale("digits", 2)
    eventually(
        # A pod that was created in the moment before the deletion was seen is the garbage collector's.
        lambda: set(ns.workers()) == {"digits-worker-0", "digits-worker-1"},
        what="two workers and no pod of the deleted job: the watches came back",
        timeout=150,
    )
