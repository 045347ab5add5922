"""What an agent expects of worker processes that continue in place, and when it gives one up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from elasticjob_runtime.workers.followers import (
    ACK_TIMEOUT,
    ARRIVE_TIMEOUT,
    ARRIVED,
    ENTERED,
    FAILED,
    HEARD,
    START_TIMEOUT,
    WAITING,
    Followers,
    PlanReport,
)

from tests.unit.runtime.membership.builders import make_plan

PLAN, NEXT = make_plan("ab"), make_plan("ab", round_number=2)
ATTEMPT, NEXT_ATTEMPT = PLAN.value.attempt, NEXT.value.attempt


def report(local_rank: int, state: str, attempt: str) -> PlanReport:
    return PlanReport(local_rank=local_rank, state=state, round=1, attempt=attempt, at=0.0)


class Bench:
    def __init__(self, **timeouts: float) -> None:
        self.sent: list[tuple[int, Mapping[str, Any]]] = []
        self.followers = Followers(lambda rank, message: self.sent.append((rank, message)), **timeouts)

    def entered(self, *local_ranks: int) -> Followers:
        """Worker processes that are in the world of PLAN."""
        for rank in local_ranks:
            self.followers.starts(rank, 0.0, alone=False, awaited=False)
            self.followers.said_hello(rank)
            self.followers.tell(rank, PLAN, 0.0, {"RANK": str(rank), "HOME": "/"}, 0.0)
            self.followers.reported(report(rank, ENTERED, ATTEMPT), 0.0)
        return self.followers


def test_a_process_is_told_its_place_in_the_plan_and_nothing_else() -> None:
    bench = Bench()
    bench.entered(0)
    rank, message = bench.sent[0]
    assert (rank, message["round"], message["attempt"], message["environment"]) == (0, 1, ATTEMPT, {"RANK": "0"})


def test_a_process_outside_the_plan_is_told_so() -> None:
    bench = Bench()
    followers = bench.entered(0)
    followers.tell(0, NEXT, 0.5, None, 0.0)
    assert (bench.sent[-1][1]["environment"], bench.sent[-1][1]["patience"]) == (None, 0.5)


def test_a_process_that_says_nothing_is_given_up() -> None:
    followers = Bench().entered(0, 1)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    followers.tell(1, NEXT, 0.0, {}, 10.0)
    followers.reported(report(0, HEARD, NEXT_ATTEMPT), 10.1)
    assert followers.deadline == 10.0 + ACK_TIMEOUT
    assert followers.overdue(10.0 + ACK_TIMEOUT) == {1: "did not respond to a plan within 2 s"}
    assert followers.overdue(10.0 + ACK_TIMEOUT) == {}


def test_a_process_that_hears_but_does_not_leave_its_step_is_given_up_later() -> None:
    followers = Bench().entered(0)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    followers.reported(report(0, HEARD, NEXT_ATTEMPT), 10.1)
    assert followers.deadline == 10.1 + ARRIVE_TIMEOUT
    followers.reported(report(0, ARRIVED, NEXT_ATTEMPT), 11.0)
    assert followers.deadline is None


@pytest.mark.parametrize(("seconds", "deadline"), [(5.0, 15.0), (600.0, 610.0), (0.0, None)])
def test_both_timeouts_can_be_set_and_disabled(seconds: float, deadline: float | None) -> None:
    followers = Bench(ack_timeout=seconds).entered(0)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    assert followers.deadline == deadline
    followers = Bench(arrive_timeout=seconds).entered(0)
    followers.tell(0, NEXT, 0.0, {}, 9.0)
    followers.reported(report(0, HEARD, NEXT_ATTEMPT), 10.0)
    assert followers.deadline == deadline


def test_a_process_that_does_not_end_its_step_is_reported_as_such() -> None:
    followers = Bench().entered(0)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    followers.reported(report(0, HEARD, NEXT_ATTEMPT), 10.0)
    assert followers.overdue(10.0 + ARRIVE_TIMEOUT) == {0: "did not end its step within 30 s"}


def test_a_process_that_loads_its_data_before_its_first_step_is_not_given_up() -> None:
    followers = Bench().followers
    followers.starts(0, 0.0, alone=False, awaited=False)
    followers.said_hello(0)
    followers.tell(0, PLAN, 0.0, {}, 0.0)
    followers.reported(report(0, HEARD, ATTEMPT), 0.1)
    assert followers.deadline is None


def test_a_replacement_that_others_wait_for_is_given_up_if_it_never_starts() -> None:
    followers = Bench().followers
    followers.starts(0, 0.0, alone=True, awaited=True)
    followers.said_hello(0)
    assert followers.overdue(START_TIMEOUT) == {0: "did not start and take its first batch within 1800 s"}


def test_a_spare_that_others_begin_to_wait_for_is_given_up_if_it_never_starts() -> None:
    followers = Bench().followers
    followers.starts(0, 0.0, alone=True, awaited=False)
    assert followers.deadline is None
    followers.others_wait(100.0)
    assert followers.deadline == 100.0 + START_TIMEOUT


def test_only_processes_that_were_in_a_world_or_have_one_of_their_own_need_no_restart() -> None:
    followers = Bench().entered(0)
    assert followers.movable
    followers.starts(1, 0.0, alone=True, awaited=False)
    assert (followers.movable, followers.proven) == (True, 1)
    followers.starts(2, 0.0, alone=False, awaited=False)
    followers.said_hello(2)
    assert not followers.movable


def test_a_process_that_is_done_before_it_enters_the_plan_leaves_a_world_that_cannot_be_formed() -> None:
    followers = Bench().entered(0, 1)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    followers.tell(1, NEXT, 0.0, {}, 10.0)
    followers.ended(0, done=True)
    assert (followers.count(FAILED), followers.movable, followers.proven) == (1, True, 1)
    followers.starts(0, 11.0, alone=True, awaited=True)
    assert followers.count(FAILED) == 0


def test_a_process_that_is_done_leaves_the_others_in_their_world() -> None:
    followers = Bench().entered(0, 1)
    followers.ended(0, done=True)
    assert (followers.count(FAILED), followers.count(ENTERED)) == (0, 1)


def test_reports_about_an_earlier_plan_are_ignored() -> None:
    followers = Bench().entered(0)
    followers.tell(0, NEXT, 0.0, {}, 10.0)
    assert not followers.reported(report(0, FAILED, ATTEMPT), 10.0)
    assert followers.reported(report(0, WAITING, NEXT_ATTEMPT), 10.0)
    assert (followers.count(FAILED), followers.count(WAITING)) == (0, 1)
