"""What ends while no operator looks, or ends only in part: the end is not forgotten, and what it holds is given
back."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob_runtime.contract import OutcomeState

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents


def test_a_job_that_finished_unseen_stays_finished_without_its_pods(
    ns: Namespace, operator: Operator, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=2)
    operator.stop()
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    for name in ns.workers():
        ns.remove(name)
    operator.restart()
    eventually(lambda: ns.is_true("digits", "Succeeded"), 60, what="the end is read from etcd")
    assert ns.workers() == {}, "nothing was created again"


def test_a_job_with_its_end_in_status_never_runs_again_whatever_vanishes(
    ns: Namespace, operator: Operator, training: Callable[..., Agents], submit: Callable[..., str]
) -> None:
    agents = training(replicas=2)
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    eventually(lambda: ns.is_true("digits", "Succeeded"), what="Succeeded")
    operator.stop()
    for name in ns.workers():
        ns.remove(name)
    agents.lose_all_keys()
    operator.restart()
    submit(name="later")
    eventually(lambda: "later-worker-1" in ns.workers(), 60, what="the operator has looked")
    assert all(name.startswith("later-") for name in ns.workers())
    assert ns.is_true("digits", "Succeeded")


def test_a_job_whose_pods_vanished_continues_unless_etcd_has_an_outcome(
    ns: Namespace, operator: Operator, training: Callable[..., Agents]
) -> None:
    training(replicas=2)
    operator.stop()
    for name in ns.workers():
        ns.remove(name)
    operator.restart()
    eventually(lambda: len(ns.workers()) == 2, 60, what="new workers")


def test_a_sidecar_that_keeps_running_after_the_end_is_deleted(ns: Namespace, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2, template=TWO)
    agents.outcome(OutcomeState.SUCCEEDED, "WorkersSucceeded")
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": rfc3339(-60), "finishedAt": rfc3339()}}
    trainer = {"name": "trainer", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    for name in ns.workers():
        ns.patch("pods", name, {"status": {"containerStatuses": [trainer]}}, "status")
    eventually(lambda: ns.is_true("digits", "Succeeded"), what="Succeeded")
    assert ns.status("digits")["replicas"] == 2, "a queue must not give their GPUs away yet"
    eventually(lambda: ns.workers() == {}, 60, what="both pods are gone")
    eventually(lambda: ns.status("digits").get("replicas") == 0, what="and so are their GPUs")


TWO = {"spec": {"containers": [{"name": "trainer", "image": "none"}, {"name": "logger", "image": "none"}]}}
