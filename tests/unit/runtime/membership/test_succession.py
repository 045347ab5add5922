"""The order of succession: whom an agent follows, and when it takes over as planner."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_runtime.contract import MemberState
from elasticjob_runtime.membership.succession import takeover_delay
from elasticjob_runtime.membership.view import Role, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    answers,
    case,
    decided,
    fails,
    make_failure,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
AS_C = make_plan("abc", me="c", ranks=None)
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
GONE = WorkersState.NONE


WATCH = {
    "nothing is known: follow": case("watch as follower", role=None),
    "registered first: plan": case("watch as planner", role=Role.FOLLOWER, plan=None),
    "another member registered before: follow it":
        case("wait", me="b", there="ab", role=Role.FOLLOWER, predecessor="a"),
    "the predecessor left: plan": case("watch as planner", me="b", there="b", role=Role.FOLLOWER, predecessor="a"),
    "the predecessor is leaving: plan":
        case("watch as planner", me="b", there=members("ab", a=LEAVING), role=Role.FOLLOWER, predecessor="a"),
    "the followed member registered later in a store that is empty again: find the predecessor":
        case("watch as follower", me="a", there="ab", role=Role.FOLLOWER, predecessor="b"),
    "a member that follows itself in a store that is empty again: find the predecessor":
        case("watch as follower", me="a", there="a", role=Role.FOLLOWER, predecessor="a"),
    "rank 0 plans": case("watch as planner", plan=PLAN, role=Role.FOLLOWER, predecessor="b"),
    "rank 1 follows rank 0": case("watch as follower of a", me="b", plan=AS_B, role=Role.PLANNER),
    "rank 1 follows rank 0 already: nothing changes": case("wait", plan=AS_B, **FOLLOWER),
    "rank 0 left: rank 1 plans": case("watch as planner", there="bc", plan=AS_B, **FOLLOWER),
    "rank 0 is leaving: rank 1 plans": case("watch as planner", there=members("abc", a=LEAVING), plan=AS_B, **FOLLOWER),
    "rank 0 was replaced by another agent of its name: rank 1 plans":
        case("watch as planner", there=members("abc", a={"incarnation": "a2", "create": 200}), plan=AS_B, **FOLLOWER),
    "a spare follows the leader":
        case("watch as follower of b", there="ab", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
    "a joiner under the leader's name does not follow itself":
        case("watch as planner", me="b", there=members("b", b={"create": 200, "incarnation": "b1"}),
            plan=make_plan("bc", me="x", ranks=None), workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
    "a failure unanswered for a while: watch as planner":
        case("watch as planner", plan=AS_B, workers=fails(AS_B, "b", ago=0.2), reported_failure=1, **FOLLOWER),
    "the leader is suspected: the next member watches as planner at once, to probe it":
        case("watch as planner", plan=AS_B, suspicions=(suspicion("a", "c", ago=0.0),), **FOLLOWER),
    "the leader is suspected: the member after the next one waits":
        case("wait 0.05 s", me="c", plan=AS_C, suspicions=(suspicion("a", "b", ago=0.1),), role=Role.FOLLOWER,
            predecessor="b"),
    "another member is suspected: left to the leader":
        case("wait", plan=AS_B, suspicions=(suspicion("c", "a", ago=9.0),), **FOLLOWER),
}  # fmt: skip


RESTORE = {
    "the store is empty again: the leader restores the plan": case("restore plan 1", there="a", workers=runs(PLAN)),
    "the store is empty again: the others wait for the leader":
        case("wait 4 s", me="b", there=members("b", b={"seen_at": NOW - 1}), workers=runs(AS_B)),
    "the store is empty again, and the leader is gone: the next member restores the plan":
        case("restore plan 1", me="b", there="bc", workers=runs(AS_B)),
    "that member has no rank in it: it plans":
        case("plan 2: b c, Start, 0 restarts", me="b", there="bc",
            workers=runs(dataclasses.replace(AS_B, rank=None))),
    "another member has followed a later plan: it restores nothing":
        case("wait 1 s", me="b", there=members("bc", b={"seen_at": NOW - 5}, c={"round": 2, "seen_at": NOW - 5}),
            workers=runs(AS_B)),
    "a leader of an earlier round restores nothing":
        case("wait 6 s", there=members("a", a={"seen_at": NOW}), workers=runs(PLAN, GONE), last_round=2),
}  # fmt: skip


LEAD = {
    "the leader plans": case("probe b", there="ab", plan=PLAN),
    "a follower does not plan":
        case("wait", there="bc", me="c", plan=make_plan("abc", me="c", ranks=None), role=Role.FOLLOWER,
            predecessor="b"),
    "a member watching as planner probes those before it":
        case("probe a", me="b", plan=make_plan("abc", me="b"), workers=fails(AS_B, "b", ago=1.0),
            failures=[make_failure("b")]),
    "the member before it responds: that one plans":
        case("wait 1 s", me="b", plan=make_plan("abc", me="b"), workers=fails(AS_B, "b", ago=1.0),
            failures=[make_failure("b")], probes=answers("a")),
    "the member before it does not respond: it plans":
        case("plan 2: b c, MemberLost, 0 restarts", me="b", plan=make_plan("abc", me="b"),
            workers=fails(AS_B, "b", ago=1.0), failures=[make_failure("b")],
            probes={**answers(silent="a"), **answers("c")}),
    "two members before it: both are probed":
        case("probe a b", me="c", plan=make_plan("abc", me="c"), workers=fails(make_plan("abc", me="c"), "c", ago=1.0),
            failures=[make_failure("c")]),
    "the member before it is leaving: it plans":
        case("plan 2: b c, MemberLeft, 0 restarts", me="b", there=members("abc", a=LEAVING),
            plan=make_plan("abc", me="b"), workers=runs(AS_B)),
}  # fmt: skip


TABLES = {"watch": WATCH, "restore": RESTORE, "lead": LEAD}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does


@pytest.mark.parametrize(("rank", "delay"), [(0, 0.0), (1, 0.15), (4, 0.6), (7, 1.05)])
def test_members_take_over_in_rank_order(rank: int, delay: float) -> None:
    names = [chr(0x100 + number) for number in range(101)]
    plan = make_plan("".join(names), me=names[rank])
    view = make_view(me=names[rank], there="", plan=plan)
    assert takeover_delay(view) == pytest.approx(delay)


@pytest.mark.parametrize("size", [20, 300, 3000])
def test_few_members_take_over_at_a_time_in_a_group_of_any_size(size: int) -> None:
    """When all earlier members are gone, each later one reads every member, so they must take over one by one."""
    names = [chr(0x100 + number) for number in range(size)]
    plan = make_plan("".join(names))
    delays = []
    for rank, name in enumerate(names):
        mine = dataclasses.replace(plan, rank=plan.ranks[name] if plan.ranks else None, ranks=None)
        delays.append(takeover_delay(make_view(me=name, there="", plan=mine)))
        assert rank < 8 or delays[-1] > delays[7], "out of order"
    for start in range(0, 30, 3):
        assert sum(start <= delay < start + 3 for delay in delays) <= 8 + 60, f"too many planners after {start} s"
    assert sum(delay < 5 for delay in delays) > 8, "no member takes over in time"


def test_a_spare_takes_over_last() -> None:
    spare = make_view(plan=SPARE, workers=Workers())
    assert takeover_delay(spare) > 8 * spare.settings.takeover_delay
