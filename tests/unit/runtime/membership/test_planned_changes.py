"""Planned changes: worker processes that can save do so before the next round is planned; others are not delayed."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import MemberState, PlanReason, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import ProposePlan, ProposeStop
from elasticjob_runtime.membership.planned_changes import will_stay
from elasticjob_runtime.membership.view import Role, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    SUCCEEDED,
    Case,
    answers,
    case,
    describe,
    fails,
    make_failure,
    make_member,
    make_plan,
    make_stop,
    make_view,
    members,
    runs,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
FOUR = {"min": 2, "max": 4}
SAVES: dict[str, Any] = {"saves": True}
SAVED: dict[str, Any] = {"saves": True, "saved": 1}
LEAVES: dict[str, Any] = {"saves": True, "state": MemberState.LEAVING}
NOT_HEARD = answers(silent="b")
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING, NONE, FAILED, DONE = WorkersState.STOPPING, WorkersState.NONE, WorkersState.FAILED, WorkersState.SUCCEEDED


def joins(**changed: Any) -> Any:
    return members("abcd", **changed)


def stopped(**fields: Any) -> Any:
    """The planner's view while the others save because d joined."""
    fields.setdefault("workers", runs(PLAN, NONE))
    ago = fields.pop("ago", 1.0)
    return make_view(plan=PLAN, settings=FOUR, store={"stop": make_stop(PLAN, ago=ago)}, **fields)


PLANNER = {
    "a join, and no member can save: plan at once":
        case("plan 2: a b c d, MemberJoined, 0 restarts", there=joins(), plan=PLAN, settings=FOUR, probes=answers("d")),
    "a join, and a member can save: announce it":
        case("stop for MemberJoined", there=joins(b=SAVES), plan=PLAN, settings=FOUR, probes=answers("d")),
    "a smaller group is wanted: announce it":
        case("stop for Resized", there=members("abc", c=SAVES), plan=PLAN, spec=SpecValue(min=2, max=2)),
    "a member that can save leaves: announce it":
        case("stop for MemberLeft", there=members("abc", b=LEAVES), plan=PLAN),
    "a member is drained: announce it":
        case("stop for MemberLeft", there=members("abc", b=SAVES), plan=PLAN,
            spec=SpecValue(min=2, max=3, draining=["c"])),
    "too few are left: they save with the leaving member anyway":
        case("stop for MemberLeft", there=members("abc", b=LEAVES), plan=PLAN, settings={"min": 3}),
    "a lost member: plan at once":
        case("plan 2: b c, MemberLost, 0 restarts", there=members("bc", b=SAVES, c=SAVES), me="b",
            plan=make_plan("abc", me="b"), probes=answers("bc")),
    "a failed worker process: plan at once":
        case("plan 2: a b c, WorkerFailed, 1 restarts", there=members("abc", b=SAVES), plan=PLAN,
            failures=[make_failure("b")], probes=answers("bc")),
    "no grace period: plan at once":
        case("plan 2: a b c d, MemberJoined, 0 restarts", there=joins(b=SAVES), plan=PLAN,
            settings={**FOUR, "shutdown_grace": 0.0}, probes=answers("d")),
    "a member that saves is waited for until shortly after the grace period":
        Case(stopped(there=joins(b=SAVES)), "wait 31 s"),
    "all members have saved: plan":
        Case(stopped(there=joins(a=SAVED, b=SAVED)), "plan 2: a b c d, MemberJoined, 0 restarts"),
    "the grace period is over: plan":
        Case(stopped(there=joins(b=SAVES), ago=32.0), "plan 2: a b c d, MemberJoined, 0 restarts"),
    "a leaving member is waited for": Case(stopped(there=members("abc", b=LEAVES)), "wait 31 s"),
    "a member that has left is not a lost member":
        Case(stopped(there=members("ac")), "plan 2: a c, MemberJoined, 0 restarts"),
    "a member that died while saving is not waited for":
        Case(stopped(there=joins(b=SAVES), probes=NOT_HEARD), "plan 2: a c d, MemberJoined, 0 restarts"),
    "a member that restarted meanwhile is not waited for":
        Case(stopped(there=joins(b={"incarnation": "b2", "saves": True})), "plan 2: a c b d, MemberJoined, 0 restarts"),
    "a worker process that fails because its peer stopped costs no restart":
        Case(stopped(there=joins(a=SAVED), failures=[make_failure("b")]), "plan 2: a b c d, MemberJoined, 0 restarts"),
    "all members succeeded meanwhile: the job succeeds":
        Case(stopped(there=members("abc", **{name: {"state": MemberState.SUCCEEDED, "round": 1} for name in "abc"}),
            workers=runs(PLAN, DONE)), "outcome succeeded"),
    "too few members when all have saved: wait": Case(stopped(there=members("a", a=SAVED)), "wait"),
    "an announcement for an earlier plan does not count":
        case("wait", plan=PLAN, stop=make_stop(make_plan("abc", attempt="old"))),
}  # fmt: skip


def member(**fields: Any) -> Any:
    """The view of b, a member whose workers run. `mine`: fields of its member key; `announced`: whether the store has a
    planned change."""
    there = {name: made for name, made in members("abc", b=fields.pop("mine", {})).items() if name in "ab"}
    store = fields.pop("store", {})
    if fields.pop("announced", True):
        store = {"stop": make_stop(AS_B), **store}
    return make_view(there=there, store=store, **{**FOLLOWER, "plan": AS_B, **fields})


AFTER = make_plan("abcd", round_number=2, me="b", reason=PlanReason.MEMBER_JOINED)
CRASHED = make_plan("abc", round_number=2, me="b", reason=PlanReason.WORKER_FAILED)
LATER = make_plan("abcd", round_number=3, me="b", reason=PlanReason.MEMBER_JOINED)
WITHOUT = make_plan("acd", round_number=2, me="b", reason=PlanReason.RESIZED)
CAN = runs(AS_B, saves=True)
AT_IT = runs(AS_B, STOPPING, saves=True, saving=True)

MEMBER = {
    "its workers can save: publish that": Case(member(workers=CAN, announced=False), "publish ready of round 0, saves"),
    "it is published: wait": Case(member(workers=CAN, mine=SAVES, announced=False), "wait"),
    "a change is announced: its workers get time to save": Case(member(workers=CAN, mine=SAVES), "stop, 30 s to save"),
    "its workers are saving: wait": Case(member(workers=AT_IT, mine=SAVES), "wait"),
    "its workers have saved: publish that":
        Case(member(workers=runs(AS_B, NONE), mine=SAVES), "publish ready of round 0, saved 1"),
    "saved is published once, and the workers stay stopped": Case(member(workers=runs(AS_B, NONE), mine=SAVED), "wait"),
    "workers without a handler yet count as saved": Case(member(mine=SAVES), "publish ready of round 0, saved 1"),
    "... also when they have one": Case(member(mine=SAVED, workers=runs(AS_B, saves=True)), "wait"),
    "workers that cannot save continue until the plan": Case(member(), "wait"),
    "workers that fail because their peers stopped: no failure is published":
        Case(member(workers=fails(AS_B, "b")), "wait"),
    "the plan arrives, the old workers are stopped: start":
        Case(member(workers=runs(AS_B, NONE), mine=SAVED, plan=AFTER, announced=False), "start plan 2"),
    "the plan arrives: workers that cannot save are killed":
        Case(member(workers=runs(AS_B), plan=AFTER, announced=False), "stop"),
    "the plan arrives at the end of the grace period: saving ends":
        Case(member(workers=AT_IT, mine=SAVES, plan=AFTER, announced=False), "stop"),
    "the plan arrives unannounced: workers that can save get time":
        Case(member(workers=CAN, mine=SAVES, plan=AFTER, announced=False), "stop, 30 s to save"),
    "workers of a member outside the plan get time to save too":
        Case(member(workers=CAN, mine=SAVES, plan=WITHOUT, announced=False), "stop, 30 s to save"),
    "a plan after a failure: stop at once":
        Case(member(workers=CAN, mine=SAVES, plan=CRASHED, announced=False), "stop"),
    "a plan was missed: stop at once": Case(member(workers=CAN, mine=SAVES, plan=LATER, announced=False), "stop"),
    "the announcement is lost: ready for the next round":
        Case(member(workers=runs(AS_B, NONE), mine=SAVED, announced=False), "publish ready of round 2"),
    "the job ends meanwhile: its workers may finish saving":
        Case(member(workers=AT_IT, mine=SAVES, outcome=SUCCEEDED), "wait"),
    "another agent has its name: saving ends": Case(member(workers=AT_IT, mine=SAVES, replaced_by="b2"), "stop"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNER)
def test_the_planner_waits_for_members_that_save_before_a_planned_change(name: str) -> None:
    case = PLANNER[name]
    assert describe(decide(case.view, NOW)) == case.does


@pytest.mark.parametrize("name", MEMBER)
def test_a_member_lets_its_workers_save_before_a_planned_change(name: str) -> None:
    case = MEMBER[name]
    assert describe(decide(case.view, NOW)) == case.does


def test_a_planned_change_is_dated_from_the_request_not_from_the_plan() -> None:
    there = members("abc", b={**LEAVES, "changed_at": 5.0})
    proposed = decide(make_view(there=there, plan=PLAN), NOW)
    assert isinstance(proposed, ProposeStop)
    assert proposed.stop.caused_at == 5.0
    planned = decide(stopped(there=members("ac")), NOW)
    assert isinstance(planned, ProposePlan)
    assert planned.caused_at == 7.0


def test_a_joiner_that_can_save_is_not_waited_for() -> None:
    there = {**joins(a=SAVED), "e": make_member("e", saves=True)}
    assert describe(decide(stopped(there=there), NOW)).startswith("plan 2: a b c d")


@pytest.mark.parametrize(
    ("reason", "spec", "leaving_since", "expected"),
    [
        (PlanReason.MEMBER_JOINED, {}, None, True),
        (PlanReason.MEMBER_JOINED, {"allowed": [2, 4]}, None, True),
        (PlanReason.MEMBER_JOINED, {}, NOW, False),
        (PlanReason.MEMBER_LEFT, {}, None, True),
        (PlanReason.MEMBER_LEFT, {"draining": ["a"]}, None, False),
        (PlanReason.MEMBER_LEFT, {"allowed": [1, 3]}, None, False),
        (PlanReason.RESIZED, {"generation": 2, "draining": ["b"]}, None, True),
        (PlanReason.RESIZED, {"generation": 2, "draining": ["a"]}, None, False),
        (PlanReason.RESIZED, {"wanted": 2}, None, False),
        (None, {}, None, False),
    ],
    ids=[
        "a join", "a join, of allowed sizes", "a join, but this one is signalled", "another leaves", "this one drains",
        "another leaves, and the rest may be too many", "another drains", "this one drains for a resize",
        "no operator: unknown", "no change",
    ],
)  # fmt: skip
def test_a_member_knows_whether_it_is_in_the_next_plan(
    reason: PlanReason | None, spec: dict[str, Any], leaving_since: float | None, expected: bool
) -> None:
    stop = {} if reason is None else {"stop": make_stop(PLAN, reason=reason)}
    view = make_view(plan=PLAN, store=stop, spec=SpecValue(**{"min": 1, "max": 4, **spec}), leaving_since=leaving_since)
    assert will_stay(view) == expected
