"""A member that has taken no step since it joined costs the job no restart, and does not hold up the others."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST, MemberState, PlanReason
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import ProposePlan
from elasticjob_runtime.membership.joining import ATTEMPTS, ATTEMPTS_IN_PLACE, MAX_DELAY, retry_at
from elasticjob_runtime.membership.view import Role, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    case,
    describe,
    make_failure,
    make_member,
    make_plan,
    make_view,
    members,
    runs,
)

FAILED = WorkersState.FAILED
JOINED: dict[str, Any] = {"joined": {"c": 3}, "oldest": 1, "agent_store": True, "round_number": 3}
IN_PLACE = make_plan("abc", me="c", ranks=None, in_place=True, **JOINED)
RESTARTS = make_plan("abc", me="c", ranks=None, **JOINED)
REPORTS = make_plan("abc", me="c", ranks=None, reports_steps=True, **JOINED)
FIRST = make_plan("abc", me="c", ranks=None, oldest=3, agent_store=True, round_number=3)
SPARE = make_plan("ab", me="c", ranks=None, in_place=True, agent_store=True, round_number=3)
NEXT = make_plan("abc", me="c", ranks=None, in_place=True, joined={"c": 4}, oldest=1, agent_store=True, round_number=4)
SPARE_RESTARTS = make_plan("ab", me="c", ranks=None, agent_store=True, round_number=4)


def member(plan: Any, *, ran: float = 0.5, ago: float = 0.0, reason: str = "ApplicationError", **fields: Any) -> Any:
    """What c sees, a follower whose workers failed `ago` seconds ago, after `ran` seconds."""
    at = fields.pop("at", 7.0)
    failed, state = fields.pop("failed", 0), fields.pop("state", MemberState.READY)
    own = {"stores": True, "failed": failed, "failed_at": 7.0 if failed else 0.0, "state": state}
    failure = make_failure("c", round_number=3, reason=reason, time=at)
    workers = runs(
        fields.pop("ran_plan", plan), fields.pop("workers", FAILED), failure=failure, changed_at=NOW - ago,
        began_at=NOW - ago - ran, incomplete=fields.pop("incomplete", False),
    )  # fmt: skip
    return make_view(
        there={"b": make_member("b", stores=True), "c": make_member("c", **own)}, plan=plan, me="c",
        role=Role.FOLLOWER, predecessor="b", stores=True, workers=workers, **{"stepped": 0, **fields},
    )  # fmt: skip


WARMING: dict[str, Any] = {"state": MemberState.WARMING, "failed": 1}
OWN = "publish warming of round 0, in place 0, failed 1"
MEMBER = {
    "it has joined, and its workers fail before their first step": Case(member(IN_PLACE), OWN),
    "the same where processes restart": Case(member(RESTARTS), OWN),
    "the failure follows": Case(member(IN_PLACE, **WARMING), "report c, joining"),
    "the script reports steps: only a step counts": Case(member(REPORTS, ran=600.0), OWN),
    "the script reports none: they ran for long enough": Case(member(RESTARTS, ran=600.0), "report c"),
    "they have taken a step": Case(member(IN_PLACE, stepped=3), "report c"),
    "they took one before they joined again": Case(member(IN_PLACE, stepped=2), OWN),
    "it is not known whether they have": Case(member(IN_PLACE, stepped=None), "report c"),
    "all began together": Case(member(FIRST), "report c"),
    "they have lost a peer, which is to blame": Case(member(IN_PLACE, reason=PEER_LOST), "report c, joining"),
    "outside the plan": Case(member(SPARE), OWN),
    "another of its processes fails, too: that is one failure":
        Case(member(SPARE, at=8.0, workers=WorkersState.RUNNING, incomplete=True, **WARMING), OWN),
    "again": Case(member(SPARE, state=MemberState.READY, failed=1), "start plan 3 alone"),
    "a plan came that includes it: the others shall not wait":
        Case(member(NEXT, ran_plan=SPARE, **WARMING), "wait 5 s"),
    "it is ready again, and needed": Case(member(NEXT, ran_plan=SPARE, failed=1), "start plan 4 alone"),
    "it waits before it is ready again": Case(member(SPARE, ago=4.9, **WARMING), "watch as follower of a"),
    "it is ready again": Case(member(SPARE, ago=5.0, **WARMING), "publish ready of round 3"),
    "longer after each failure":
        Case(member(SPARE, ago=9.9, state=MemberState.WARMING, failed=2), "watch as follower of a"),
    "where processes restart, a plan without it":
        Case(member(SPARE_RESTARTS, ran_plan=RESTARTS, ago=1.0, **WARMING), "watch as follower of a"),
    "too often: its agent ends":
        Case(member(SPARE, state=MemberState.WARMING, failed=ATTEMPTS_IN_PLACE), "exit CANNOT_JOIN"),
    "where processes restart, sooner, since each time restarts all":
        Case(member(SPARE_RESTARTS, ran_plan=RESTARTS, state=MemberState.WARMING, failed=ATTEMPTS), "exit CANNOT_JOIN"),
    "not before the planner knows":
        Case(member(RESTARTS, state=MemberState.WARMING, failed=ATTEMPTS), "report c, joining"),
    "some of its workers still run: they end first":
        Case(member(SPARE, state=MemberState.WARMING, failed=ATTEMPTS_IN_PLACE, workers=WorkersState.RUNNING,
            incomplete=True), "stop"),
    "its first step ends the count":
        case("publish ready of round 0, failed 0",
            there={"b": make_member("b", stores=True), "c": make_member("c", stores=True, failed=2, failed_at=7.0)},
            plan=IN_PLACE, me="c", role=Role.FOLLOWER, predecessor="b", stores=True, stepped=3),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBER)
def test_failures_before_the_first_step_are_the_members_own(name: str) -> None:
    case = MEMBER[name]
    assert describe(decide(case.view, NOW)) == case.does


def test_a_member_that_fails_again_and_again_starts_its_workers_less_and_less_often() -> None:
    waits = [
        (retry_at(member(SPARE, state=MemberState.WARMING, failed=count)) or 0.0) - NOW
        for count in (1, 2, 3, 4, 5, 500)
    ]
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, MAX_DELAY]


LEFT_OUT: dict[str, Any] = {"c": {"state": MemberState.WARMING, "failed": 1, "stores": True}}
PLANNED: dict[str, Any] = {"joined": {"c": 3}, "oldest": 1, "agent_store": True, "round_number": 3, "restarts": 2}


def planner(*failures: Any, there: str = "abc", changed: Any = None, in_place: bool = True, **fields: Any) -> Any:
    plan = make_plan("abc", in_place=in_place, **PLANNED)
    present = members(there, **{name: {"stores": True, **(changed or {}).get(name, {})} for name in there})
    return make_view(
        there=present, plan=plan, failures=failures, stores=True, probes=answers("bc"), stepped=2,
        workers=runs(plan, in_place=in_place, movable=in_place), **fields,
    )  # fmt: skip


def fails(name: str, at: float, **fields: Any) -> Any:
    return make_failure(name, round_number=3, time=at, **fields)


C_FAILS, B_LOSES_C = fails("c", 1.0, joining=True), fails("b", 0.9, reason=PEER_LOST)
PLANNER = {
    "the others continue without it":
        Case(planner(C_FAILS, changed=LEFT_OUT), "plan 4: a b, MemberLost, 2 restarts, in place"),
    "or restart": Case(planner(C_FAILS, changed=LEFT_OUT, in_place=False), "plan 4: a b, MemberLost, 2 restarts"),
    "the failure itself is not known yet":
        Case(planner(changed=LEFT_OUT), "plan 4: a b, MemberLost, 2 restarts, in place"),
    "another one lost it as a peer":
        Case(planner(B_LOSES_C, C_FAILS, changed=LEFT_OUT, in_place=False), "plan 4: a b, MemberLost, 2 restarts"),
    "only another one has said that it lost a peer: wait for it":
        Case(planner(B_LOSES_C, in_place=False, failed_at=NOW - 0.2), "wait 0.8 s"),
    "it does not say anything": Case(planner(B_LOSES_C, in_place=False), "plan 4: a b c, WorkerFailed, 3 restarts"),
    "another one failed first":
        Case(planner(fails("b", 0.9), C_FAILS, changed=LEFT_OUT, in_place=False),
            "plan 4: a b, WorkerFailed, 3 restarts"),
    "no restarts are left: the others continue all the same":
        Case(planner(C_FAILS, changed=LEFT_OUT, settings={"max_restarts": 2}),
            "plan 4: a b, MemberLost, 2 restarts, in place"),
    "the others are too few: they wait, and the job keeps its restarts":
        Case(planner(C_FAILS, changed=LEFT_OUT, settings={"min": 3}), "wait"),
    "until it is ready again":
        Case(planner(C_FAILS, settings={"min": 3}), "plan 4: a b c, MemberLost, 2 restarts, in place"),
    "outside the plan, it is not included before it is ready again":
        Case(planner(there="abcd", changed={"d": {"state": MemberState.WARMING, "failed": 1}}, settings={"max": 4}),
            "wait"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNER)
def test_a_joining_member_that_fails_costs_the_job_no_restart(name: str) -> None:
    case = PLANNER[name]
    assert describe(decide(case.view, NOW)) == case.does


def test_a_plan_says_since_when_each_member_has_been_in_every_plan() -> None:
    plan = make_plan("abc", in_place=True, **PLANNED)
    there = members("abd", **{name: {"stores": True, "in_place": 3} for name in "abd"})
    view = make_view(there=there, plan=plan, probes=answers("bd"), stores=True, workers=runs(plan, movable=True))
    action = decide(view, NOW)
    assert isinstance(action, ProposePlan)
    assert (action.plan_reason, action.joined) == (PlanReason.MEMBER_LOST, (1, 1, 4))
