"""What ends while no operator looks, or ends only in part: the end is not forgotten, and what it holds is given
back."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob_runtime.contract import OutcomeState

from hack.support import eventually
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
