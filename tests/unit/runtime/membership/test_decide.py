"""What an agent does next, rule by rule; earlier rules take precedence."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode, MemberState
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.view import Role, StoreView, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    FAILED,
    NOW,
    SUCCEEDED,
    Case,
    decided,
    describe,
    fails,
    make_failure,
    make_plan,
    make_view,
    members,
    runs,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
NEXT = make_plan("abc", round_number=2)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING = WorkersState.STOPPING
DONE = WorkersState.SUCCEEDED
GONE = WorkersState.NONE


END = {
    "the job succeeded: stop the workers": Case(make_view(plan=PLAN, store={"outcome": SUCCEEDED}), "stop"),
    "the job succeeded, the workers are stopping: wait": Case(
        make_view(plan=PLAN, workers=runs(PLAN, STOPPING), store={"outcome": SUCCEEDED}), "wait"
    ),
    "the job succeeded: exit": Case(
        make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "the job failed: exit": Case(
        make_view(plan=PLAN, workers=fails(PLAN), store={"outcome": FAILED}), "exit WORKERS_FAILED"
    ),
    "the job succeeded without this spare: exit": Case(
        make_view(plan=SPARE, workers=Workers(), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "the job succeeded before this agent joined: exit": Case(
        make_view(there="", role=None, workers=Workers(), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "the job failed before this agent joined: exit": Case(
        make_view(there="", role=None, workers=Workers(), store={"outcome": FAILED}), "exit WORKERS_FAILED"
    ),
    "the outcome takes precedence over leaving": Case(
        make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}, leaving_since=NOW),
        "exit SUCCEEDED",
    ),
}


LEAVE = {
    "leaving is published before the workers stop": Case(
        make_view(plan=PLAN, leaving_since=NOW), "publish leaving of round 1"
    ),
    "leaving is published: the workers get time to save": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, leaving_since=NOW), "stop, 30 s to save"
    ),
    "the workers are saving: wait": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, STOPPING), leaving_since=NOW), "wait"
    ),
    "the workers have saved: exit": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW),
        "exit TERMINATED",
    ),
    "the store does not respond: retry for a while": Case(
        make_view(plan=PLAN, leaving_since=NOW - 1), "publish leaving of round 1"
    ),
    "the store does not respond for longer: stop the workers": Case(
        make_view(plan=PLAN, leaving_since=NOW - 3), "stop, 30 s to save"
    ),
    "never registered: exit without publishing": Case(
        make_view(there="", role=None, workers=Workers(), leaving_since=NOW), "exit TERMINATED"
    ),
    "a new plan does not matter to a leaving member": Case(
        make_view(there=members("abc", a=LEAVING), plan=NEXT, workers=runs(PLAN, GONE), leaving_since=NOW),
        "exit TERMINATED",
    ),
    "Ctrl-C has an exit code of its own": Case(
        make_view(
            there=members("abc", a=LEAVING),
            plan=PLAN,
            workers=runs(PLAN, GONE),
            leaving_since=NOW,
            leaving_code=ExitCode.INTERRUPTED,
        ),
        "exit INTERRUPTED",
    ),
}


IDENTITY = {
    "another agent took this name: stop the workers": Case(make_view(plan=PLAN, store={"replaced_by": "a2"}), "stop"),
    "another agent took this name, the workers are stopped: exit": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE), store={"replaced_by": "a2"}), "exit RESTARTABLE"
    ),
    "a new agent registers": Case(make_view(there="", role=None), "register ready of round 0"),
    "an agent registers while it is importing": Case(
        make_view(there="", role=None, warm=False), "register warming of round 0"
    ),
    "the store lost this member while it trains: register again": Case(
        make_view(there="bc", plan=PLAN, store={"registered": False}), "register ready of round 1"
    ),
    "the store lost this member after it succeeded: register as succeeded": Case(
        make_view(there="bc", plan=PLAN, workers=runs(PLAN, DONE), store={"registered": False}),
        "register succeeded of round 1",
    ),
    "the imports are done: ready": Case(
        make_view(there=members("abc", a={"state": MemberState.WARMING}), plan=None), "publish ready of round 0"
    ),
    "the imports are done before the first member is known: watch first": Case(
        make_view(there=members("a", a={"state": MemberState.WARMING}), role=None, plan=None), "watch as follower"
    ),
    "the store host died: publish that": Case(
        make_view(there=members("abc", a={"stores": True, "round": 1}), plan=PLAN), "publish ready of round 1"
    ),
    "the store host is back: publish that": Case(
        make_view(there=members("abc", a={"round": 1}), plan=PLAN, stores=True), "publish ready of round 1"
    ),
    "a leaving member does not publish its store host": Case(
        make_view(
            there=members("abc", a={**LEAVING, "stores": True}), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW
        ),
        "exit TERMINATED",
    ),
    "the imports are not done: wait": Case(
        make_view(there=members("ab", b={"state": MemberState.WARMING}), warm=False, **FOLLOWER), "wait"
    ),
}


FOLLOW = {
    "a first plan: start": Case(make_view(plan=PLAN, workers=Workers()), "start plan 1"),
    "a newer plan: stop the old workers first": Case(make_view(plan=NEXT, workers=runs(PLAN)), "stop"),
    "a newer plan, the old workers are stopping: wait": Case(
        make_view(plan=NEXT, workers=runs(PLAN, STOPPING)), "wait"
    ),
    "a newer plan, the old workers are stopped: start": Case(
        make_view(plan=NEXT, workers=runs(PLAN, GONE)), "start plan 2"
    ),
    "a newer plan after a failure: start": Case(make_view(plan=NEXT, workers=fails(PLAN)), "start plan 2"),
    "a newer plan after a success: start": Case(make_view(plan=NEXT, workers=runs(PLAN, DONE)), "start plan 2"),
    "a plan without this member: stop": Case(make_view(there="abcd", plan=WITHOUT_ME, workers=runs(PLAN)), "stop"),
    "a plan without this member: wait as a spare": Case(
        make_view(there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), role=Role.FOLLOWER, predecessor="b"), "wait"
    ),
    "another plan of the same round: stop": Case(
        make_view(plan=make_plan("abc", attempt="other"), workers=runs(PLAN)), "stop"
    ),
    "an earlier plan cannot be run: ask for a later one": Case(
        make_view(plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}), "publish ready of round 2"
    ),
    "an earlier plan, and this member registered with its round: ask for a later one": Case(
        make_view(there=members("abc", a={"round": 1}), plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}),
        "publish ready of round 2",
    ),
    "an earlier plan, a later one was asked for: plan it": Case(
        make_view(there=members("abc", a={"round": 2}), plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}),
        "plan 3: a b c, Start, 0 restarts",
    ),
    "a plan whose workers are stopped: ask for a later one": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE)), "publish ready of round 2"
    ),
}


REPORT = {
    "a failure is published": Case(make_view(plan=AS_B, workers=fails(AS_B, "b"), **FOLLOWER), "report b"),
    "a failure is published while other workers are stopping": Case(
        make_view(plan=AS_B, workers=runs(AS_B, STOPPING, failure=make_failure("b")), **FOLLOWER), "report b"
    ),
    "a published failure: wait for the planner": Case(
        make_view(plan=AS_B, workers=fails(AS_B, "b"), reported_failure=1, **FOLLOWER), "wait 0.15 s"
    ),
    "a failure that the store lost is published again": Case(
        make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1), "report a"
    ),
    "the planner sees a failure: probe the others": Case(
        make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1, failures=[make_failure("a")]), "probe b c"
    ),
    "success is published": Case(make_view(plan=PLAN, workers=runs(PLAN, DONE)), "publish succeeded of round 1"),
    "success is published for each round": Case(
        make_view(
            there=members("abc", a={"state": MemberState.SUCCEEDED, "round": 1}),
            plan=make_plan("abc", round_number=2),
            workers=runs(make_plan("abc", round_number=2), DONE),
        ),
        "publish succeeded of round 2",
    ),
    "success is published once": Case(
        make_view(
            there=members("abc", b={"state": MemberState.SUCCEEDED, "round": 1}),
            plan=AS_B,
            workers=runs(AS_B, DONE),
            **FOLLOWER,
        ),
        "wait",
    ),
    "a failure of an earlier plan is not published": Case(
        make_view(there="abcd", plan=WITHOUT_ME, workers=fails(PLAN), role=Role.FOLLOWER, predecessor="b"), "wait"
    ),
}


TABLES = {
    "end": END,
    "leave": LEAVE,
    "identity": IDENTITY,
    "follow": FOLLOW,
    "report": REPORT,
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does


def test_an_agent_registers_first() -> None:
    view = make_view(there="", role=None)
    assert view.store == StoreView()
    assert describe(decide(view, NOW)) == "register ready of round 0"


def test_the_reason_names_the_way_to_run_an_ended_job_again() -> None:
    action = decide(make_view(there="", role=None, workers=Workers(), store={"outcome": SUCCEEDED}), NOW)
    assert action.reason.startswith("the job succeeded before this agent joined; use another --rdzv-id to run it again")
