"""Nothing on a node is given up as long as its kubelet may live."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import OnPartition, Reason
from elasticjob_operator.node_state import Heartbeat, Node, NodeHealth
from elasticjob_operator.policies.node_loss import (
    LossRules,
    Nodes,
    assess_node,
    count_nodes,
    tolerated_seconds,
    too_many,
)
from elasticjob_operator.state import LONG_AGO
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operator.builders import NOW, at, make_heartbeat, make_node
from tests.unit.operator.tables import table

SILENT, NOT_READY = NodeHealth.SILENT, NodeHealth.NOT_READY
GOOD = [make_node("good"), make_node("also-good")]


def nodes(*others: Node, heartbeat: Heartbeat | None = None, watched: float | None = -3600) -> Nodes:
    by_name = {node.name: node for node in (*GOOD, *others)}
    heartbeats = {"bad": heartbeat} if heartbeat else {}
    since = None if watched is None else at(watched)
    return Nodes(by_name=by_name, watched_since=since, heartbeats=heartbeats, node_counts=count_nodes(by_name))


def silent(since: float = -10, seen: float | None = None, **node: bool) -> Node:
    return make_node("bad", SILENT, since=since, seen=seen, **node)


OLD, FRESH = make_heartbeat(renewed=-55), make_heartbeat(renewed=-3)
CONSISTENT = LossRules(on_partition=OnPartition.CONSISTENT)


@table(
    "known, rules, expected, again",
    {
        "silent for 2 s": (nodes(silent(-2)), LossRules(), "wait", 3),
        "silent for 5 s: its Lease is read first": (nodes(silent(-5)), LossRules(), "verify", None),
        "... and is old": (nodes(silent(), heartbeat=OLD), LossRules(), "lost", None),
        "... and is fresh: until it would have ended": (nodes(silent(), heartbeat=FRESH), LossRules(), "wait", 40),
        "read too long ago": (nodes(silent(), heartbeat=make_heartbeat(read=-11)), LossRules(), "verify", None),
        "a clock an hour ahead: but it is never renewed": pytest.param(
            nodes(silent(), heartbeat=make_heartbeat(renewed=3600, unchanged=-41)), LossRules(), "lost", None
        ),
        "may not read Leases": (nodes(silent(), heartbeat=make_heartbeat(renewed=None)), LossRules(), "lost", None),
        "an outage ago, by the API server: seen a second ago": (nodes(silent(-3600, seen=-1)), LossRules(), "wait", 4),
        "the operator's watch had a gap: heartbeats come first": pytest.param(
            nodes(silent(-60), watched=-3), LossRules(), "wait", 22
        ),
        "it has one now": (nodes(silent(-60), watched=None), LossRules(), "wait", 25),
        "Consistent: never": (nodes(silent(-3600), heartbeat=OLD), CONSISTENT, "kept", None),
        "... unless it is tainted": (nodes(silent(-1, out_of_service=True)), CONSISTENT, "lost", None),
        "marked: at once": (nodes(silent(-1, out_of_service=True), watched=None), LossRules(), "lost", None),
        "Ready=False: its kubelet lives": (nodes(make_node("bad", NOT_READY)), LossRules(), "no", None),
        "ready": (nodes(make_node("bad")), LossRules(), "no", None),
        "no such node: asked first": (nodes(), LossRules(), "verify", None),
        "... which does not exist": (nodes(heartbeat=make_heartbeat(exists=False)), LossRules(), "lost", None),
        "... which exists: the watch lags behind": (nodes(heartbeat=make_heartbeat()), LossRules(), "wait", 11),
    },
)
def test_a_node_is_lost_only_when_that_is_certain(
    known: Nodes, rules: LossRules, expected: str, again: float | None
) -> None:
    found = assess_node("bad", at(-600), known, rules, NOW)
    word = (
        "lost"
        if found.lost
        else "verify"
        if found.verify
        else "kept"
        if found.kept
        else "wait"
        if found.requeue_at
        else "no"
    )
    assert (word, found.requeue_at) == (expected, at(again) if again is not None else None)
    assert bool(found.reason) == found.lost


def test_a_node_that_the_watch_has_not_reported_yet_is_not_lost() -> None:
    assert assess_node("bad", at(-1), nodes(), LossRules(), NOW).requeue_at == at(9)


@table(
    "renewed, seen, fenced, expected",
    {
        "Kubernetes' 40 s: the island has stopped by then": (-50, -5, True, None),
        "a cluster that calls nodes silent after 16 s: its grace is waited for": (-20, -5, True, 25),
        "torchrun's agents stop for nothing": (-20, -5, False, None),
        "a clock two hours behind": (-7200, -5, True, None),
    },
)
def test_pods_on_a_silent_node_are_replaced_once_they_have_certainly_stopped(
    renewed: float, seen: float, fenced: bool, expected: float | None
) -> None:
    known = nodes(silent(seen), heartbeat=make_heartbeat(renewed=renewed))
    found = assess_node("bad", at(-600), known, LossRules(fenced=fenced), NOW)
    assert (found.lost, found.requeue_at) == (expected is None, at(expected) if expected is not None else None)


def test_the_message_of_a_kept_node_says_what_to_do() -> None:
    kept = assess_node("bad", at(-600), nodes(silent(-60)), CONSISTENT, NOW).kept
    assert kept is not None
    assert kept.reason is Reason.NODE_SILENT
    assert "kubectl taint node bad node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in kept.message


@table(
    "healths, recovered, expected",
    {
        "all of one": ([SILENT], [], True),
        "two of three: a small cluster may lose them": ([SILENT, SILENT, NodeHealth.READY], [], False),
        "three of five": ([SILENT, SILENT, SILENT, NodeHealth.READY, NodeHealth.READY], [], True),
        "half": ([SILENT] * 3 + [NodeHealth.READY] * 3, [], False),
        "99 of 100": ([SILENT] * 99 + [NodeHealth.READY], [], True),
        "99 of 100 say so themselves": ([NOT_READY] * 99 + [NodeHealth.READY], [], True),
        "most have only just come back": ([SILENT] + [NodeHealth.READY] * 4, [-3, -4], True),
        "most came back a while ago": ([SILENT] + [NodeHealth.READY] * 4, [-30, -40], False),
    },
)
def test_no_node_is_lost_while_most_nodes_are_not_ready(
    healths: list[NodeHealth], recovered: list[float], expected: bool
) -> None:
    ready = [index for index, health in enumerate(healths) if health is NodeHealth.READY]
    times = dict(zip(ready, recovered, strict=False))
    every = {
        f"n{index}": make_node(f"n{index}", health, recovered=times.get(index)) for index, health in enumerate(healths)
    }
    assert too_many(count_nodes(every), 25, NOW) is expected


def test_the_message_has_the_number_of_unhealthy_nodes() -> None:
    others = [make_node(f"n{number}", SILENT, since=-60) for number in range(8)]
    found = assess_node("bad", at(-600), nodes(silent(-60), *others, heartbeat=OLD), LossRules(), NOW)
    assert not found.lost
    assert found.kept is not None
    assert found.kept.message.startswith("9 of 11 nodes are not ready")
    assert found.requeue_at == at(25)


@given(
    silent_for=st.floats(0, 300),
    renewed=st.floats(-400, 400),
    unchanged=st.floats(-100, 0),
    watched=st.one_of(st.none(), st.floats(-300, 0)),
    read=st.floats(-60, 0),
)
def test_a_node_with_heartbeats_is_never_lost_whatever_the_clocks_say(
    silent_for: float, renewed: float, unchanged: float, watched: float | None, read: float
) -> None:
    """A living kubelet renews every 10 s: a read never finds its Lease as it was for a whole Lease's duration, and a
    clock that is right shows a renewal after the moment at which it was called silent."""
    heartbeat = make_heartbeat(read=read, renewed=renewed, unchanged=min(unchanged, read))
    known = nodes(silent(-silent_for), heartbeat=heartbeat, watched=watched)
    found = assess_node("bad", LONG_AGO, known, LossRules(), NOW)
    heard_since = renewed > -silent_for and unchanged > -40
    gap = watched is None or watched > -25
    assert not (found.lost and (heard_since or gap or silent_for < 5))


UNREACHABLE = "node.kubernetes.io/unreachable"


@table(
    "tolerations, expected",
    {
        "none: the operator's setting": ([], 5),
        "of every taint: hardly meant for this one": ([{"operator": "Exists"}], 5),
        "of another taint": ([{"key": "node.kubernetes.io/not-ready", "tolerationSeconds": 60}], 5),
        "for a minute": ([{"key": UNREACHABLE, "effect": "NoExecute", "tolerationSeconds": 60}], 60),
        "not at all": ([{"key": UNREACHABLE, "tolerationSeconds": 0}], 0),
        "forever": ([{"key": UNREACHABLE, "operator": "Exists"}], None),
        "not a number, which the dry run rejects": ([{"key": UNREACHABLE, "tolerationSeconds": "5m"}], 5),
        "longer than dates last": ([{"key": UNREACHABLE, "tolerationSeconds": 2**63 - 1}], 315360000),
        "when scheduled": ([{"key": UNREACHABLE, "effect": "NoSchedule"}], 5),
    },
)
def test_pods_stay_on_a_silent_node_as_long_as_their_template_says(
    tolerations: list[dict[str, Any]], expected: float | None
) -> None:
    assert tolerated_seconds(tolerations, 5) == expected


def test_no_pod_tolerates_a_node_that_is_gone() -> None:
    for seconds in (3600, None):
        found = assess_node("gone", at(-60), nodes(), LossRules(lost_seconds=seconds), NOW)
        assert found.verify


def test_pods_that_tolerate_a_silent_node_forever_are_kept_and_the_node_is_named() -> None:
    bad = make_node("bad", NodeHealth.SILENT, since=-9999)
    found = assess_node("bad", NOW, nodes(bad), LossRules(lost_seconds=None), NOW)
    assert found.kept is not None
    assert "Node bad is unreachable" in found.kept.message
