"""A status is written once a second at most, and what actions wait for at once."""

from __future__ import annotations

import pytest
from elasticjob_api import ConditionType, FailingNode, Failure, RendezvousStatus, Restarts, Status
from elasticjob_operator.controller.status_throttle import (
    FOLLOW_UP_SECONDS,
    STATUS_SECONDS,
    actions_wait,
    as_written,
    seconds_to_hold,
)

from tests.unit.operator.builders import at, make_status

OF_A_POD = Failure(worker="digits-worker-1", exit_code=1, reason="ApplicationError", time=at(0))
OF_A_RANK = Failure(worker="digits-worker-1", rank=3, exit_code=1, reason="ApplicationError", time=at(0))


def _run(run_id: str) -> RendezvousStatus:
    return RendezvousStatus(id=run_id, backend="c10d", endpoint="digits-worker-0.digits.ml.svc:29400")


TRAINS = make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, workers="4/4", rendezvous=_run("8c-1"))

HELD = {
    "a count": TRAINS.model_copy(update={"workers": "3/4"}),
    "a condition": make_status(ConditionType.ACCEPTED, ConditionType.RESTARTING),
    "a restart that the agents made": TRAINS.model_copy(
        update={"restarts": Restarts(total=1), "last_failure": OF_A_RANK}
    ),
}
AT_ONCE = {
    "a failed pod is deleted once it is counted": TRAINS.model_copy(
        update={"restarts": Restarts(total=1), "last_failure": OF_A_POD}
    ),
    "pods go once the job has succeeded": make_status(ConditionType.SUCCEEDED),
    "pods go once the job has failed": make_status(ConditionType.FAILED),
    "a job that rests can begin a new run": make_status(ConditionType.SUSPENDED),
    "pods go once the next attempt is known": TRAINS.model_copy(update={"rendezvous": _run("8c-1.2")}),
    "a run uses its etcd tier once it is written which": TRAINS.model_copy(
        update={"rendezvous": _run("8c-1").model_copy(update={"tier": "t0"})}
    ),
    "a slow rank's pod goes once its node is marked": TRAINS.model_copy(
        update={"failing_nodes": (FailingNode(name="b", failures=3, last_time=at(0), check="slow: rank 1 in digits"),)}
    ),
}


@pytest.mark.parametrize("what", HELD)
def test_a_status_that_no_action_waits_for_is_written_once_a_second(what: str) -> None:
    assert not actions_wait(TRAINS, HELD[what])
    assert seconds_to_hold(TRAINS, HELD[what], since=0.0) == STATUS_SECONDS
    assert seconds_to_hold(TRAINS, HELD[what], since=0.75) == pytest.approx(0.25)
    assert seconds_to_hold(TRAINS, HELD[what], since=STATUS_SECONDS) == 0.0, "and after a quiet second at once"
    assert seconds_to_hold(TRAINS, HELD[what], since=float("inf")) == 0.0, "the first ever"


@pytest.mark.parametrize("what", AT_ONCE)
def test_a_status_that_actions_wait_for_is_written_at_once(what: str) -> None:
    assert seconds_to_hold(TRAINS, AT_ONCE[what], since=0.0) == 0.0


def test_a_reconciliation_with_actions_leaves_its_status_to_the_next() -> None:
    """Which is woken by what was done: accepted, and four workers, is one write."""
    changed = HELD["a count"]
    assert seconds_to_hold(TRAINS, changed, since=100.0, done=True) == FOLLOW_UP_SECONDS, (
        "the longest, if nothing wakes it"
    )
    assert seconds_to_hold(TRAINS, changed, since=0.25, done=True) == 0.75
    assert seconds_to_hold(TRAINS, changed, since=100.0, done=True, held=STATUS_SECONDS) == 0.0, (
        "a second at most, however much is done"
    )
    for name, wanted in AT_ONCE.items():
        assert seconds_to_hold(TRAINS, wanted, since=0.0, done=True) == 0.0, name


def test_a_failure_already_written_does_not_force_a_write() -> None:
    written = TRAINS.model_copy(update={"last_failure": OF_A_POD})
    assert not actions_wait(written, written.model_copy(update={"workers": "3/4"}))


def test_the_end_of_a_suspension_is_written_at_once() -> None:
    assert actions_wait(make_status(ConditionType.SUSPENDED), TRAINS)


def test_a_pending_status_is_what_will_be_read_back() -> None:
    """Policies compare times of status with those of plans: they must not see parts of a second that are gone once it
    is written."""
    held = as_written(TRAINS.model_copy(update={"start_time": at(0.75)}))
    assert held.start_time == at(0)
    assert as_written(held) == held == Status.model_validate(held.to_api())
