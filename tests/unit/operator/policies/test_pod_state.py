from __future__ import annotations

import pytest
from elasticjob_api import FailureRule, RuleAction
from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.policies.failures import Cost
from elasticjob_operator.policies.node_loss import LossRules, Nodes, count_nodes
from elasticjob_operator.policies.pod_state import PodState, pod_status
from elasticjob_operator.state import LONG_AGO, Pod, PodPhase

from tests.unit.operator.builders import NOW, at, failed_pod, make_heartbeat, make_node, make_pod
from tests.unit.operator.tables import table

SILENT, NOT_READY = NodeHealth.SILENT, NodeHealth.NOT_READY


def nodes(*others: Node) -> Nodes:
    """Their Leases are old."""
    by_name = {node.name: node for node in (make_node("good"), *others)}
    heartbeats = {name: make_heartbeat(exists=name in by_name) for name in ("bad", "gone", "new")}
    return Nodes(by_name=by_name, watched_since=LONG_AGO, heartbeats=heartbeats, node_counts=count_nodes(by_name))


def bad(since: float, health: NodeHealth = SILENT) -> Nodes:
    return nodes(make_node("bad", health, since=since))


@table(
    "pod, known, expected, again",
    {
        "not scheduled": (make_pod(), nodes(), PodState.LIVE, None),
        "running": (make_pod(node="good"), nodes(), PodState.LIVE, None),
        "node silent for 2 s": (make_pod(node="bad"), bad(-2), PodState.LIVE, 3),
        "node silent for 5 s": (make_pod(node="bad"), bad(-5), PodState.LOST, None),
        "node deleted": (make_pod(node="gone", created=-60), nodes(), PodState.LOST, None),
        "node not in the watch yet": (make_pod(node="new", created=-1), nodes(), PodState.LIVE, 9),
        "deleted by hand": (make_pod(node="good", deletion_timestamp=20), nodes(), PodState.TERMINATING, None),
        "stuck on a ready node: never lost": pytest.param(
            make_pod(node="good", deletion_timestamp=-9999), nodes(), PodState.TERMINATING, None
        ),
        "deleted, node silent": (make_pod(node="bad", deletion_timestamp=30), bad(-2), PodState.UNREACHABLE, 3),
        "deleted, node lost": (make_pod(node="bad", deletion_timestamp=30), bad(-6), PodState.LOST, None),
        "failed before its node was lost": (failed_pod(node="bad"), bad(-99), PodState.FAILED, None),
        "succeeded before its node died": pytest.param(
            make_pod(phase=PodPhase.SUCCEEDED, node="bad"), bad(-99), PodState.SUCCEEDED, None
        ),
        "failed, deleted, node lost: stuck": pytest.param(
            failed_pod(node="bad", deletion_timestamp=0), bad(-99), PodState.LOST, None
        ),
        "nodes may not be read": (make_pod(node="any"), None, PodState.LIVE, None),
        "nodes may not be read: never lost": pytest.param(
            make_pod(node="any", deletion_timestamp=-9999), None, PodState.TERMINATING, None
        ),
        "Ready=False: its kubelet is alive": (make_pod(node="bad"), bad(-3600, NOT_READY), PodState.LIVE, None),
        "... and ends what is deleted": pytest.param(
            make_pod(node="bad", deletion_timestamp=-60), bad(-60, NOT_READY), PodState.TERMINATING, None
        ),
    },
)
def test_the_state_of_a_pod(pod: Pod, known: Nodes | None, expected: PodState, again: float | None) -> None:
    found = pod_status(pod, known, LossRules(), NOW)
    assert found.state is expected
    assert found.requeue_at == (at(again) if again is not None else None)


def test_the_reason_of_a_lost_pod_names_its_node() -> None:
    assert pod_status(make_pod(node="bad"), bad(-9), LossRules(), NOW).reason == "node bad is not ready"


@table(
    "code, ended_at, node, cost",
    {
        "SIGTERM": (143, 0, make_node("n"), Cost.COUNTS),
        "its node has just come back": (143, 0, make_node("n", recovered=-5), Cost.FREE),
        "SIGKILL after the grace period": (137, 0, make_node("n", recovered=-5), Cost.FREE),
        "while it was cut off": (143, -30, make_node("n", recovered=-5), Cost.FREE),
        "seen before its node has come back": (143, -3, make_node("n", SILENT, since=-9), Cost.FREE),
        "its node came back long before": (143, 0, make_node("n", recovered=-90), Cost.COUNTS),
        "long before its node was cut off": (143, -7200, make_node("n", recovered=-5), Cost.COUNTS),
        "the script failed": (1, 0, make_node("n", recovered=-5), Cost.COUNTS),
        "nodes may not be read": (143, 0, None, Cost.COUNTS),
    },
)
def test_what_a_partition_ended_costs_no_restart(code: int, ended_at: float, node: Node | None, cost: Cost) -> None:
    """A kubelet that comes back ends what was replaced meanwhile."""
    known = nodes(node) if node is not None else None
    pod = failed_pod(code=code, at=ended_at, started=-9000, created=-9000, node="n")
    found = pod_status(pod, known, LossRules(), NOW)
    assert found.failure is not None
    assert found.failure.cost is cost
    assert (found.failure.reason == "NodeSilent") is (cost is Cost.FREE)


def test_a_rule_may_charge_what_a_partition_ended() -> None:
    rule = FailureRule(action=RuleAction.RESTART, exit_codes=(143,))
    pod = failed_pod(code=143, node="n")
    found = pod_status(pod, nodes(make_node("n", recovered=-5)), LossRules(), NOW, (rule,))
    assert found.failure is not None
    assert found.failure.cost is Cost.COUNTS
