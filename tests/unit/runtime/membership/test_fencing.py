"""When a member that is cut off, or whose group is, stops its worker processes."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONSISTENT, MemberState, SpecValue
from elasticjob_runtime.membership.view import Role, WorkersState

from tests.unit.runtime.membership.builders import NOW, answers, case, decided, make_plan, members, runs, suspicion

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
GONE = WorkersState.NONE


FENCE = {
    "cut off from the store and all neighbours: stop the workers":
        case("stop", plan=PLAN, lease_expires_at=NOW - 0.1, silent=frozenset("bc")),
    "cut off, and the workers are stopped: wait for the store":
        case("wait 119.9 s", plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 0.1, silent=frozenset("bc")),
    "cut off for two minutes: exit":
        case("exit RESTARTABLE", plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 120,
            silent=frozenset("bc")),
    "etcd is down, but neighbours are heard: training continues":
        case("wait", plan=AS_B, lease_expires_at=NOW - 60, **FOLLOWER),
    "all neighbours are silent, but the lease holds: suspect them":
        case("suspect a", plan=AS_B, lease_expires_at=NOW + 1, silent=frozenset("ac"), **FOLLOWER),
    "one of two neighbours is heard: not cut off":
        case("suspect a", plan=AS_B, lease_expires_at=NOW - 1, silent=frozenset("a"), **FOLLOWER),
    "a new plan that does not run yet: its silent neighbours do not matter":
        case("start plan 2", plan=make_plan("abc", round_number=2), workers=runs(PLAN, GONE), lease_expires_at=NOW - 1,
            silent=frozenset("bc")),
    "a spare has nothing to stop: it waits for etcd":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), lease_expires_at=NOW - 60,
            silent=frozenset("bc"), role=Role.FOLLOWER, predecessor="b"),
    "a neighbour follows a later plan: wait until the store shows it":
        case("wait 0.75 s", plan=AS_B, peer_round=2, peer_round_at=NOW - 0.25, **FOLLOWER),
    "a neighbour follows a later plan that the store does not show: stop even with a lease":
        case("stop", plan=AS_B, peer_round=2, peer_round_at=NOW - 1, lease_expires_at=NOW + 3, **FOLLOWER),
    "stopped for a later plan: wait until the store shows it":
        case("wait 4 s", plan=AS_B, workers=runs(AS_B, GONE), peer_round=2, peer_round_at=NOW - 1,
            lease_expires_at=NOW - 9, **FOLLOWER),
    "stopped for a later plan, etcd is still unreachable: wait":
        case("wait 1 s", plan=AS_B, workers=runs(AS_B, GONE), peer_round=4, peer_round_at=NOW - 5,
            lease_expires_at=NOW - 9, **FOLLOWER),
    "stopped for a later plan that a working etcd does not show: it was restored from a backup":
        case("publish ready of round 4", plan=AS_B, workers=runs(AS_B, GONE), peer_round=4, peer_round_at=NOW - 5,
            lease_expires_at=NOW + 3, **FOLLOWER),
    "a neighbour that follows an earlier plan does not matter":
        case("wait", there="abc", plan=make_plan("abc", round_number=2), peer_round=1, peer_round_at=NOW - 9),
    "the later plan arrives: start it":
        case("start plan 2", plan=make_plan("abc", round_number=2), workers=runs(PLAN, GONE), peer_round=2,
            peer_round_at=NOW - 9),
}  # fmt: skip


ONE = make_plan("a")
LEASE_ENDED = NOW - 2
"""The lease ended 2 s ago."""
OUTSIDE_HEARD: dict[str, Any] = {"outside_probed_at": NOW - 2.5, "outside_answered_at": NOW - 2.5}
"""An outside host responded a moment ago."""


SOLE = {
    "sole member, the lease holds: wait":
        case("wait 2 s", there="ab", plan=ONE, lease_expires_at=NOW + 2, spec=SpecValue(min=1, max=1)),
    "sole member, the lease ended: probe the spare":
        case("probe b", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1)),
    "sole member, the spare has no later plan: probe the outside hosts":
        case("probe outside hosts", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes=answers("b", ago=0.25)),
    "sole member, the spare has no later plan and an outside host responds: etcd is down, continue":
        case("wait 0.75 s", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes=answers("b", ago=0.25), **OUTSIDE_HEARD),
    "sole member: probe the spare again":
        case("probe b", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes=answers("b", ago=1.0)),
    "sole member, the spare follows a later plan: stop":
        case("stop", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes=answers("b", round_number=2)),
    "sole member, one spare is silent and another responds: continue":
        case("wait 1 s", there="abc", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes={**answers("b"), **answers("c", reachable=False)}, **OUTSIDE_HEARD),
    "sole member without store and spare: stop":
        case("stop", there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
            probes=answers("b", reachable=False)),
    "sole member without store and spare, stopped: ready for the next plan":
        case("publish ready of round 2", there="ab", plan=ONE, workers=runs(ONE, GONE), lease_expires_at=LEASE_ENDED,
            spec=SpecValue(min=1, max=1), probes=answers("b", reachable=False)),
    "sole member, a spare is silent for the whole grace: it may train, so stop":
        case("stop", there="abc", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1),
            probes={**answers("b"), **answers("c", reachable=False)}, **OUTSIDE_HEARD),
    "sole member, no spares: probe the outside hosts":
        case("probe outside hosts", there="a", plan=ONE, lease_expires_at=LEASE_ENDED, settings={"min": 1}),
    "sole member, no spares and no outside host: wait briefly for etcd":
        case("wait 2.5 s", there="a", plan=ONE, lease_expires_at=LEASE_ENDED, settings={"min": 1},
            outside_probed_at=NOW - 2.5),
    "sole member, no spares and etcd stays down: another member may have joined, so stop":
        case("stop", there="a", plan=ONE, lease_expires_at=NOW - 30, settings={"min": 1}, outside_probed_at=NOW - 2.5),
    "sole member, no spares: the operator may have replaced this node, so stop":
        case("stop", there="a", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1),
            outside_probed_at=NOW - 2.5),
    "sole member, frozen for long: probe the outside hosts before stopping":
        case("probe outside hosts", there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1),
            outside_probed_at=NOW - 2990),
    "sole member, frozen for long: wait for the outside hosts":
        case("wait 1.5 s", there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1),
            outside_probed_at=NOW - 0.5),
    "sole member, an outside host responds: etcd is down, continue":
        case("wait 2.5 s", there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1),
            **OUTSIDE_HEARD),
    "sole member of a job with at most one: continue":
        case("wait", there="a", plan=ONE, lease_expires_at=NOW - 600, settings={"min": 1, "max": 1}),
    "sole member that succeeded: publish the outcome":
        case("outcome succeeded", there=members("a", a={"state": MemberState.SUCCEEDED, "round": 1}), plan=ONE,
            workers=runs(ONE, WorkersState.SUCCEEDED), lease_expires_at=NOW - 600, settings={"min": 1}),
}  # fmt: skip


GROUP = make_plan("ab")
"""Of two; this member leads."""
EXACTLY_TWO = SpecValue(min=2, max=2)
CONSISTENTLY = SpecValue(min=2, max=2, on_partition=CONSISTENT)
OF_THREE: dict[str, Any] = {
    "me": "b",
    "there": "ab",
    "plan": make_plan("abc", me="b"),
    "spec": EXACTLY_TWO,
    "role": Role.FOLLOWER,
    "predecessor": "a",
}
CONSISTENT_B: dict[str, Any] = {
    "me": "b",
    "there": "ab",
    "plan": make_plan("ab", me="b"),
    "spec": CONSISTENTLY,
    "role": Role.FOLLOWER,
    "predecessor": "a",
}


ISLAND = {
    "the lease holds: no probes":
        case("wait 2 s", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW + 2),
    "the lease ended: probe the spares":
        case("probe c d", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED),
    "a spare follows a later plan: stop":
        case("stop", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED,
            probes={**answers("c", round_number=2), **answers("d", reachable=False)}),
    "the silent spares are enough to train: stop":
        case("stop", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED, probes=answers("cd",
            reachable=False)),
    "a silent spare cannot train without another: continue":
        case("wait 1 s", there="abc", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED, probes=answers("c",
            reachable=False), **OUTSIDE_HEARD),
    "spares and an outside host respond: etcd is down, continue":
        case("wait 1 s", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 3000, probes=answers("cd"),
            **OUTSIDE_HEARD),
    "all members are here, no outside host responds for the whole grace: stop":
        case("stop", there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 30, outside_probed_at=NOW - 2.5),
    "all members are here, no outside host responds within the grace: continue":
        case("wait 2.5 s", there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 20,
            outside_probed_at=NOW - 2.5),
    "all members of a job without an operator are here, at the maximum: continue":
        case("wait", there="ab", plan=GROUP, settings={"max": 2}, lease_expires_at=NOW - 3000),
    "a follower leaves the decision to its leader":
        case("wait", me="b", there="ab", plan=make_plan("ab", me="b"), spec=EXACTLY_TWO, role=Role.FOLLOWER,
            predecessor="a", lease_expires_at=NOW - 3000),
    "a silent member of the group cannot train alone: continue within the grace":
        case("wait 21 s", **OF_THREE, silent=frozenset("c"), silent_since=NOW - 10, lease_expires_at=NOW - 9,
            suspicions=(suspicion("c", "b"),)),
    "a member of the group is silent for the whole grace: stop":
        case("stop", **OF_THREE, silent=frozenset("c"), silent_since=NOW - 30, lease_expires_at=NOW - 40),
    "a member of the group is silent, but the lease holds: left to the planner":
        case("wait 3 s", **OF_THREE, silent=frozenset("c"), silent_since=NOW - 300, lease_expires_at=NOW + 3,
            suspicions=(suspicion("c", "b"),)),
    "Consistent: stop with the end of the lease": case("stop", **CONSISTENT_B, lease_expires_at=NOW),
    "Consistent: continue while the lease holds": case("wait 1 s", **CONSISTENT_B, lease_expires_at=NOW + 1),
    "Consistent, succeeded: publish it":
        case("publish succeeded of round 1", **CONSISTENT_B, workers=runs(make_plan("ab", me="b"),
            WorkersState.SUCCEEDED), lease_expires_at=NOW - 9),
}  # fmt: skip


SUSPECT = {
    "a silent neighbour is suspected": case("suspect c", plan=AS_B, silent=frozenset("c"), **FOLLOWER),
    "a suspicion is published once":
        case("wait", plan=AS_B, silent=frozenset("c"), suspicions=(suspicion("c", "b"),), **FOLLOWER),
    "a neighbour heard again: clear the suspicion":
        case("clear c", plan=AS_B, suspicions=(suspicion("c", "b"),), **FOLLOWER),
    "suspicions of others are left alone": case("wait", plan=AS_B, suspicions=(suspicion("c", "a"),), **FOLLOWER),
    "silent neighbours of an earlier plan do not matter":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), silent=frozenset("b"), role=Role.FOLLOWER,
            predecessor="b"),
}  # fmt: skip

TABLES = {"fence": FENCE, "sole member": SOLE, "island": ISLAND, "suspect": SUSPECT}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does
