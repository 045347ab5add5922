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
    decided,
    make_plan,
    make_view,
    members,
    runs,
    suspicion,
)

PLAN = make_plan("abc")
AS_B = make_plan("abc", me="b", ranks=None)
WITHOUT_ME = make_plan("bcd", round_number=2, me="a")
FOLLOWER: dict[str, Any] = {"role": Role.FOLLOWER, "predecessor": "a", "me": "b"}
GONE = WorkersState.NONE


FENCE = {
    "cut off from the store and all neighbours: stop the workers": Case(
        make_view(plan=PLAN, lease_expires_at=NOW - 0.1, silent=frozenset("bc")), "stop"
    ),
    "cut off, and the workers are stopped: wait for the store": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 0.1, silent=frozenset("bc")),
        "wait 119.9 s",
    ),
    "cut off for two minutes: exit": Case(
        make_view(plan=PLAN, workers=runs(PLAN, GONE), lease_expires_at=NOW - 120, silent=frozenset("bc")),
        "exit RESTARTABLE",
    ),
    "etcd is down, but neighbours are heard: training continues": Case(
        make_view(plan=AS_B, lease_expires_at=NOW - 60, **FOLLOWER), "wait"
    ),
    "all neighbours are silent, but the lease holds: suspect them": Case(
        make_view(plan=AS_B, lease_expires_at=NOW + 1, silent=frozenset("ac"), **FOLLOWER), "suspect a"
    ),
    "one of two neighbours is heard: not cut off": Case(
        make_view(plan=AS_B, lease_expires_at=NOW - 1, silent=frozenset("a"), **FOLLOWER), "suspect a"
    ),
    "a new plan that does not run yet: its silent neighbours do not matter": Case(
        make_view(
            plan=make_plan("abc", round_number=2),
            workers=runs(PLAN, GONE),
            lease_expires_at=NOW - 1,
            silent=frozenset("bc"),
        ),
        "start plan 2",
    ),
    "a spare has nothing to stop: it waits for etcd": Case(
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
    "a neighbour follows a later plan: wait until the store shows it": Case(
        make_view(plan=AS_B, peer_round=2, peer_round_at=NOW - 0.25, **FOLLOWER), "wait 0.75 s"
    ),
    "a neighbour follows a later plan that the store does not show: stop even with a lease": Case(
        make_view(plan=AS_B, peer_round=2, peer_round_at=NOW - 1, lease_expires_at=NOW + 3, **FOLLOWER),
        "stop",
    ),
    "stopped for a later plan: wait until the store shows it": Case(
        make_view(
            plan=AS_B,
            workers=runs(AS_B, GONE),
            peer_round=2,
            peer_round_at=NOW - 1,
            lease_expires_at=NOW - 9,
            **FOLLOWER,
        ),
        "wait 4 s",
    ),
    "stopped for a later plan, etcd is still unreachable: wait": Case(
        make_view(
            plan=AS_B,
            workers=runs(AS_B, GONE),
            peer_round=4,
            peer_round_at=NOW - 5,
            lease_expires_at=NOW - 9,
            **FOLLOWER,
        ),
        "wait 1 s",
    ),
    "stopped for a later plan that a working etcd does not show: it was restored from a backup": Case(
        make_view(
            plan=AS_B,
            workers=runs(AS_B, GONE),
            peer_round=4,
            peer_round_at=NOW - 5,
            lease_expires_at=NOW + 3,
            **FOLLOWER,
        ),
        "publish ready of round 4",
    ),
    "a neighbour that follows an earlier plan does not matter": Case(
        make_view(there="abc", plan=make_plan("abc", round_number=2), peer_round=1, peer_round_at=NOW - 9),
        "wait",
    ),
    "the later plan arrives: start it": Case(
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
LEASE_ENDED = NOW - 2
"""The lease ended 2 s ago."""
OUTSIDE_HEARD: dict[str, Any] = {"outside_probed_at": NOW - 2.5, "outside_answered_at": NOW - 2.5}
"""An outside host responded a moment ago."""


SOLE = {
    "sole member, the lease holds: wait": Case(make_view(there="ab", plan=ONE, lease_expires_at=NOW + 2, spec=SpecValue(min=1, max=1)), "wait 2 s"),
    "sole member, the lease ended: probe the spare": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1)), "probe b"
    ),
    "sole member, the spare has no later plan: probe the outside hosts": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1), probes=answers("b", ago=0.25)), "probe outside hosts"
    ),
    "sole member, the spare has no later plan and an outside host responds: etcd is down, continue": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1), probes=answers("b", ago=0.25), **OUTSIDE_HEARD),
        "wait 0.75 s",
    ),
    "sole member: probe the spare again": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1), probes=answers("b", ago=1.0)), "probe b"
    ),
    "sole member, the spare follows a later plan: stop": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1), probes=answers("b", round_number=2)), "stop"
    ),
    "sole member, one spare is silent and another responds: continue": Case(
        make_view(there="abc", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
                  probes={**answers("b"), **answers("c", reachable=False)}, **OUTSIDE_HEARD), "wait 1 s"
    ),
    "sole member without store and spare: stop": Case(
        make_view(there="ab", plan=ONE, lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1), probes=answers("b", reachable=False)), "stop"
    ),
    "sole member without store and spare, stopped: ready for the next plan": Case(
        make_view(there="ab", plan=ONE, workers=runs(ONE, GONE), lease_expires_at=LEASE_ENDED, spec=SpecValue(min=1, max=1),
                  probes=answers("b", reachable=False)), "publish ready of round 2"
    ),
    "sole member, a spare is silent for the whole grace: it may train, so stop": Case(
        make_view(there="abc", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1),
                  probes={**answers("b"), **answers("c", reachable=False)}, **OUTSIDE_HEARD), "stop"
    ),
    "sole member, no spares: probe the outside hosts": Case(
        make_view(there="a", plan=ONE, lease_expires_at=LEASE_ENDED, settings={"min": 1}), "probe outside hosts"
    ),
    "sole member, no spares and no outside host: wait briefly for etcd": Case(
        make_view(there="a", plan=ONE, lease_expires_at=LEASE_ENDED, settings={"min": 1}, outside_probed_at=NOW - 2.5), "wait 2.5 s"
    ),
    "sole member, no spares and etcd stays down: another member may have joined, so stop": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 30, settings={"min": 1}, outside_probed_at=NOW - 2.5), "stop"
    ),
    "sole member, no spares: the operator may have replaced this node, so stop": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 30, spec=SpecValue(min=1, max=1), outside_probed_at=NOW - 2.5), "stop"
    ),
    "sole member, frozen for long: probe the outside hosts before stopping": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1),
                  outside_probed_at=NOW - 2990), "probe outside hosts"
    ),
    "sole member, frozen for long: wait for the outside hosts": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1), outside_probed_at=NOW - 0.5), "wait 1.5 s"
    ),
    "sole member, an outside host responds: etcd is down, continue": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 3000, spec=SpecValue(min=1, max=1), **OUTSIDE_HEARD), "wait 2.5 s"
    ),
    "sole member of a job with at most one: continue": Case(
        make_view(there="a", plan=ONE, lease_expires_at=NOW - 600, settings={"min": 1, "max": 1}), "wait"
    ),
    "sole member that succeeded: publish the outcome": Case(
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
    "the lease holds: no probes": Case(make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW + 2), "wait 2 s"),
    "the lease ended: probe the spares": Case(make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED), "probe c d"),
    "a spare follows a later plan: stop": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED,
                  probes={**answers("c", round_number=2), **answers("d", reachable=False)}), "stop"
    ),
    "the silent spares are enough to train: stop": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED, probes=answers("cd", reachable=False)), "stop"
    ),
    "a silent spare cannot train without another: continue": Case(
        make_view(there="abc", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=LEASE_ENDED, probes=answers("c",
                  reachable=False), **OUTSIDE_HEARD), "wait 1 s"
    ),
    "spares and an outside host respond: etcd is down, continue": Case(
        make_view(there="abcd", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 3000, probes=answers("cd"), **OUTSIDE_HEARD), "wait 1 s"
    ),
    "all members are here, no outside host responds for the whole grace: stop": Case(
        make_view(there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 30, outside_probed_at=NOW - 2.5), "stop"
    ),
    "all members are here, no outside host responds within the grace: continue": Case(
        make_view(there="ab", plan=GROUP, spec=EXACTLY_TWO, lease_expires_at=NOW - 20, outside_probed_at=NOW - 2.5), "wait 2.5 s"
    ),
    "all members of a job without an operator are here, at the maximum: continue": Case(
        make_view(there="ab", plan=GROUP, settings={"max": 2}, lease_expires_at=NOW - 3000), "wait"
    ),
    "a follower leaves the decision to its leader": Case(
        make_view(me="b", there="ab", plan=make_plan("ab", me="b"), spec=EXACTLY_TWO, role=Role.FOLLOWER, predecessor="a",
                  lease_expires_at=NOW - 3000), "wait"
    ),
    "a silent member of the group cannot train alone: continue within the grace": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 10, lease_expires_at=NOW - 9,
                  store={"suspicions": (suspicion("c", "b"),)}), "wait 21 s"
    ),
    "a member of the group is silent for the whole grace: stop": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 30, lease_expires_at=NOW - 40), "stop"
    ),
    "a member of the group is silent, but the lease holds: left to the planner": Case(
        make_view(**OF_THREE, silent=frozenset("c"), silent_since=NOW - 300, lease_expires_at=NOW + 3,
                  store={"suspicions": (suspicion("c", "b"),)}), "wait 3 s"
    ),
    "Consistent: stop with the end of the lease": Case(
        make_view(**CONSISTENT_B, lease_expires_at=NOW), "stop"
    ),
    "Consistent: continue while the lease holds": Case(
        make_view(**CONSISTENT_B, lease_expires_at=NOW + 1), "wait 1 s"
    ),
    "Consistent, succeeded: publish it": Case(
        make_view(**CONSISTENT_B, workers=runs(make_plan("ab", me="b"), WorkersState.SUCCEEDED),
                  lease_expires_at=NOW - 9), "publish succeeded of round 1"
    ),
}  # fmt: skip


SUSPECT = {
    "a silent neighbour is suspected": Case(make_view(plan=AS_B, silent=frozenset("c"), **FOLLOWER), "suspect c"),
    "a suspicion is published once": Case(
        make_view(plan=AS_B, silent=frozenset("c"), store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER),
        "wait",
    ),
    "a neighbour heard again: clear the suspicion": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("c", "b"),)}, **FOLLOWER), "clear c"
    ),
    "suspicions of others are left alone": Case(
        make_view(plan=AS_B, store={"suspicions": (suspicion("c", "a"),)}, **FOLLOWER), "wait"
    ),
    "silent neighbours of an earlier plan do not matter": Case(
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
    "fence": FENCE,
    "sole member": SOLE,
    "island": ISLAND,
    "suspect": SUSPECT,
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in TABLES.items() for name in cases])
def test_decide_follows_each_rule_and_says_why(rule: str, name: str) -> None:
    case = TABLES[rule][name]
    assert decided(case.view) == case.does
