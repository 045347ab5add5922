"""Who is before whom in line: whom an agent watches and hears, when it plans, when it gives way to nobody being
there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_runtime.contract import CONSISTENT, MemberState, SpecValue
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.succession import takeover_delay
from elasticjob_runtime.membership.view import (
    Role,
    Workers,
    WorkersState,
)

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    fails,
    make_failure,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
    told,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
SPARE = make_plan("bc", me="a", ranks=None)
LEAVING: dict[str, Any] = {"state": MemberState.LEAVING}
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
STOPPING, GONE = WorkersState.STOPPING, WorkersState.NONE

WATCH = {
    "nothing is known": Case(make_view(role=None), "watch as follower"),
    "registered first": Case(make_view(role=Role.FOLLOWER, plan=None), "watch as planner"),
    "another registered before me": Case(
        make_view(me="b", there="ab", role=Role.FOLLOWER, predecessor="a"), "nothing to do"
    ),
    "the one before me has gone": Case(
        make_view(me="b", there="b", role=Role.FOLLOWER, predecessor="a"), "watch as planner"
    ),
    "the one before me is leaving": Case(
        make_view(me="b", there=members("ab", a=LEAVING), role=Role.FOLLOWER, predecessor="a"), "watch as planner"
    ),
    "the one I follow registered after me, in a store that came back empty": Case(
        make_view(me="a", there="ab", role=Role.FOLLOWER, predecessor="b"), "watch as follower"
    ),
    "I follow myself, for I had the name of a leader of a store that came back empty": Case(
        make_view(me="a", there="a", role=Role.FOLLOWER, predecessor="a"), "watch as follower"
    ),
    "rank 0 leads": Case(make_view(plan=PLAN, role=Role.FOLLOWER, predecessor="b"), "watch as planner"),
    "rank 1 follows rank 0": Case(make_view(me="b", plan=AS_B, role=Role.PLANNER), "watch as follower of a"),
    "rank 1 follows rank 0 already": Case(make_view(plan=AS_B, **FOLLOWER), "nothing to do"),
    "rank 0 has gone": Case(make_view(there="bc", plan=AS_B, **FOLLOWER), "watch as planner"),
    "rank 0 is leaving": Case(make_view(there=members("abc", a=LEAVING), plan=AS_B, **FOLLOWER), "watch as planner"),
    "rank 0 came back under its name: it is another": Case(
        make_view(there=members("abc", a={"incarnation": "a2", "create": 200}), plan=AS_B, **FOLLOWER),
        "watch as planner",
    ),
    "a spare follows the leader": Case(
        make_view(there="ab", plan=SPARE, workers=Workers(), role=Role.FOLLOWER, predecessor="c"),
        "watch as follower of b",
    ),
    "a joiner under the leader's name does not follow itself": Case(
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
        make_view(there=members("a", a={"seen_at": NOW}), workers=runs(PLAN, GONE), store={"last_round": 2}), "wait 5 s"
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
        make_view(plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 0.1, silent=frozenset("bc")),
        "exit RESTARTABLE",
    ),
    "the whole etcd is away, the neighbours are there: training goes on": Case(
        make_view(plan=AS_B, lease_expires_at=NOW - 60, **FOLLOWER), "nothing to do"
    ),
    "all neighbours are silent, the lease holds": Case(
        make_view(plan=AS_B, lease_expires_at=NOW + 1, silent=frozenset("ac"), **FOLLOWER), "suspect a"
    ),
    "one of two neighbours is heard: not cut off": Case(
        make_view(plan=AS_B, lease_expires_at=NOW - 1, silent=frozenset("a"), **FOLLOWER), "suspect a"
    ),
    "a new plan that does not run yet: its neighbours are not heard yet": Case(
        make_view(
            plan=make_plan("abc", round_number=2),
            workers=runs(PLAN, GONE),
            lease_expires_at=NOW - 1,
            silent=frozenset("bc"),
        ),
        "start plan 2",
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
    "a neighbour follows a later plan: it will show here in a moment": Case(
        make_view(plan=AS_B, peer_round=2, peer_round_at=NOW - 0.25, **FOLLOWER), "wait 0.75 s"
    ),
    "a neighbour follows a later plan, and the store does not tell here: stop, lease or not": Case(
        make_view(plan=AS_B, peer_round=2, peer_round_at=NOW - 1, lease_expires_at=NOW + 3, **FOLLOWER),
        "stop",
    ),
    "stopped for a later plan: wait for the store to tell": Case(
        make_view(
            plan=AS_B,
            workers=runs(AS_B, GONE),
            peer_round=2,
            peer_round_at=NOW - 1,
            lease_expires_at=NOW - 9,
            **FOLLOWER,
        ),
        "wait",
    ),
    "a neighbour has not seen this plan yet": Case(
        make_view(there="abc", plan=make_plan("abc", round_number=2), peer_round=1, peer_round_at=NOW - 9),
        "nothing to do",
    ),
    "the later plan has come": Case(
        make_view(
            plan=make_plan("abc", round_number=2),
            workers=runs(PLAN, GONE),
            peer_round=2,
            peer_round_at=NOW - 9,
        ),
        "start plan 2",
    ),
}

ONE = make_plan("a")
AWAY = NOW - 2
"""The lease ended 2 s ago."""

HEARD: dict[str, Any] = {"witnesses_probed_at": NOW - 2.5, "witness_answered_at": NOW - 2.5}
"""Something outside answered a moment ago."""

ALONE = {
    "alone, the lease holds": Case(make_view(there="ab", plan=ONE, lease_expires_at=NOW + 2, spec=SpecValue(min=1, max=1)), "wait 2 s"),
    "alone, and the lease ended: the spare is asked": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1)), "ask b"
    ),
    "alone: the spare has no later plan: is it etcd that is away, for all?": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1), probes=answers("b", ago=0.25)), "ask outside"
    ),
    "alone: the spare has no later plan, and the world answers: etcd is away for all": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1), probes=answers("b", ago=0.25), **HEARD),
        "wait 0.75 s",
    ),
    "alone: the spare is asked again": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1), probes=answers("b", ago=1.0)), "ask b"
    ),
    "alone: the spare follows a later plan": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1), probes=answers("b", round_number=2)), "stop"
    ),
    "alone: one spare is gone with the store, another answers": Case(
        make_view(there="abc", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1),
                  probes={**answers("b"), **answers("c", reachable=False)}, **HEARD), "wait 1 s"
    ),
    "alone: neither store nor spare": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=AWAY, spec=SpecValue(min=1, max=1), probes=answers("b", reachable=False)), "stop"
    ),
    "alone: neither store nor spare, stopped: it asks for a new plan when the store is back": Case(
        make_view(there="ab", plan=ONE, workers=runs(ONE, GONE), lease_expires_at=AWAY, spec=SpecValue(min=1, max=1),
                  probes=answers("b", reachable=False)), "say ready of round 2"
    ),
    "alone: a spare is silent, another answers, for the whole grace: the silent one may train": Case(
        make_view(there="abc", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1),
                  probes={**answers("b"), **answers("c", reachable=False)}, **HEARD), "stop"
    ),
    "alone, and nobody is known: does the world answer?": Case(
        make_view(there="a", plan=ONE, lease_expires_at=AWAY, settings={"min": 1}), "ask outside"
    ),
    "alone, and nobody is known, nor answers: a moment for etcd to come back": Case(
        make_view(there="a", plan=ONE, lease_expires_at=AWAY, settings={"min": 1}, witnesses_probed_at=NOW - 2.5), "wait 2.5 s"
    ),
    "alone, nobody is known, etcd does not come back: somebody may have come": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 30, settings={"min": 1}, witnesses_probed_at=NOW - 2.5), "stop"
    ),
    "alone, nobody is known, but an operator may have replaced this node": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1), witnesses_probed_at=NOW - 2.5), "stop"
    ),
    "alone, and frozen for long: it asks before it gives up": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1),
                  witnesses_probed_at=NOW - 2990), "ask outside"
    ),
    "alone, and frozen for long: it waits for the answer": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1), witnesses_probed_at=NOW - 0.5), "wait 1.5 s"
    ),
    "alone, and the world answers: etcd is away, and nobody replaces anybody": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1), **HEARD), "wait 2.5 s"
    ),
    "alone, and there is room for nobody else: it trains on": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 600, settings={"min": 1, "max": 1}), "nothing to do"
    ),
    "alone and done: nothing to protect": Case(
        make_view(there=members("a", a={"state": MemberState.SUCCEEDED, "round": 1}), plan=ONE, workers=runs(ONE, WorkersState.SUCCEEDED),
                  lease_expires_at=NOW - 600, settings={"min": 1}), "outcome succeeded"
    ),
}  # fmt: skip

GROUP = make_plan("ab")
"""Of two; this member leads."""
EXACTLY_TWO = SpecValue(min=2, max=2)
CONSISTENTLY = SpecValue(min=2, max=2, on_partition=CONSISTENT)

OF_THREE: dict[str, Any] = {
    "me": "b", "there": "ab", "plan": make_plan("abc", me="b"), "spec": EXACTLY_TWO, "role": Role.FOLLOWER, "predecessor": "a",
}  # fmt: skip
CONSISTENT_B: dict[str, Any] = {
    "me": "b", "there": "ab", "plan": make_plan("ab", me="b"), "spec": CONSISTENTLY, "role": Role.FOLLOWER, "predecessor": "a",
}  # fmt: skip

ISLAND = {
    "the lease holds: nobody is asked": Case(make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW + 2), "wait 2 s"),
    "the lease ended: the spares are asked": Case(make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=AWAY), "ask c d"),
    "a spare follows a later plan": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=AWAY,
                  probes={**answers("c", round_number=2), **answers("d", reachable=False)}), "stop"
    ),
    "the spares are silent, and enough to train": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=AWAY, probes=answers("cd", reachable=False)), "stop"
    ),
    "one spare is silent, too few to train without another": Case(
        make_view(there="abc", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=AWAY, probes=answers("c",
                  reachable=False), **HEARD), "wait 1 s"
    ),
    "the spares answer, and so does the world: etcd is away for all": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 3000, probes=answers("cd"), **HEARD), "wait 1 s"
    ),
    "all are here, nothing outside answers: not for longer than the grace": Case(
        make_view(there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 30, witnesses_probed_at=NOW - 2.5), "stop"
    ),
    "all are here, nothing outside answers, within the grace": Case(
        make_view(there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 20, witnesses_probed_at=NOW - 2.5), "wait 2.5 s"
    ),
    "all are here, by hand, and there is no room for others: it trains on": Case(
        make_view(there="ab", plan=GROUP, settings={"max": 2}, lease_expires_at=NOW - 3000), "nothing to do"
    ),
    "a follower leaves it to its leader": Case(
        make_view(me="b", there="ab", plan=make_plan("ab", me="b"), spec=EXACTLY_TWO, role=Role.FOLLOWER, predecessor="a",
                  lease_expires_at=NOW - 3000), "nothing to do"
    ),
    "one of the group is silent: it cannot train, but may be back": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 10, lease_expires_at=NOW - 9,
                  store={"suspicions": (suspicion("c", "b"),)}), "wait 21 s"
    ),
    "one of the group is silent for the whole grace": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 30, lease_expires_at=NOW - 40), "stop"
    ),
    "one of the group is silent, and the store is there: the planner's business": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 300, lease_expires_at=NOW + 3,
                  store={"suspicions": (suspicion("c", "b"),)}), "wait 3 s"
    ),
    "Consistent: nobody trains on without a lease": Case(
        make_view(**CONSISTENT_B, lease_expires_at=NOW), "stop"
    ),
    "Consistent: the lease holds": Case(
        make_view(**CONSISTENT_B, lease_expires_at=NOW + 1), "wait 1 s"
    ),
    "Consistent, and done: nothing to protect": Case(
        make_view(**CONSISTENT_B, workers=runs(make_plan("ab", me="b"), WorkersState.SUCCEEDED),
                  lease_expires_at=NOW - 9), "say succeeded of round 1"
    ),
}  # fmt: skip

LISTEN = {
    "a neighbour fell silent": Case(make_view(plan=AS_B, silent=frozenset("c"), **FOLLOWER), "suspect c"),
    "said already": Case(
        make_view(plan=AS_B, silent=frozenset("c"), store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER),
        "nothing to do",
    ),
    "it is heard again": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER), "clear c"
    ),
    "what others say is theirs": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("c", "a"),)}, **FOLLOWER), "nothing to do"
    ),
    "workers of an earlier plan: their neighbours do not matter": Case(
        make_view(
            there="abcd",
            plan=WITHOUT_ME,
            workers=runs(PLAN, GONE),
            silent=frozenset("b"),
            role=Role.FOLLOWER,
            predecessor="b",
        ),
        "wait",
    ),
}

TABLES = {
    "watch": WATCH,
    "restore": RESTORE,
    "lead": LEAD,
    "fence": FENCE,
    "alone": ALONE,
    "island": ISLAND,
    "listen": LISTEN,
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_rule(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    expected = case.does.replace("nothing to do", "wait")
    assert told(decide(case.view, NOW)) == expected


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_every_action_has_its_reason(rule: str, name: str) -> None:
    assert len(decide(TABLES[rule][name].view, NOW).reason) > 5


@pytest.mark.parametrize(("rank", "delay"), [(0, 0.0), (1, 0.15), (4, 0.6), (7, 1.05)])
def test_the_successor_comes_first(rank: int, delay: float) -> None:
    names = [chr(0x100 + number) for number in range(101)]
    plan = make_plan("".join(names), me=names[rank])
    view = make_view(me=names[rank], there="", plan=plan)
    assert takeover_delay(view) == pytest.approx(delay)


@pytest.mark.parametrize("size", [20, 300, 3000])
def test_few_take_over_at_a_time_however_many_members_wait(size: int) -> None:
    """All that could have gone before are gone: each later one reads every member, so they come one by one."""
    names = [chr(0x100 + number) for number in range(size)]
    plan = make_plan("".join(names))
    delays = []
    for rank, name in enumerate(names):
        mine = dataclasses.replace(plan, rank=plan.ranks[name] if plan.ranks else None, ranks=None)
        delays.append(takeover_delay(make_view(me=name, there="", plan=mine)))
        assert rank < 8 or delays[-1] > delays[7], "out of turn"
    for start in range(0, 30, 3):
        assert sum(start <= delay < start + 3 for delay in delays) <= 8 + 60, f"a storm of planners after {start} s"
    assert sum(delay < 5 for delay in delays) > 8, "nobody comes"


def test_a_spare_comes_last() -> None:
    spare = make_view(plan=SPARE, workers=Workers())
    assert takeover_delay(spare) > 8 * spare.settings.takeover_delay
