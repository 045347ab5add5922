"""When a member that is cut off, or whose group is, stops its worker processes."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import CONSISTENT, MemberState, SpecValue
from elasticjob_runtime.membership.view import Role, WorkersState

from tests.unit.runtime.membership.builders import (
    NOW,
    Case,
    answers,
    case,
    decided,
    make_plan,
    members,
    runs,
    suspicion,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
NEXT = make_plan("abc", round_number=2)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
FOLLOWS_B: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "b"}
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
        case("start plan 2", plan=NEXT, workers=runs(PLAN, GONE), lease_expires_at=NOW - 1, silent=frozenset("bc")),
    "a spare has nothing to stop: it waits for etcd":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), lease_expires_at=NOW - 60,
            silent=frozenset("bc"), **FOLLOWS_B),
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
        case("wait", there="abc", plan=NEXT, peer_round=1, peer_round_at=NOW - 9),
    "the later plan arrives: start it":
        case("start plan 2", plan=NEXT, workers=runs(PLAN, GONE), peer_round=2, peer_round_at=NOW - 9),
}  # fmt: skip


ONE = make_plan("a")
OUTSIDE_HEARD: dict[str, Any] = {"outside_probed_at": NOW - 2.5, "outside_answered_at": NOW - 2.5}
"""An outside host responded a moment ago."""


ONLY_ONE = SpecValue(min=1, max=1)
NO_SPEC: dict[str, Any] = {"spec": None, "settings": {"min": 1}}


def sole(does: str, there: str, ended: float = 2.0, **fields: Any) -> Case:
    """Of one member that trains alone, and whose lease ended so many seconds ago."""
    return case(does, there=there, plan=ONE, lease_expires_at=NOW - ended, **{"spec": ONLY_ONE, **fields})


SOLE = {
    "sole member, the lease holds: wait":
        case("wait 2 s", there="ab", plan=ONE, lease_expires_at=NOW + 2, spec=ONLY_ONE),
    "sole member, the lease ended: probe the spare": sole("probe b", "ab"),
    "sole member, the spare has no later plan: probe the outside hosts":
        sole("probe outside hosts", "ab", probes=answers("b", ago=0.25)),
    "sole member, the spare has no later plan and an outside host responds: etcd is down, continue":
        sole("wait 0.75 s", "ab", probes=answers("b", ago=0.25), **OUTSIDE_HEARD),
    "sole member: probe the spare again": sole("probe b", "ab", probes=answers("b", ago=1.0)),
    "sole member, the spare follows a later plan: stop": sole("stop", "ab", probes=answers("b", round_number=2)),
    "sole member, one spare is silent and another responds: continue":
        sole("wait 1 s", "abc", probes=answers("b", silent="c"), **OUTSIDE_HEARD),
    "sole member without store and spare: stop": sole("stop", "ab", probes=answers(silent="b")),
    "sole member without store and spare, stopped: ready for the next plan":
        sole("publish ready of round 2", "ab", workers=runs(ONE, GONE), probes=answers(silent="b")),
    "sole member, a spare is silent for the whole grace: it may train, so stop":
        sole("stop", "abc", 30, probes=answers("b", silent="c"), **OUTSIDE_HEARD),
    "sole member, no spares: probe the outside hosts": sole("probe outside hosts", "a", **NO_SPEC),
    "sole member, no spares and no outside host: wait briefly for etcd":
        sole("wait 2.5 s", "a", **NO_SPEC, outside_probed_at=NOW - 2.5),
    "sole member, no spares and etcd stays down: another member may have joined, so stop":
        sole("stop", "a", 30, **NO_SPEC, outside_probed_at=NOW - 2.5),
    "sole member, no spares: the operator may have replaced this node, so stop":
        sole("stop", "a", 30, outside_probed_at=NOW - 2.5),
    "sole member, frozen for long: probe the outside hosts before stopping":
        sole("probe outside hosts", "a", 3000, outside_probed_at=NOW - 2990),
    "sole member, frozen for long: wait for the outside hosts":
        sole("wait 1.5 s", "a", 3000, outside_probed_at=NOW - 0.5),
    "sole member, an outside host responds: etcd is down, continue": sole("wait 2.5 s", "a", 3000, **OUTSIDE_HEARD),
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
OF_THREE: dict[str, Any] = {**FOLLOWER, "there": "ab", "plan": make_plan("abc", me="b"), "spec": EXACTLY_TWO}
CONSISTENT_B: dict[str, Any] = {**FOLLOWER, "there": "ab", "plan": make_plan("ab", me="b"), "spec": CONSISTENTLY}


def island(does: str, there: str, ended: float = 2.0, **fields: Any) -> Case:
    """Of the leader of a group of two, whose lease ended so many seconds ago."""
    return case(does, there=there, plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - ended, **fields)


ISLAND = {
    "the lease holds: no probes":
        case("wait 2 s", there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW + 2),
    "the lease ended: probe the spares": island("probe c d", "abcd"),
    "a spare follows a later plan: stop":
        island("stop", "abcd", probes={**answers("c", round_number=2), **answers(silent="d")}),
    "the silent spares are enough to train: stop": island("stop", "abcd", probes=answers(silent="cd")),
    "a silent spare cannot train without another: continue":
        island("wait 1 s", "abc", probes=answers(silent="c"), **OUTSIDE_HEARD),
    "spares and an outside host respond: etcd is down, continue":
        island("wait 1 s", "abcd", 3000, probes=answers("cd"), **OUTSIDE_HEARD),
    "all members are here, no outside host responds for the whole grace: stop":
        island("stop", "ab", 30, outside_probed_at=NOW - 2.5),
    "all members are here, no outside host responds within the grace: continue":
        island("wait 2.5 s", "ab", 20, outside_probed_at=NOW - 2.5),
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
        case("publish succeeded of round 1", **CONSISTENT_B,
            workers=runs(make_plan("ab", me="b"), WorkersState.SUCCEEDED), lease_expires_at=NOW - 9),
}  # fmt: skip


SUSPECT = {
    "a silent neighbour is suspected": case("suspect c", plan=AS_B, silent=frozenset("c"), **FOLLOWER),
    "a suspicion is published once":
        case("wait", plan=AS_B, silent=frozenset("c"), suspicions=(suspicion("c", "b"),), **FOLLOWER),
    "a neighbour heard again: clear the suspicion":
        case("clear c", plan=AS_B, suspicions=(suspicion("c", "b"),), **FOLLOWER),
    "suspicions of others are left alone": case("wait", plan=AS_B, suspicions=(suspicion("c", "a"),), **FOLLOWER),
    "silent neighbours of an earlier plan do not matter":
        case("wait", there="abcd", plan=WITHOUT_ME, workers=runs(PLAN, GONE), silent=frozenset("b"), **FOLLOWS_B),
}  # fmt: skip

TABLES = {"fence": FENCE, "sole member": SOLE, "island": ISLAND, "suspect": SUSPECT}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does
