"""What an agent does next, rule by rule, the earlier ones winning over the later."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, ExitCode, MemberState
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.view import (
    Role,
    StoreView,
    Workers,
    WorkersState,
)

from tests.unit.runtime.membership.builders import (
    FAILED,
    NOW,
    SUCCEEDED,
    Case,
    fails,
    make_failure,
    make_member,
    make_plan,
    make_view,
    members,
    runs,
    told,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
NEXT = make_plan("abc", round_number=2)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING, DONE, GONE = WorkersState.STOPPING, WorkersState.SUCCEEDED, WorkersState.NONE

END = {
    "the job succeeded: workers are stopped": Case(make_view(plan=PLAN, store={"outcome": SUCCEEDED}), "stop"),
    "the job succeeded: they are being stopped": Case(
        make_view(plan=PLAN, workers=runs(PLAN, STOPPING), store={"outcome": SUCCEEDED}), "wait"
    ),
    "the job succeeded": Case(
        make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "the job failed": Case(make_view(plan=PLAN, workers=fails(PLAN), store={"outcome": FAILED}), "exit WORKERS_FAILED"),
    "the job succeeded without this spare": Case(
        make_view(plan=SPARE, workers=Workers(), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "it was over before I came": Case(
        make_view(there="", role=None, workers=Workers(), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"
    ),
    "it had failed before I came": Case(
        make_view(there="", role=None, workers=Workers(), store={"outcome": FAILED}), "exit WORKERS_FAILED"
    ),
    "the outcome wins over leaving": Case(
        make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}, leaving_since=NOW),
        "exit SUCCEEDED",
    ),
}

LEAVE = {
    "leaving tells the others before it stops its workers": Case(
        make_view(plan=PLAN, leaving_since=NOW), "say leaving of round 1"
    ),
    "the others know: the workers get time to save": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, leaving_since=NOW), "stop, 30 s to save"
    ),
    "the workers save": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, STOPPING), leaving_since=NOW), "wait"
    ),
    "the workers have saved": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW),
        "exit TERMINATED",
    ),
    "the store cannot be told: it is tried for a while": Case(
        make_view(plan=PLAN, leaving_since=NOW - 1), "say leaving of round 1"
    ),
    "the store cannot be told, and time is up": Case(make_view(plan=PLAN, leaving_since=NOW - 3), "stop, 30 s to save"),
    "never registered: there is nobody to tell": Case(
        make_view(there="", role=None, workers=Workers(), leaving_since=NOW), "exit TERMINATED"
    ),
    "a new plan does not matter any more": Case(
        make_view(there=members("abc", a=LEAVING), plan=NEXT, workers=runs(PLAN, GONE), leaving_since=NOW),
        "exit TERMINATED",
    ),
    "Ctrl-C": Case(
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
    "another agent took this name: its workers win": Case(make_view(plan=PLAN, store={"replaced_by": "a2"}), "stop"),
    "another agent took this name": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE), store={"replaced_by": "a2"}), "exit RESTARTABLE"
    ),
    "first of all: register": Case(make_view(there="", role=None), "register ready of round 0"),
    "register while still importing": Case(make_view(there="", role=None, warm=False), "register warming of round 0"),
    "the store lost this member while it trains": Case(
        make_view(there="bc", plan=PLAN, store={"registered": False}), "register ready of round 1"
    ),
    "the store lost this member after it succeeded": Case(
        make_view(there="bc", plan=PLAN, workers=runs(PLAN, DONE), store={"registered": False}),
        "register succeeded of round 1",
    ),
    "the imports are done": Case(
        make_view(there=members("abc", a={"state": MemberState.WARMING}), plan=None), "say ready of round 0"
    ),
    "the imports are done before it is known who was here first": Case(
        make_view(there=members("a", a={"state": MemberState.WARMING}), role=None, plan=None), "watch as follower"
    ),
    "the process that held my stores has died: nobody may be sent there": Case(
        make_view(there=members("abc", a={"stores": True, "round": 1}), plan=PLAN), "say ready of round 1"
    ),
    "my stores listen again": Case(
        make_view(there=members("abc", a={"round": 1}), plan=PLAN, stores=True), "say ready of round 1"
    ),
    "who leaves is sent nobody": Case(
        make_view(
            there=members("abc", a={**LEAVING, "stores": True}), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW
        ),
        "exit TERMINATED",
    ),
    "the imports are not done": Case(
        make_view(there=members("ab", b={"state": MemberState.WARMING}), warm=False, **FOLLOWER), "nothing to do"
    ),
}

INCOMPATIBLE = {
    "incompatible: another number of workers than the plan's": Case(
        make_view(plan=SPARE, workers=Workers(), settings={"nproc": 2}), "exit CONFIG"
    ),
    "incompatible: another number of workers than the first member's": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", nproc=2).value},
        ),
        "exit CONFIG",
    ),
    "the member before this one is incompatible": Case(
        make_view(
            me="c",
            there=members("bc", b={"nproc": 2}),
            role=Role.FOLLOWER,
            predecessor="b",
            store={"first_member": make_member("a").value},
        ),
        "wait",
    ),
    "the incompatible member before this one has left: the first member is known": Case(
        make_view(me="c", there=members("ac", a={"nproc": 2})), "exit CONFIG"
    ),
    "the first fits itself": Case(make_view(there=members("abc", c={"nproc": 2})), "plan 1: a b, Start, 0 restarts"),
    "a first member that is leaving sets no rule": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", nproc=2, **LEAVING).value},
        ),
        "wait",
    ),
    "another contract version than the leader's": Case(
        make_view(
            me="a",
            there=members("ab", b={"contract": CONTRACT_VERSION + 1}),
            plan=SPARE,
            workers=Workers(),
            role=Role.FOLLOWER,
            predecessor="b",
        ),
        "exit CONFIG",
    ),
    "another contract version than the first member's": Case(
        make_view(
            me="b",
            there="ab",
            role=Role.FOLLOWER,
            predecessor="a",
            store={"first_member": make_member("a", contract=CONTRACT_VERSION + 1).value},
        ),
        "exit CONFIG",
    ),
    "a leader that has gone sets no rule": Case(
        make_view(there="a", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
        "watch as follower of b",
    ),
    "who trains already fits": Case(make_view(plan=PLAN, settings={"nproc": 2}), "nothing to do"),
}

FOLLOW = {
    "a first plan": Case(make_view(plan=PLAN, workers=Workers()), "start plan 1"),
    "a newer plan: the old workers first": Case(make_view(plan=NEXT, workers=runs(PLAN)), "stop"),
    "a newer plan: the old workers end": Case(make_view(plan=NEXT, workers=runs(PLAN, STOPPING)), "wait"),
    "a newer plan: the old workers are gone": Case(make_view(plan=NEXT, workers=runs(PLAN, GONE)), "start plan 2"),
    "a newer plan: the old workers had failed": Case(make_view(plan=NEXT, workers=fails(PLAN)), "start plan 2"),
    "a newer plan after a success": Case(make_view(plan=NEXT, workers=runs(PLAN, DONE)), "start plan 2"),
    "a plan without me: stop": Case(make_view(there="abcd", plan=WITHOUT_ME, workers=runs(PLAN)), "stop"),
    "a plan without me: a spare": Case(
        make_view(there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), role=Role.FOLLOWER, predecessor="b"), "wait"
    ),
    "another plan of my round: the store was empty, and the others went on": Case(
        make_view(plan=make_plan("abc", attempt="other"), workers=runs(PLAN)), "stop"
    ),
    "a plan of the past cannot be run: ask for a later one": Case(
        make_view(plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}), "say ready of round 2"
    ),
    "a plan of the past, and I registered with its round": Case(
        make_view(there=members("abc", a={"round": 1}), plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}),
        "say ready of round 2",
    ),
    "a plan of the past: asked already": Case(
        make_view(there=members("abc", a={"round": 2}), plan=PLAN, workers=runs(NEXT, GONE), store={"last_round": 2}),
        "plan 3: a b c, Start, 0 restarts",
    ),
    "a plan that I was stopped for already": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE)), "say ready of round 2"
    ),
}

REPORT = {
    "a failure": Case(make_view(plan=AS_B, workers=fails(AS_B, "b"), **FOLLOWER), "report b"),
    "a failure while the others of the group end": Case(
        make_view(plan=AS_B, workers=runs(AS_B, STOPPING, failure=make_failure("b")), **FOLLOWER), "report b"
    ),
    "a failure, reported": Case(
        make_view(plan=AS_B, workers=fails(AS_B, "b"), reported_failure=1, **FOLLOWER), "wait 0.15 s"
    ),
    "the planner believes only what it sees: a store that came back empty forgot it": Case(
        make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1), "report a"
    ),
    "the planner sees it": Case(
        make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1, failures=[make_failure("a")]), "ask b c"
    ),
    "success": Case(make_view(plan=PLAN, workers=runs(PLAN, DONE)), "say succeeded of round 1"),
    "success, and an earlier one was said": Case(
        make_view(
            there=members("abc", a={"state": MemberState.SUCCEEDED, "round": 1}),
            plan=make_plan("abc", round_number=2),
            workers=runs(make_plan("abc", round_number=2), DONE),
        ),
        "say succeeded of round 2",
    ),
    "success, said": Case(
        make_view(
            there=members("abc", b={"state": MemberState.SUCCEEDED, "round": 1}),
            plan=AS_B,
            workers=runs(AS_B, DONE),
            **FOLLOWER,
        ),
        "nothing to do",
    ),
    "a failure of an earlier plan is old news": Case(
        make_view(there="abcd", plan=WITHOUT_ME, workers=fails(PLAN), role=Role.FOLLOWER, predecessor="b"), "wait"
    ),
}

TABLES = {
    "end": END,
    "leave": LEAVE,
    "identity": IDENTITY,
    "compatibility": INCOMPATIBLE,
    "follow": FOLLOW,
    "report": REPORT,
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_rule(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    expected = case.does.replace("nothing to do", "wait")
    assert told(decide(case.view, NOW)) == expected


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_every_action_has_its_reason(rule: str, name: str) -> None:
    assert len(decide(TABLES[rule][name].view, NOW).reason) > 5


def test_an_agent_that_knows_nothing_yet_registers() -> None:
    view = make_view(there="", role=None)
    assert view.store == StoreView()
    assert told(decide(view, NOW)) == "register ready of round 0"


def test_who_comes_after_the_end_is_told_what_to_do() -> None:
    action = decide(make_view(there="", role=None, workers=Workers(), store={"outcome": SUCCEEDED}), NOW)
    assert action.reason.startswith("the job succeeded before this agent joined; use another --rdzv-id to run it again")
