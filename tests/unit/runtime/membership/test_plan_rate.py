"""The first plans follow one another at once; a run that needs ever more gets them at a limited rate."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.plan_rate import AT_ONCE, interval, next_at
from elasticjob_runtime.membership.view import Role, View

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    decided,
    fails,
    make_plan,
    make_stop,
    make_view,
    members,
)

LARGE = 100
PLAN = make_plan("abc", round_number=9)
BETWEEN = interval(3)
SECOND = make_plan("abc", round_number=9, me="b", size=LARGE)


def lost(*ago: float, **fields: Any) -> View:
    """Member c is lost; the last plans were made so many seconds ago."""
    store = {"plans_at": tuple(NOW - item for item in ago), **fields.pop("store", {})}
    return make_view(there="ab", plan=PLAN, probes=answers("b"), store=store, **fields)


def last(number: int, ago: float) -> list[float]:
    """So many plans, all at that time."""
    return [ago] * number


PLANNED = "plan 10: a b, MemberLost, 0 restarts"
CASES = {
    "few plans before this one": Case(lost(*last(AT_ONCE - 1, ago=0.0)), PLANNED),
    "too many: it waits for its turn": Case(lost(*last(AT_ONCE, ago=0.0)), f"wait {BETWEEN:g} s"),
    "its turn has come": Case(lost(*last(AT_ONCE, ago=BETWEEN + 1e-6)), PLANNED),
    "many, but not in a short time":
        Case(lost(*(BETWEEN * (AT_ONCE - item) + 1e-6 for item in range(AT_ONCE))), PLANNED),
    "the first of them are about to count no more":
        Case(lost(BETWEEN * AT_ONCE - BETWEEN / 4, *last(AT_ONCE - 1, ago=0.0)), f"wait {BETWEEN / 4:g} s"),
    "the change was announced, and the workers have stopped":
        Case(lost(*last(AT_ONCE, ago=0.0), stop=make_stop(PLAN, PlanReason.MEMBER_LEFT, ago=100.0)),
            "plan 10: a b, MemberLeft, 0 restarts"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_plans_beyond_the_first_ones_wait_for_their_turn(name: str) -> None:
    assert decided(CASES[name].view) == CASES[name].does


def test_a_joiner_waits_for_its_turn_before_anyone_stops_for_it() -> None:
    full = make_view(
        there=members("abc", c={"seen_at": NOW - 60}),
        plan=make_plan("ab", round_number=9),
        probes=answers("bc"),
        store={"plans_at": (NOW,) * AT_ONCE},
    )
    assert decided(full) == f"wait {interval(2):g} s"


def test_a_wait_says_how_often_plans_are_made_and_what_comes_next() -> None:
    reason = decide(lost(*last(AT_ONCE, ago=0.0)), NOW).reason
    assert f"one every {BETWEEN:g} s for 3 members" in reason
    assert "then writing plan 10" in reason


def test_the_others_do_not_take_over_while_the_planner_waits_for_its_turn() -> None:
    failed_ago = 0.2  # else the second member would take over now: see test_succession.py

    def second_member(*plans_at: float) -> View:
        return make_view(
            me="b",
            plan=SECOND,
            workers=fails(SECOND, "b", ago=failed_ago),
            reported_failure=9,
            role=Role.FOLLOWER,
            predecessor="a",
            store={"plans_at": plans_at},
        )

    assert decided(second_member(NOW - failed_ago)) == "watch as planner"
    assert decided(second_member(*(NOW - failed_ago,) * AT_ONCE)).startswith("wait ")


def test_in_the_long_run_there_is_one_plan_in_each_interval() -> None:
    made: list[float] = []
    for _ in range(50):
        view = make_view(plan=PLAN, store={"plans_at": tuple(made[-AT_ONCE:])})
        made.append(max(made[-1] if made else NOW, next_at(view)))
    gaps = [after - before for before, after in itertools.pairwise(made)]
    assert gaps[: AT_ONCE - 1] == [0.0] * (AT_ONCE - 1)
    assert gaps[AT_ONCE - 1 :] == [pytest.approx(BETWEEN)] * (50 - AT_ONCE)
