"""Planned changes: workers that handle SIGTERM save before the next round is planned; all others are as quick as ever."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import MemberState, PlanReason, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import (
    ProposePlan,
    ProposeStop,
)
from elasticjob_runtime.membership.view import (
    Role,
    WorkersState,
)

from tests.unit.runtime.membership.builders import (
    NOW,
    SUCCEEDED,
    Case,
    answers,
    fails,
    make_failure,
    make_member,
    make_plan,
    make_stop,
    make_view,
    members,
    runs,
    told,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
FOUR = {"min": 2, "max": 4}
SAVES: dict[str, Any] = {"saves": True}
SAVED: dict[str, Any] = {"saves": True, "saved": 1}
LEAVES: dict[str, Any] = {"saves": True, "state": MemberState.LEAVING}
NOT_HEARD = answers("b", reachable=False)
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING, NONE, FAILED, DONE = WorkersState.STOPPING, WorkersState.NONE, WorkersState.FAILED, WorkersState.SUCCEEDED


def joins(**changed: Any) -> Any:
    return members("abcd", **changed)


def stopped(**fields: Any) -> Any:
    """The planner's view while the others save for d, who joined."""
    fields.setdefault("workers", runs(PLAN, NONE))
    ago = fields.pop("ago", 1.0)
    return make_view(plan=PLAN, settings=FOUR, store={"stop": make_stop(PLAN, ago=ago)}, **fields)


PLANNER = {
    "a join, and nobody handles SIGTERM: the plan comes at once": Case(
        make_view(there=joins(), plan=PLAN, settings=FOUR, probes=answers("d")), "plan 2: a b c d, MemberJoined, 0 restarts"
    ),
    "a join, and one member's workers can save": Case(
        make_view(there=joins(b=SAVES), plan=PLAN, settings=FOUR, probes=answers("d")), "stop for MemberJoined"
    ),
    "a smaller group is wanted": Case(
        make_view(there=members("abc", c=SAVES), plan=PLAN, spec=SpecValue(min=2, max=2)), "stop for Resized"
    ),
    "a member leaves, which can save": Case(make_view(there=members("abc", b=LEAVES), plan=PLAN), "stop for MemberLeft"),
    "a member is drained": Case(
        make_view(there=members("abc", b=SAVES), plan=PLAN, spec=SpecValue(min=2, max=3, draining=["c"])), "stop for MemberLeft"
    ),
    "too few are left: they save with the one that leaves all the same": Case(
        make_view(there=members("abc", b=LEAVES), plan=PLAN, settings={"min": 3}), "stop for MemberLeft"
    ),
    "a lost member: nothing is left to save": Case(
        make_view(there=members("bc", b=SAVES, c=SAVES), me="b", plan=make_plan("abc", me="b"), probes=answers("bc")),
        "plan 2: b c, MemberLost, 0 restarts",
    ),
    "a failed worker: nothing is left to save": Case(
        make_view(there=members("abc", b=SAVES), plan=PLAN, failures=[make_failure("b")], probes=answers("bc")),
        "plan 2: a b c, WorkerFailed, 1 restarts",
    ),
    "no grace is given: the plan comes at once": Case(
        make_view(there=joins(b=SAVES), plan=PLAN, settings={**FOUR, "shutdown_grace": 0.0}, probes=answers("d")),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "who saves is waited for, for the grace and a moment": Case(stopped(there=joins(b=SAVES)), "wait 31 s"),
    "all have saved": Case(stopped(there=joins(a=SAVED, b=SAVED)), "plan 2: a b c d, MemberJoined, 0 restarts"),
    "the grace is over": Case(stopped(there=joins(b=SAVES), ago=32.0), "plan 2: a b c d, MemberJoined, 0 restarts"),
    "who leaves is waited for": Case(stopped(there=members("abc", b=LEAVES)), "wait 31 s"),
    "who left has gone, and is no lost "
    "member": Case(stopped(there=members("ac")), "plan 2: a c, MemberJoined, 0 restarts"),
    "who died while it saved is not waited for": Case(
        stopped(there=joins(b=SAVES), probes=NOT_HEARD), "plan 2: a c d, MemberJoined, 0 restarts"
    ),
    "who was started again meanwhile has nothing to save": Case(
        stopped(there=joins(b={"incarnation": "b2", "saves": True})), "plan 2: a c b d, MemberJoined, 0 restarts"
    ),
    "a worker that fails because its peer stopped is no failure": Case(
        stopped(there=joins(a=SAVED), failures=[make_failure("b")]), "plan 2: a b c d, MemberJoined, 0 restarts"
    ),
    "all came to their end meanwhile": Case(
        stopped(there=members("abc", **{name: {"state": MemberState.SUCCEEDED, "round": 1} for name in "abc"}), workers=runs(PLAN, DONE)),
        "outcome succeeded",
    ),
    "too few are there when all have saved": Case(stopped(there=members("a", a=SAVED)), "wait"),
    "the word of an earlier plan says nothing": Case(
        make_view(plan=PLAN, store={"stop": make_stop(make_plan("abc", attempt="old"))}), "wait"
    ),
}  # fmt: skip


def member(**fields: Any) -> Any:
    """What b sees, a member whose workers run. `mine`: fields of its member key; `told`: the store says that a change
    is planned."""
    there = {name: made for name, made in members("abc", b=fields.pop("mine", {})).items() if name in "ab"}
    store = fields.pop("store", {})
    if fields.pop("told", True):
        store = {"stop": make_stop(AS_B), **store}
    return make_view(there=there, store=store, **{**FOLLOWER, "plan": AS_B, **fields})


AFTER = make_plan("abcd", round_number=2, me="b", reason=PlanReason.MEMBER_JOINED)
CRASHED = make_plan("abc", round_number=2, me="b", reason=PlanReason.WORKER_FAILED)
LATER = make_plan("abcd", round_number=3, me="b", reason=PlanReason.MEMBER_JOINED)
WITHOUT = make_plan("acd", round_number=2, me="b", reason=PlanReason.RESIZED)
CAN = runs(AS_B, saves=True)
AT_IT = runs(AS_B, STOPPING, saves=True, saving=True)

MEMBER = {
    "its workers handle SIGTERM: the others are told, once": Case(
        member(workers=CAN, told=False), "say ready of round 0, saves"
    ),
    "the others know": Case(member(workers=CAN, mine=SAVES, told=False), "wait"),
    "a change is planned: its workers get time": Case(member(workers=CAN, mine=SAVES), "stop, 30 s to save"),
    "they save": Case(member(workers=AT_IT, mine=SAVES), "wait"),
    "they have saved": Case(member(workers=runs(AS_B, NONE), mine=SAVES), "say ready of round 0, saved 1"),
    "that is said once, and the workers stay where they are": Case(
        member(workers=runs(AS_B, NONE), mine=SAVED), "wait"
    ),
    "no handler in these workers yet: nobody need wait": Case(member(mine=SAVES), "say ready of round 0, saved 1"),
    "workers that cannot save train on for those that do": Case(member(), "wait"),
    "they fail when their peers have gone: that is no failure": Case(member(workers=fails(AS_B, "b")), "wait"),
    "the plan comes: the old workers are gone": Case(
        member(workers=runs(AS_B, NONE), mine=SAVED, plan=AFTER, told=False), "start plan 2"
    ),
    "the plan comes: workers that cannot save are killed": Case(
        member(workers=runs(AS_B), plan=AFTER, told=False), "stop"
    ),
    "the plan comes at the grace's end: nobody saves any longer": Case(
        member(workers=AT_IT, mine=SAVES, plan=AFTER, told=False), "stop"
    ),
    "the plan comes unannounced: who can save, may": Case(
        member(workers=CAN, mine=SAVES, plan=AFTER, told=False), "stop, 30 s to save"
    ),
    "who is not in the plan may save, too": Case(
        member(workers=CAN, mine=SAVES, plan=WITHOUT, told=False), "stop, 30 s to save"
    ),
    "a failure's plan: at once": Case(member(workers=CAN, mine=SAVES, plan=CRASHED, told=False), "stop"),
    "a plan was missed: at once": Case(member(workers=CAN, mine=SAVES, plan=LATER, told=False), "stop"),
    "the store forgot that a change was planned": Case(
        member(workers=runs(AS_B, NONE), mine=SAVED, told=False), "say ready of round 2"
    ),
    "the job ends meanwhile: its workers may save": Case(
        member(workers=AT_IT, mine=SAVES, store={"outcome": SUCCEEDED}), "wait"
    ),
    "another agent has its name: nobody saves any longer": Case(
        member(workers=AT_IT, mine=SAVES, store={"replaced_by": "b2"}), "stop"
    ),
}


@pytest.mark.parametrize("name", PLANNER)
def test_the_planner_lets_workers_save_before_a_planned_change(name: str) -> None:
    case = PLANNER[name]
    assert told(decide(case.view, NOW)) == case.does


@pytest.mark.parametrize("name", MEMBER)
def test_a_member_lets_its_workers_save_before_a_planned_change(name: str) -> None:
    case = MEMBER[name]
    assert told(decide(case.view, NOW)) == case.does


def test_the_cause_is_the_moment_of_the_request_not_of_the_plan_after_the_saving() -> None:
    there = members("abc", b={**LEAVES, "changed_at": 5.0})
    proposed = decide(make_view(there=there, plan=PLAN), NOW)
    assert isinstance(proposed, ProposeStop)
    assert proposed.stop.caused_at == 5.0
    planned = decide(stopped(there=members("ac")), NOW)
    assert isinstance(planned, ProposePlan)
    assert planned.caused_at == 7.0


def test_a_joiner_that_saves_is_not_waited_for() -> None:
    there = {**joins(a=SAVED), "e": make_member("e", saves=True)}
    assert told(decide(stopped(there=there), NOW)).startswith("plan 2: a b c d")
