"""A member that is present and not ready is published once that lasts, so that users can look why."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import MemberState, UnreadyValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import PublishUnready
from elasticjob_runtime.membership.eligibility import describe as state_of
from elasticjob_runtime.membership.unready import SHOWN, UNREADY_SECONDS
from elasticjob_runtime.membership.view import Role

from tests.unit.runtime.membership.builders import NOW, Case, answers, decided, make_plan, make_view, members, runs

LATE, SOON = NOW - UNREADY_SECONDS, NOW - UNREADY_SECONDS + 5
IN_PLACE = make_plan("ab", round_number=3, in_place=True, agent_store=True)
RESTARTS = make_plan("ab", round_number=3, agent_store=True)
C = UnreadyValue(members=["c"], since=7.0)


def planner(plan: Any = IN_PLACE, *, seen_at: float = LATE, known: UnreadyValue | None = None, **c: Any) -> Any:
    """a and b train; c is present, and says what `c` has."""
    store = {"plans_at": (c.pop("planned_at", LATE),), "unready": known}
    settings = c.pop("settings", {})
    there = members("abc", a={"stores": True}, c={"changed_at": 7.0, "seen_at": seen_at, **c})
    return make_view(
        there=there, plan=plan, store=store, stores=True,
        workers=runs(plan, in_place=plan.value.in_place, movable=plan.value.in_place),
        probes=answers("bc"), settings=settings,
    )  # fmt: skip


WARMING: dict[str, Any] = {"state": MemberState.WARMING}
READY: dict[str, Any] = {"in_place": 3}
CASES = {
    "it starts for a long time": Case(planner(), "unready: c since 7"),
    "it has not for long": Case(planner(seen_at=SOON), "wait 5 s"),
    "the plan that it is to join is new": Case(planner(planned_at=SOON), "wait 5 s"),
    "it imports, or has failed alone": Case(planner(**WARMING), "unready: c since 7"),
    "the same where processes restart": Case(planner(RESTARTS, **WARMING), "unready: c since 7"),
    "it is published already": Case(planner(known=C), "wait"),
    "the plan is new again, and it is not ready yet": Case(planner(known=C, planned_at=NOW), "wait"),
    "it is ready": Case(planner(known=C, **READY), "plan 4: a b c, MemberJoined, 0 restarts, in place"),
    "it leaves": Case(planner(known=C, state=MemberState.LEAVING), "none is unready"),
    "no more members are wanted": Case(planner(settings={"max": 2}), "wait"),
    "no more are wanted any longer": Case(planner(known=C, settings={"max": 2}), "none is unready"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_member_that_stays_unready_is_published(name: str) -> None:
    assert decided(CASES[name].view) == CASES[name].does


def test_it_is_published_with_the_failure_that_keeps_it_out() -> None:
    action = decide(planner(failed=2, failure="OSError: no GPU", **WARMING), NOW)
    assert isinstance(action, PublishUnready)
    assert action.unready == UnreadyValue(members=["c"], since=7.0, failure="OSError: no GPU")


def test_the_value_stays_short_and_about_the_same_member() -> None:
    names = "abcdefghijklmnopq"
    there = members(names, a={"stores": True}, **{name: {"changed_at": 9.0} for name in names[2:]})
    before = UnreadyValue(members=["k"], since=3.0)
    view = make_view(
        there=there, plan=IN_PLACE, store={"plans_at": (LATE,), "unready": before}, settings={"max": 20},
        stores=True, workers=runs(IN_PLACE, in_place=True, movable=True),
    )  # fmt: skip
    action = decide(view, NOW)
    assert isinstance(action, PublishUnready)
    assert action.unready is not None
    assert (action.unready.members[:3], action.unready.since) == (["k", "c", "d"], 3.0)
    assert len(action.unready.members) == SHOWN


@pytest.mark.parametrize(("ready_for", "words"), [(0, "until the worker processes are ready"), (3, "needs no more")])
def test_the_log_of_a_member_outside_the_plan_says_whether_it_is_ready(ready_for: int, words: str) -> None:
    plan = make_plan("ab", me="c", ranks=None, round_number=3, in_place=True)
    there = members("bc", c={"in_place": ready_for})
    assert words in state_of(make_view(me="c", there=there, plan=plan, role=Role.FOLLOWER, predecessor="b"))
