"""What an agent does next, rule by rule, the earlier ones winning over the later."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, ExitCode, MemberState
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.decide import takeover_delay
from elasticjob_runtime.membership.model import Role, StoreView, Workers, WorkersState

from tests.unit.runtime.membership.builders import (
    FAILED,
    NOW,
    SUCCEEDED,
    Case,
    answers,
    fails,
    make_failure,
    make_member,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
    told,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
NEXT = make_plan("abc", epoch=2)
WITHOUT_ME = make_plan("bcd", epoch=2, me="a")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING, DONE, GONE = WorkersState.STOPPING, WorkersState.SUCCEEDED, WorkersState.NONE

END = {
    "the job succeeded: workers are stopped": Case(make_view(plan=PLAN, store={"outcome": SUCCEEDED}), "stop"),
    "the job succeeded: they are being stopped": Case(
        make_view(plan=PLAN, workers=runs(PLAN, STOPPING), store={"outcome": SUCCEEDED}), "wait"
    ),
    "the job succeeded": Case(make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"),
    "the job failed": Case(make_view(plan=PLAN, workers=fails(PLAN), store={"outcome": FAILED}), "exit WORKERS_FAILED"),
    "the job succeeded without this spare": Case(make_view(plan=SPARE, workers=Workers(), store={"outcome": SUCCEEDED}), "exit SUCCEEDED"),
    "the outcome wins over leaving": Case(
        make_view(plan=PLAN, workers=runs(PLAN, DONE), store={"outcome": SUCCEEDED}, leaving_since=NOW), "exit SUCCEEDED"
    ),
}

LEAVE = {
    "leaving tells the others before it stops its workers": Case(make_view(plan=PLAN, leaving_since=NOW), "say leaving of epoch 1"),
    "the others know: the workers get time to save": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, leaving_since=NOW), "stop, 30 s to save"
    ),
    "the workers save": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, STOPPING), leaving_since=NOW), "wait"
    ),
    "the workers have saved": Case(
        make_view(there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW), "exit TERMINATED"
    ),
    "the store cannot be told: it is tried for a while": Case(make_view(plan=PLAN, leaving_since=NOW - 1), "say leaving of epoch 1"),
    "the store cannot be told, and time is up": Case(make_view(plan=PLAN, leaving_since=NOW - 3), "stop, 30 s to save"),
    "never registered: there is nobody to tell": Case(
        make_view(there="", role=None, workers=Workers(), leaving_since=NOW), "exit TERMINATED"
    ),
    "a new plan does not matter any more": Case(
        make_view(there=members("abc", a=LEAVING), plan=NEXT, workers=runs(PLAN, GONE), leaving_since=NOW), "exit TERMINATED"
    ),
    "Ctrl-C": Case(
        make_view(
            there=members("abc", a=LEAVING), plan=PLAN, workers=runs(PLAN, GONE), leaving_since=NOW, leaving_code=ExitCode.INTERRUPTED
        ),
        "exit INTERRUPTED",
    ),
}

IDENTITY = {
    "another agent took this name: its workers win": Case(make_view(plan=PLAN, store={"replaced_by": "a2"}), "stop"),
    "another agent took this name": Case(make_view(plan=PLAN, workers=runs(PLAN, GONE), store={"replaced_by": "a2"}), "exit RESTARTABLE"),
    "first of all: register": Case(make_view(there="", role=None), "register ready of epoch 0"),
    "register while still importing": Case(make_view(there="", role=None, warm=False), "register warming of epoch 0"),
    "the store lost this member while it trains": Case(
        make_view(there="bc", plan=PLAN, store={"registered": False}), "register ready of epoch 1"
    ),
    "the store lost this member after it succeeded": Case(
        make_view(there="bc", plan=PLAN, workers=runs(PLAN, DONE), store={"registered": False}), "register succeeded of epoch 1"
    ),
    "the imports are done": Case(make_view(there=members("abc", a={"state": MemberState.WARMING}), plan=None), "say ready of epoch 0"),
    "the imports are not done": Case(
        make_view(there=members("ab", b={"state": MemberState.WARMING}), warm=False, **FOLLOWER), "nothing to do"
    ),
}

MISFITS = {
    "misfits are refused: another number of workers than the plan's": Case(
        make_view(plan=SPARE, workers=Workers(), settings={"nproc": 2}), "exit CONFIG"
    ),
    "misfits are refused: another number of workers than the first member's": Case(
        make_view(me="b", there="ab", role=Role.FOLLOWER, predecessor="a", store={"founder": make_member("a", nproc=2).value}),
        "exit CONFIG",
    ),
    "the one before me is the misfit, not I": Case(
        make_view(
            me="c",
            there=members("bc", b={"nproc": 2}),
            role=Role.FOLLOWER,
            predecessor="b",
            store={"founder": make_member("a").value},
        ),
        "wait",
    ),
    "a first member that is leaving sets no rule": Case(
        make_view(me="b", there="ab", role=Role.FOLLOWER, predecessor="a", store={"founder": make_member("a", nproc=2, **LEAVING).value}),
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
            store={"founder": make_member("a", contract=CONTRACT_VERSION + 1).value},
        ),
        "exit CONFIG",
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
    "another plan of my epoch: the store was empty, and the others went on": Case(
        make_view(plan=make_plan("abc", attempt="other"), workers=runs(PLAN)), "stop"
    ),
    "a plan of the past cannot be run: ask for a later one": Case(
        make_view(plan=PLAN, workers=runs(NEXT, GONE), store={"last_epoch": 2}), "say ready of epoch 2"
    ),
    "a plan of the past: asked already": Case(
        make_view(there=members("abc", a={"epoch": 2}), plan=PLAN, workers=runs(NEXT, GONE), store={"last_epoch": 2}),
        "plan 3: a b c, Start, 0 restarts",
    ),
    "a plan that I was stopped for already": Case(make_view(plan=PLAN, workers=runs(PLAN, GONE)), "say ready of epoch 2"),
}

REPORT = {
    "a failure": Case(make_view(plan=AS_B, workers=fails(AS_B, "b"), **FOLLOWER), "report b"),
    "a failure while the others of the group end": Case(
        make_view(plan=AS_B, workers=runs(AS_B, STOPPING, failure=make_failure("b")), **FOLLOWER), "report b"
    ),
    "a failure, reported": Case(make_view(plan=AS_B, workers=fails(AS_B, "b"), reported_failure=1, **FOLLOWER), "wait 0.15 s"),
    "the planner believes only what it sees: a store that came back empty forgot it": Case(
        make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1), "report a"
    ),
    "the planner sees it": Case(make_view(plan=PLAN, workers=fails(PLAN), reported_failure=1, failures=[make_failure("a")]), "ask b c"),
    "success": Case(make_view(plan=PLAN, workers=runs(PLAN, DONE)), "say succeeded of epoch 1"),
    "success, said": Case(
        make_view(
            there=members("abc", b={"state": MemberState.SUCCEEDED, "epoch": 1}),
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

WATCH = {
    "nothing is known": Case(make_view(role=None), "watch as follower"),
    "registered first": Case(make_view(role=Role.FOLLOWER, plan=None), "watch as planner"),
    "another registered before me": Case(make_view(me="b", there="ab", role=Role.FOLLOWER, predecessor="a"), "nothing to do"),
    "the one before me has gone": Case(make_view(me="b", there="b", role=Role.FOLLOWER, predecessor="a"), "watch as planner"),
    "the one before me is leaving": Case(
        make_view(me="b", there=members("ab", a=LEAVING), role=Role.FOLLOWER, predecessor="a"), "watch as planner"
    ),
    "the one I follow registered after me, in a store that came back empty": Case(
        make_view(me="a", there="ab", role=Role.FOLLOWER, predecessor="b"), "watch as follower"
    ),
    "rank 0 leads": Case(make_view(plan=PLAN, role=Role.FOLLOWER, predecessor="b"), "watch as planner"),
    "rank 1 follows rank 0": Case(make_view(me="b", plan=AS_B, role=Role.PLANNER), "watch as follower of a"),
    "rank 1 follows rank 0 already": Case(make_view(plan=AS_B, **FOLLOWER), "nothing to do"),
    "rank 0 has gone": Case(make_view(there="bc", plan=AS_B, **FOLLOWER), "watch as planner"),
    "rank 0 is leaving": Case(make_view(there=members("abc", a=LEAVING), plan=AS_B, **FOLLOWER), "watch as planner"),
    "rank 0 came back under its name: it is another": Case(
        make_view(there=members("abc", a={"incarnation": "a2", "create": 200}), plan=AS_B, **FOLLOWER), "watch as planner"
    ),
    "a spare follows the leader": Case(
        make_view(there="ab", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"), "watch as follower of b"
    ),
    "a newcomer under the leader's name does not follow itself": Case(
        make_view(
            me="b",
            there=members("b", b={"create": 200, "incarnation": "b1"}),
            plan=make_plan("bc", me="x", ranks=None),
            workers=Workers(),
            role=Role.FOLLOWER,
            predecessor="c",
        ),
        "watch as planner",
    ),
    "in trouble for a while: looking for myself": Case(
        make_view(plan=AS_B, workers=fails(AS_B, "b", ago=0.2), reported_failure=1, **FOLLOWER), "watch as planner"
    ),
    "the leader is suspected for a while: looking for myself": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("a", "c", ago=0.2),)}, **FOLLOWER), "watch as planner"
    ),
    "somebody else is suspected: the leader's business": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("c", "a", ago=9.0),)}, **FOLLOWER), "nothing to do"
    ),
}

RESTORE = {
    "store came back empty: the leader puts the plan back and nobody restarts": Case(
        make_view(there="a", workers=runs(PLAN)), "restore plan 1"
    ),
    "store came back empty: the others wait for the leader": Case(
        make_view(me="b", there=members("b", b={"seen_at": NOW - 1}), workers=runs(AS_B)), "wait 4 s"
    ),
    "store came back empty, and the leader does not come": Case(
        make_view(me="b", there="bc", workers=runs(AS_B)), "plan 2: b c, Start, 0 restarts"
    ),
    "a leader of the past puts nothing back": Case(
        make_view(there=members("a", a={"seen_at": NOW}), workers=runs(PLAN, GONE), store={"last_epoch": 2}), "wait 5 s"
    ),
}

LEAD = {
    "the leader plans": Case(make_view(there="ab", plan=PLAN), "ask b"),
    "a follower does not": Case(make_view(there="bc", me="c", plan=make_plan("abc", me="c", ranks=None), role=Role.FOLLOWER,
                                          predecessor="b"), "nothing to do"),
    "looking for myself, but another is before me": Case(
        make_view(me="b", plan=make_plan("abc", me="b"), workers=fails(AS_B, "b", ago=1.0), failures=[make_failure("b")]), "ask a"
    ),
    "the one before me answers: it plans": Case(
        make_view(
            me="b", plan=make_plan("abc", me="b"), workers=fails(AS_B, "b", ago=1.0), failures=[make_failure("b")], probes=answers("a")
        ),
        "wait 1 s",
    ),
    "the one before me does not answer: I plan": Case(
        make_view(
            me="b",
            plan=make_plan("abc", me="b"),
            workers=fails(AS_B, "b", ago=1.0),
            failures=[make_failure("b")],
            probes={**answers("a", reachable=False), **answers("c")},
        ),
        "plan 2: b c, MemberLost, 0 restarts",
    ),
    "two are before me: both are asked": Case(
        make_view(me="c", plan=make_plan("abc", me="c"), workers=fails(make_plan("abc", me="c"), "c", ago=1.0),
                  failures=[make_failure("c")]),
        "ask a b",
    ),
    "the one before me is leaving: I plan": Case(
        make_view(me="b", there=members("abc", a=LEAVING), plan=make_plan("abc", me="b"), workers=runs(AS_B)),
        "plan 2: b c, MemberLeft, 0 restarts",
    ),
}  # fmt: skip

FENCE = {
    "cut off from the store and all neighbours: stop": Case(
        make_view(plan=PLAN, lease_expires_at=NOW - 0.1, silent=frozenset("bc")), "stop"
    ),
    "cut off: stopped": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 0.1, silent=frozenset("bc")), "exit RESTARTABLE"
    ),
    "the whole etcd is away, the neighbours are there: training goes on": Case(
        make_view(plan=AS_B, lease_expires_at=NOW - 60, **FOLLOWER), "nothing to do"
    ),
    "all neighbours are silent, the lease holds": Case(
        make_view(plan=AS_B, lease_expires_at=NOW + 1, silent=frozenset("ac"), **FOLLOWER), "suspect a"
    ),
    "a spare that trained once has nothing to stop: it waits for etcd": Case(
        make_view(
            there="abcd",
            plan=WITHOUT_ME,
            workers=runs(PLAN, GONE),
            lease_expires_at=NOW - 60,
            silent=frozenset("bc"),
            role=Role.FOLLOWER,
            predecessor="b",
        ),
        "wait",
    ),
    "alone in the plan: there is nobody to agree with": Case(
        make_view(there="a", plan=make_plan("a"), lease_expires_at=NOW - 60), "nothing to do"
    ),
}

LISTEN = {
    "a neighbour fell silent": Case(make_view(plan=AS_B, silent=frozenset("c"), **FOLLOWER), "suspect c"),
    "said already": Case(
        make_view(plan=AS_B, silent=frozenset("c"), store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER), "nothing to do"
    ),
    "it is heard again": Case(make_view(plan=AS_B, store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER), "clear c"),
    "what others say is theirs": Case(make_view(plan=AS_B, store={"suspicions": (suspicion("c", "a"),)}, **FOLLOWER), "nothing to do"),
    "workers of an earlier plan: their neighbours do not matter": Case(
        make_view(there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), silent=frozenset("b"), role=Role.FOLLOWER, predecessor="b"),
        "wait",
    ),
}

TABLES = {
    "end": END, "leave": LEAVE, "identity": IDENTITY, "misfits": MISFITS, "follow": FOLLOW, "report": REPORT, "watch": WATCH,
    "restore": RESTORE, "lead": LEAD, "fence": FENCE, "listen": LISTEN,
}  # fmt: skip


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
    assert told(decide(view, NOW)) == "register ready of epoch 0"


@pytest.mark.parametrize(("rank", "delay"), [(0, 0.0), (1, 0.15), (4, 0.6), (100, 3.0)])
def test_the_successor_comes_first(rank: int, delay: float) -> None:
    names = [chr(0x100 + number) for number in range(101)]
    plan = make_plan("".join(names), me=names[rank])
    view = make_view(me=names[rank], there="", plan=plan)
    assert takeover_delay(view) == pytest.approx(delay)


def test_a_spare_comes_last() -> None:
    assert takeover_delay(make_view(plan=SPARE, workers=Workers())) == 3.0
