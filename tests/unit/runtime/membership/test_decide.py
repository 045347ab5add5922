"""What an agent does next, rule by rule; earlier rules take precedence."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode, MemberState
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.view import Role, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    FAILED,
    NOW,
    SUCCEEDED,
    case,
    decided,
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
FOLLOWS_B: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "b"}
WARMING: dict[str, Any] = {"state": MemberState.WARMING}
SUCCEEDED_1: dict[str, Any] = {"state": MemberState.SUCCEEDED, "round": 1}
A_LEAVES = members("abc", a=LEAVING)
STOPPING = WorkersState.STOPPING
DONE = WorkersState.SUCCEEDED
GONE = WorkersState.NONE


END = {
    "the job succeeded: stop the workers": case("stop", plan=PLAN, outcome=SUCCEEDED),
    "the job succeeded, the workers are stopping: wait":
        case("wait", plan=PLAN, workers=runs(PLAN, STOPPING), outcome=SUCCEEDED),
    "the job succeeded: exit": case("exit SUCCEEDED", plan=PLAN, workers=runs(PLAN, DONE), outcome=SUCCEEDED),
    "the job failed: exit": case("exit WORKERS_FAILED", plan=PLAN, workers=fails(PLAN), outcome=FAILED),
    "the job succeeded without this spare: exit":
        case("exit SUCCEEDED", plan=SPARE, workers=Workers(), outcome=SUCCEEDED),
    "the job succeeded before this agent joined: exit":
        case("exit SUCCEEDED", there="", role=None, workers=Workers(), outcome=SUCCEEDED),
    "the job failed before this agent joined: exit":
        case("exit WORKERS_FAILED", there="", role=None, workers=Workers(), outcome=FAILED),
    "the outcome takes precedence over leaving":
        case("exit SUCCEEDED", plan=PLAN, workers=runs(PLAN, DONE), outcome=SUCCEEDED, leaving_since=NOW),
}  # fmt: skip


LEAVE = {
    "leaving is published before the workers stop": case("publish leaving of round 1", plan=PLAN, leaving_since=NOW),
    "leaving is published: the workers get time to save":
        case("stop, 30 s to save", there=A_LEAVES, plan=PLAN, leaving_since=NOW),
    "the workers are saving: wait":
        case("wait", there=A_LEAVES, plan=PLAN, workers=runs(PLAN, STOPPING), leaving_since=NOW),
    "the workers have saved: exit":
        case("exit TERMINATED", there=A_LEAVES, plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW),
    "the store does not respond: retry for a while":
        case("publish leaving of round 1", plan=PLAN, leaving_since=NOW - 1),
    "the store does not respond for longer: stop the workers":
        case("stop, 30 s to save", plan=PLAN, leaving_since=NOW - 3),
    "never registered: exit without publishing":
        case("exit TERMINATED", there="", role=None, workers=Workers(), leaving_since=NOW),
    "a new plan does not matter to a leaving member":
        case("exit TERMINATED", there=A_LEAVES, plan=NEXT, workers=runs(PLAN, GONE), leaving_since=NOW),
    "Ctrl-C has an exit code of its own":
        case("exit INTERRUPTED", there=A_LEAVES, plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW,
            leaving_code=ExitCode.INTERRUPTED),
}  # fmt: skip


IDENTITY = {
    "another agent took this name: stop the workers": case("stop", plan=PLAN, replaced_by="a2"),
    "another agent took this name, the workers are stopped: exit":
        case("exit RESTARTABLE", plan=PLAN, workers=runs(PLAN, GONE), replaced_by="a2"),
    "a new agent registers": case("register ready of round 0", there="", role=None),
    "an agent registers while it is importing": case("register warming of round 0", there="", role=None, warm=False),
    "the store lost this member while it trains: register again":
        case("register ready of round 1", there="bc", plan=PLAN, registered=False),
    "the store lost this member after it succeeded: register as succeeded":
        case("register succeeded of round 1", there="bc", plan=PLAN, workers=runs(PLAN, DONE), registered=False),
    "the imports are done: ready": case("publish ready of round 0", there=members("abc", a=WARMING), plan=None),
    "the imports are done before the first member is known: watch first":
        case("watch as follower", there=members("a", a=WARMING), role=None, plan=None),
    "the store host died: publish that":
        case("publish ready of round 1", there=members("abc", a={"stores": True, "round": 1}), plan=PLAN),
    "the store host is back: publish that":
        case("publish ready of round 1", there=members("abc", a={"round": 1}), plan=PLAN, stores=True),
    "a leaving member does not publish its store host":
        case("exit TERMINATED", there=members("abc", a={**LEAVING, "stores": True}), plan=PLAN,
            workers=runs(PLAN, GONE), leaving_since=NOW),
    "the imports are not done: wait": case("wait", there=members("ab", b=WARMING), warm=False, **FOLLOWER),
}  # fmt: skip


FOLLOW = {
    "a first plan: start": case("start plan 1", plan=PLAN, workers=Workers()),
    "a newer plan: stop the old workers first": case("stop", plan=NEXT, workers=runs(PLAN)),
    "a newer plan, the old workers are stopping: wait": case("wait", plan=NEXT, workers=runs(PLAN, STOPPING)),
    "a newer plan, the old workers are stopped: start": case("start plan 2", plan=NEXT, workers=runs(PLAN, GONE)),
    "a newer plan after a failure: start": case("start plan 2", plan=NEXT, workers=fails(PLAN)),
    "a newer plan after a success: start": case("start plan 2", plan=NEXT, workers=runs(PLAN, DONE)),
    "a plan without this member: stop": case("stop", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN)),
    "a plan without this member: wait as a spare":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), **FOLLOWS_B),
    "another plan of the same round: stop": case("stop", plan=make_plan("abc", attempt="other"), workers=runs(PLAN)),
    "an earlier plan cannot be run: ask for a later one":
        case("publish ready of round 2", plan=PLAN, workers=runs(NEXT, GONE), last_round=2),
    "an earlier plan, and this member registered with its round: ask for a later one":
        case("publish ready of round 2", there=members("abc", a={"round": 1}), plan=PLAN, workers=runs(NEXT, GONE),
            last_round=2),
    "an earlier plan, a later one was asked for: plan it":
        case("plan 3: a b c, Start, 0 restarts", there=members("abc", a={"round": 2}), plan=PLAN,
            workers=runs(NEXT, GONE), last_round=2),
    "a plan whose workers are stopped: ask for a later one":
        case("publish ready of round 2", plan=PLAN, workers=runs(PLAN, GONE)),
}  # fmt: skip


REPORT = {
    "a failure is published": case("report b", plan=AS_B, workers=fails(AS_B, "b"), **FOLLOWER),
    "a failure is published while other workers are stopping":
        case("report b", plan=AS_B, workers=runs(AS_B, STOPPING, failure=make_failure("b")), **FOLLOWER),
    "a published failure: wait for the planner":
        case("wait 0.15 s", plan=AS_B, workers=fails(AS_B, "b"), reported_failure=1, **FOLLOWER),
    "a failure that the store lost is published again":
        case("report a", plan=PLAN, workers=fails(PLAN), reported_failure=1),
    "the planner sees a failure: probe the others":
        case("probe b c", plan=PLAN, workers=fails(PLAN), reported_failure=1, failures=[make_failure("a")]),
    "success is published": case("publish succeeded of round 1", plan=PLAN, workers=runs(PLAN, DONE)),
    "success is published for each round":
        case("publish succeeded of round 2", there=members("abc", a=SUCCEEDED_1), plan=NEXT, workers=runs(NEXT, DONE)),
    "success is published once":
        case("wait", there=members("abc", b=SUCCEEDED_1), plan=AS_B, workers=runs(AS_B, DONE), **FOLLOWER),
    "a failure of an earlier plan is not published":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=fails(PLAN), **FOLLOWS_B),
}  # fmt: skip


TABLES = {"end": END, "leave": LEAVE, "identity": IDENTITY, "follow": FOLLOW, "report": REPORT}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does


def test_the_reason_names_the_way_to_run_an_ended_job_again() -> None:
    action = decide(make_view(there="", role=None, workers=Workers(), store={"outcome": SUCCEEDED}), NOW)
    assert action.reason.startswith("the job succeeded before this agent joined; use another --rdzv-id to run it again")
