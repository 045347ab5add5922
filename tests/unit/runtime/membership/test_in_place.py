"""Worker processes that can continue under another plan are not restarted, and none waits for those that start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST, FailureValue, MemberState, PlanReason, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.view import Plan, Role, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    case,
    describe,
    make_failure,
    make_member,
    make_plan,
    make_stop,
    make_view,
    members,
    runs,
    suspicion,
)


def in_place(names: str, round_number: int, **fields: Any) -> Plan:
    """A plan whose workers continue in place."""
    return make_plan(names, agent_store=True, in_place=True, round_number=round_number, **fields)


def able(plan: Plan, **fields: Any) -> Workers:
    """Workers that can continue."""
    return runs(plan, in_place=True, movable=True, **fields)


def failure(name: str, **fields: Any) -> FailureValue:
    return make_failure(name, round_number=2, **fields)


FIRST = make_plan("abc", agent_store=True)
PLAN = in_place("abc", 2)
ABLE: dict[str, Any] = {"stores": True, "in_place": 1}
FOUR = {"min": 2, "max": 4}
FAILED = [failure("c")]


def there(names: str = "abc", **changed: Any) -> Any:
    """Members whose workers can continue, unless `changed` says otherwise."""
    return members(names, **{name: {**ABLE, **changed.get(name, {})} for name in names})


def planner(names: str = "abc", *, plan: Any = PLAN, changed: Any = None, ago: float = 50.0, **fields: Any) -> Any:
    workers = able(plan, changed_at=NOW - ago)
    fields.setdefault("probes", answers("bcd"))
    fields.setdefault("stores", True)
    return make_view(there=there(names, **(changed or {})), plan=plan, workers=workers, **fields)


COLD: dict[str, Any] = {"d": {"in_place": 0}}
WARM: dict[str, Any] = {"d": {"in_place": 2}}
SUSPECTED: dict[str, Any] = {"suspicions": (suspicion("c", "b", round_number=2),)}
STALE: dict[str, Any] = {"d": {"in_place": 1}}

LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
ALL_LEAVE = dict.fromkeys("abc", LEAVING)
DONE: dict[str, Any] = {"state": MemberState.SUCCEEDED, "round": 1}
JOINED = in_place("abc", 2, joined={"c": 2})

PLANNER = {
    "all workers can continue: the plan says so": Case(planner(plan=FIRST), "mark plan 1 as continuing in place"),
    "a member joins at the same time: the plan says so first, so that no worker restarts":
        Case(planner("abcd", plan=FIRST, settings=FOUR), "mark plan 1 as continuing in place"),
    "not all can: it does not": Case(planner(plan=FIRST, changed={"b": {"in_place": 0}}), "wait"),
    "they could before they were restarted: it does not, as some may be about to start in its world":
        Case(planner(plan=make_plan("abc", agent_store=True, round_number=2), changed={"a": {"in_place": 2}}), "wait"),
    "rank 0 hosts the store, and may be lost with it: it does not": Case(planner(plan=make_plan("abc")), "wait"),
    "a member is lost: the others continue":
        Case(planner("ab", probes=answers("b")), "plan 3: a b, MemberLost, 0 restarts, in place"),
    "a worker process fails: the others continue without its member":
        Case(planner(failures=FAILED), "plan 3: a b, WorkerFailed, 1 restarts, in place"),
    "and no member is probed first":
        Case(planner(failures=FAILED, probes={}), "plan 3: a b, WorkerFailed, 1 restarts, in place"),
    "it fails because it has lost a peer: that member may be lost, so probe":
        Case(planner(failures=[failure("c", reason=PEER_LOST)], probes={}), "probe b c for 0.4 s"),
    "a member is silent: a short probe decides": Case(planner(**SUSPECTED, probes={}), "probe c for 0.4 s"),
    "it does not answer: the others continue":
        Case(planner(**SUSPECTED, probes=answers("b", silent="c")), "plan 3: a b, MemberLost, 0 restarts, in place"),
    "the planner's own fails: the others continue without it":
        Case(planner(failures=[failure("a")]), "plan 3: b c, WorkerFailed, 1 restarts, in place"),
    "the others are too few: they wait for its replacement":
        Case(planner(failures=FAILED, settings={"min": 3}), "plan 3: a b c, WorkerFailed, 1 restarts, in place"),
    "all fail: they start as usual":
        Case(planner(failures=[failure(name) for name in "abc"]), "plan 3: a b c, WorkerFailed, 1 restarts"),
    "no restarts are left: the job fails":
        Case(planner(failures=FAILED, settings={"max_restarts": 0}, probes=answers("bc")),
            "outcome failed because of c"),
    "no restarts are left, and another member has requested a plan meanwhile: the job fails":
        Case(planner(failures=FAILED, changed={"b": {"round": 3}}, settings={"max_restarts": 0}, probes=answers("bc")),
            "outcome failed because of c"),
    "a joining member starts its workers: wait for them": Case(planner("abcd", changed=COLD, settings=FOUR), "wait"),
    "they were ready for an earlier plan: wait": Case(planner("abcd", changed=STALE, settings=FOUR), "wait"),
    "they are ready: plan":
        Case(planner("abcd", changed=WARM, settings=FOUR), "plan 3: a b c d, MemberJoined, 0 restarts, in place"),
    "they do not get ready: the others train on, however long it takes":
        Case(planner("abcd", changed={"d": {"in_place": 0, "ready_at": NOW - 3600}}, settings=FOUR, ago=3600.0),
            "wait"),
    "and continue without them when one of them is lost":
        Case(planner("abd", changed={"d": {"in_place": 0, "ready_at": NOW - 3600}}, settings=FOUR, ago=3600.0),
            "plan 3: a b, MemberLost, 0 restarts, in place"),
    "a spare that is not needed is not waited for": Case(planner("abcd", changed=COLD), "wait"),
    "a spare replaces a lost member only if it is ready":
        Case(planner("abd", changed=COLD), "plan 3: a b, MemberLost, 0 restarts, in place"),
    "a ready spare replaces a lost member":
        Case(planner("abd", changed=WARM), "plan 3: a b d, MemberLost, 0 restarts, in place"),
    "a spare that is not ready is better than none":
        Case(planner("abd", changed=COLD, settings={"min": 3}), "plan 3: a b d, MemberLost, 0 restarts, in place"),
    "a member leaves: the others continue, and nothing is saved first":
        Case(planner(changed={"c": {"state": MemberState.LEAVING, "saves": True}}),
            "plan 3: a b, MemberLeft, 0 restarts, in place"),
    "all members leave: one of them saves":
        Case(planner(changed=ALL_LEAVE, leaving_since=NOW), "stop for MemberLeft, a saves"),
    "it took long to announce that: one of them saves":
        Case(planner(changed=ALL_LEAVE, leaving_since=NOW - 5), "stop for MemberLeft, a saves"),
    "half of the grace period is over: the rest is for saving":
        Case(planner(changed=ALL_LEAVE, leaving_since=NOW - 15), "stop, 18 s to save"),
    "the first one may have stopped its workers already: the one that plans saves":
        Case(planner(changed=ALL_LEAVE, me="b", leaving_since=NOW), "stop for MemberLeft, b saves"),
    "the first one has gone: the next one saves":
        Case(planner("bc", changed=ALL_LEAVE, me="b", leaving_since=NOW), "stop for MemberLeft, b saves"),
    "the worker process of the first one has failed: the next one saves":
        Case(planner(changed=ALL_LEAVE, leaving_since=NOW, failures=[failure("a")]), "stop for MemberLeft, b saves"),
    "new members wait until it has saved, and gone":
        Case(planner("ade", changed={"a": LEAVING, **WARM}, me="d", stop=make_stop(PLAN, saver="a")), "wait 31 s"),
    "one remains: the leaving planner waits for the next one's plan":
        Case(planner(changed={"a": LEAVING, "b": LEAVING}, leaving_since=NOW), "wait 1 s"),
    "fewer are wanted: they continue":
        Case(planner(spec=SpecValue(min=2, max=2)), "plan 3: a b, Resized, 0 restarts, in place"),
    "the next leader's agent hosts no stores: workers restart":
        Case(planner("ab", changed={"a": {"stores": False}}, stores=False), "plan 3: a b, MemberLost, 0 restarts"),
    "another agent hosts none: they are not needed":
        Case(planner("ab", changed={"b": {"stores": False}}), "plan 3: a b, MemberLost, 0 restarts, in place"),
    "a worker process ends with code 0 and breaks the others' world: they continue, and the plan names it":
        Case(planner(changed={"a": {"round": 3}, "c": {"state": MemberState.SUCCEEDED, "round": 2}}),
            "plan 4: a b, Start, 0 restarts, in place, finished early: c"),
    "a later plan still names it":
        Case(planner("ab", plan=in_place("ab", 2, finished=("c",)), probes={}, changed={"a": {"round": 3}}),
            "plan 4: a b, Start, 0 restarts, in place, finished early: c"),
    "a member finished before it entered the plan's world: the others continue":
        Case(planner(changed={"c": DONE}), "plan 3: a b, MemberLeft, 0 restarts, in place, finished early: c"),
    "the others are too few: all of them start again, once":
        Case(planner(changed={"b": DONE, "c": DONE}), "plan 3: a b c, MemberLeft, 0 restarts, finished early: b c"),
    "all who trained have finished, and only a joining member remains: the job is done":
        Case(planner(plan=JOINED, changed={"a": DONE, "b": DONE}), "outcome succeeded"),
    "all members were replaced: workers start as usual":
        Case(planner("de", changed=WARM, me="d", plan=dataclasses.replace(PLAN, rank=None)),
            "plan 3: d e, MemberLost, 0 restarts"),
}  # fmt: skip

AS_C = in_place("abc", 2, me="c", ranks=None)
NEXT = in_place("abc", 3, me="c", ranks=None)
UNMARKED = make_plan("abc", agent_store=True, round_number=2, me="c", ranks=None)
AFTER_JOIN = make_plan(
    "abcd", agent_store=True, in_place=True, round_number=3, me="c", ranks=None, reason=PlanReason.MEMBER_JOINED
)
RESTART = make_plan("abc", agent_store=True, round_number=3, me="c", ranks=None)
WITHOUT = make_plan(
    "ab", agent_store=True, in_place=True, round_number=3, me="c", ranks=None, reason=PlanReason.MEMBER_LEFT
)
WITHOUT_TWO = make_plan(
    "a", agent_store=True, in_place=True, round_number=3, me="c", ranks=None, reason=PlanReason.MEMBER_LEFT
)


def member(plan: Any = AS_C, *, mine: Any = ABLE, predecessor_leaves: bool = False, **fields: Any) -> Any:
    """What c sees, a follower."""
    fields = {"stores": True, "stepped": 2, "workers": able(AS_C), "role": Role.FOLLOWER, "predecessor": "b", **fields}
    here = {
        "b": make_member("b", **{**ABLE, **(LEAVING if predecessor_leaves else {})}),
        "c": make_member("c", **{**ABLE, **mine}),
    }
    return make_view(there=here, plan=plan, me="c", **fields)


NONE, DEAD = WorkersState.NONE, WorkersState.FAILED
LEAVES: dict[str, Any] = {"mine": LEAVING, "leaving_since": NOW - 0.2}
OWN = make_failure("c", round_number=3, time=7.0)
AGAIN: dict[str, Any] = {"state": MemberState.WARMING, "failed": 1, "failed_at": 7.0, "in_place": 0}
BROKEN = runs(AS_C, failure=FAILED[0], incomplete=True, movable=True)

MEMBER = {
    "its workers can continue: publish that":
        Case(member(UNMARKED, mine={"in_place": 0}, workers=able(UNMARKED)), "publish ready of round 0, in place 2"),
    "published before they were restarted: publish that again":
        Case(member(UNMARKED, workers=able(UNMARKED)), "publish ready of round 0, in place 2"),
    "the plan is marked: never again": Case(member(), "wait"),
    "outside the plan: published in each round":
        Case(member(WITHOUT, workers=able(WITHOUT, waiting=True)), "publish ready of round 0, in place 3"),
    "a new plan: its workers continue": Case(member(NEXT), "move to plan 3"),
    "a planned change: their step may end": Case(member(AFTER_JOIN), "move to plan 3, 0.5 s"),
    "a plan without this member: they leave": Case(member(WITHOUT), "move to plan 3, 0.5 s"),
    "its rank arrived after the plan, for which its workers wait outside":
        Case(member(NEXT,
            workers=runs(dataclasses.replace(NEXT, rank=None), in_place=True, movable=True, waiting=True)),
            "move to plan 3"),
    "a plan that does not continue in place: they restart": Case(member(RESTART), "stop"),
    "an older plan, from a backup of etcd: they stop, and a later one is requested":
        Case(member(AS_C, workers=able(NEXT)), "stop"),
    "workers that started in the world of the plan and have not shown that they can continue restart":
        Case(member(NEXT, workers=runs(AS_C)), "stop"),
    "one of its worker processes fails: report it": Case(member(workers=BROKEN), "report c"),
    "the new plan includes it: the others continue, the failed one starts":
        Case(member(NEXT, workers=BROKEN), "move to plan 3"),
    "the new plan is without it: the same, to join later": Case(member(WITHOUT, workers=BROKEN), "move to plan 3"),
    "all have failed and the plan is without it: start them, to join later":
        Case(member(WITHOUT, workers=runs(AS_C, DEAD, failure=FAILED[0])), "start plan 3 alone"),
    "neighbours of an earlier plan follow a later one: its workers wait to join it":
        Case(member(WITHOUT, workers=able(WITHOUT, waiting=True), mine={"in_place": 3}, peer_round=4,
            peer_round_at=NOW - 5), "watch as follower of a"),
    "they fail outside the plan: it is not broken, and this member does not take over as planner":
        Case(member(WITHOUT, workers=runs(WITHOUT, DEAD, failure=OWN, changed_at=NOW - 1), mine=AGAIN),
            "watch as follower of a"),
    "all have failed and the plan includes it: start them alone":
        Case(member(NEXT, workers=runs(AS_C, DEAD, failure=FAILED[0])), "start plan 3 alone"),
    "they failed before they were in a plan, a while ago: it is ready again":
        Case(member(WITHOUT, workers=runs(WITHOUT, DEAD, failure=OWN, changed_at=NOW - 5), mine=AGAIN),
            "publish ready of round 3"),
    "then start them again":
        Case(member(WITHOUT, workers=runs(WITHOUT, DEAD, failure=OWN, changed_at=NOW - 5),
            mine={**AGAIN, "state": MemberState.READY}), "start plan 3 alone"),
    "some of them failed before they were in a plan: start those again":
        Case(member(WITHOUT, workers=runs(WITHOUT, failure=OWN, incomplete=True, movable=True, changed_at=NOW - 5),
            mine={**AGAIN, "state": MemberState.READY}), "move to plan 3"),
    "they were ready to join, and are not any more: publish that":
        Case(member(WITHOUT, workers=runs(WITHOUT, incomplete=True, movable=True, failure=OWN), mine={"in_place": 3}),
            "publish warming of round 0, in place 0, failed 1"),
    "a joining member starts its workers before it is in a plan":
        Case(member(WITHOUT, workers=runs(AS_C, NONE)), "start plan 3 alone"),
    "the world cannot be formed: wait for the planner to see why":
        Case(member(workers=able(AS_C, rejected_at=NOW - 0.5)), "wait 0.5 s"),
    "the planner itself does not wait to repair the plan":
        case("plan 3: a b, MemberLost, 0 restarts, in place", there=there("ab"), plan=PLAN, probes=answers("bc"),
            stores=True, workers=able(PLAN, rejected_at=NOW - 0.5)),
    "no cause shows: request another plan":
        Case(member(workers=able(AS_C, rejected_at=NOW - 1)), "publish ready of round 3"),
    "it leaves, and one other member remains: its workers leave at the end of their step, too":
        Case(member(WITHOUT_TWO, **LEAVES), "move to plan 3, 0.5 s"),
    "and are waited for, too": Case(member(WITHOUT_TWO, workers=able(WITHOUT_TWO), **LEAVES), "wait 0.8 s"),
    "it leaves: its workers take part until a plan without it": Case(member(**LEAVES), "wait 0.8 s"),
    "then they leave at the end of their step": Case(member(WITHOUT, **LEAVES), "move to plan 3, 0.5 s"),
    "and are waited for": Case(member(WITHOUT, workers=able(WITHOUT), **LEAVES), "wait 0.8 s"),
    "they have left: stop them":
        Case(member(WITHOUT, workers=able(WITHOUT, waiting=True), **LEAVES), "stop, 30 s to save"),
    "its predecessor leaves, too: take over, to see whether all do":
        Case(member(predecessor_leaves=True, **LEAVES), "watch as planner"),
    "it took long to announce that":
        Case(member(predecessor_leaves=True, mine=LEAVING, leaving_since=NOW - 9), "watch as planner"),
    "etcd does not answer: wait to announce it": Case(member(leaving_since=NOW - 9), "publish leaving of round 2"),
    "its predecessor is silent: wait for what becomes of it":
        Case(member(mine=LEAVING, leaving_since=NOW - 5, silent=frozenset("b")), "wait 10 s"),
    "no plan comes: look once more whether another member stays":
        Case(member(mine=LEAVING, leaving_since=NOW - 1), "watch as planner"),
    "another member stays, and no plan comes: stop them":
        Case(member(role=Role.PLANNER, mine=LEAVING, leaving_since=NOW - 1), "stop, 30 s to save"),
    "half of the grace period is over: stop them":
        Case(member(mine=LEAVING, leaving_since=NOW - 15), "stop, 18 s to save"),
    "the only member does not wait for a plan":
        Case(member(in_place("c", 2, me="c"), **LEAVES), "stop, all leave, saves for all, 30 s to save"),
    "all leave, and another one saves":
        Case(member(stop=make_stop(AS_C, saver="a"), **LEAVES), "stop, all leave, 30 s to save"),
    "all leave, and this member saves":
        Case(member(stop=make_stop(AS_C, saver="c"), **LEAVES), "stop, all leave, saves for all, 30 s to save"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNER)
def test_the_planner_lets_workers_continue_as_soon_as_possible(name: str) -> None:
    case = PLANNER[name]
    assert describe(decide(case.view, NOW)) == case.does


@pytest.mark.parametrize("name", MEMBER)
def test_a_member_restarts_no_worker_that_can_continue(name: str) -> None:
    case = MEMBER[name]
    assert describe(decide(case.view, NOW)) == case.does


STARTS_NONE = {
    "etcd came back with a backup that has an older plan":
        member(make_plan("ab", agent_store=True, in_place=True, me="c", ranks=None), workers=runs(AS_C, NONE)),
    "it still imports": member(WITHOUT, workers=runs(AS_C, NONE), warm=False),
    "it is being removed": member(WITHOUT, workers=runs(AS_C, NONE), spec=SpecValue(min=2, max=3, draining=["c"])),
    "they failed a moment ago":
        member(WITHOUT, workers=runs(WITHOUT, DEAD, failure=OWN, changed_at=NOW - 1), mine=AGAIN),
    "the plan does not continue in place": member(make_plan("ab", me="c"), workers=runs(AS_C, NONE)),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS_NONE)
def test_a_member_outside_the_plan_starts_workers_only_to_join(name: str) -> None:
    does = describe(decide(STARTS_NONE[name], NOW))
    assert not does.startswith(("start", "report")), does
