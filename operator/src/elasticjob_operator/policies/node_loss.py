"""Whether a node is lost for good, so that its pods may be taken away without their kubelet's word. That is
irrevocable: the node has the benefit of every doubt.

    the Node object is gone, or has the taint out-of-service         lost
    Ready=Unknown for `lost_seconds`, and a fresh read of its
      kubelet's Lease shows no heartbeat since                       lost
    Ready=False                                                      never lost: its kubelet lives (see standing.py)

Times are counted from when this operator saw something, not from what the API server says: after an outage of the API
server its times are old, and so are all heartbeats. So after any gap of the operator's own watch of nodes (its start,
too) kubelets get `settle_seconds` to be heard again. When most nodes are not ready, or were not a moment ago, the fault
is probably not theirs, and nothing is given up: the node lifecycle controller of Kubernetes does the same.

A node that is silent may be cut off and go on training: an island, which stops `PARTITION_GRACE` after its members'
leases ended. With `spec.rendezvous.onPartition: Available` its pods are replaced once that has surely passed; with
`Consistent` not at all, until the node is back, deleted or marked.
"""

from __future__ import annotations

import bisect
import dataclasses
import datetime
from collections.abc import Mapping

from elasticjob_runtime.contract import PARTITION_GRACE

from elasticjob_operator.api import OnPartition, Reason, message
from elasticjob_operator.api.fields import format_time
from elasticjob_operator.state import Heartbeat, Node, NodeCounts, NodeHealth

FRESH_SECONDS = 10.0
"""A heartbeat read longer ago is read again before anything is done by it, s."""
MISSING_NODE_SECONDS = 10.0
"""A pod's node may be so new that the watch of nodes has not told of it yet, s."""
MOST_SHARE, MOST_NODES = 0.55, 3
"""From this share of the nodes on, and at least so many, nothing is given up: kube-controller-manager's
--unhealthy-zone-threshold."""
AGENT_LEASE_SECONDS = 5.0
"""How long an agent's lease in etcd lives without renewal, s."""
KUBERNETES_PATIENCE = 40.0
"""kube-controller-manager's --node-monitor-grace-period, s, where the kubelet's Lease cannot be read. Newer releases
wait for 50."""
_RENEWALS = 4
"""A kubelet renews its Lease so many times in the Lease's duration."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LossRules:
    """What the operator's settings and the job say."""

    lost_seconds: float = 5.0
    settle_seconds: float = 25.0
    stuck_seconds: float = 300.0
    on_partition: OnPartition = OnPartition.AVAILABLE
    fenced: bool = True
    """The job's agents stop by themselves behind a partition. False: torchrun's own, which do not."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """What is known of all nodes; see world.World."""

    by_name: Mapping[str, Node]
    watched_since: datetime.datetime | None
    heartbeats: Mapping[str, Heartbeat]
    node_counts: NodeCounts


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Why a node that does not answer is not given up, for people."""

    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """One of: not lost (nothing set, perhaps `requeue_at`), lost, `ask` first, or held."""

    lost: bool = False
    why: str = ""
    """For people."""
    ask: bool = False
    """Read its heartbeat, then judge again."""
    held: Held | None = None
    requeue_at: datetime.datetime | None = None


def count_nodes(nodes: Mapping[str, Node]) -> NodeCounts:
    recoveries = sorted(node.recovered_at for node in nodes.values() if node.ready and node.recovered_at is not None)
    return NodeCounts(
        total=len(nodes), not_ready=sum(not node.ready for node in nodes.values()), recoveries=tuple(recoveries)
    )


def too_many(node_counts: NodeCounts, settle_seconds: float, now: datetime.datetime) -> bool:
    """Whether so many nodes are not ready, or have only just recovered, that the fault cannot be theirs."""
    recently = len(node_counts.recoveries) - bisect.bisect_right(
        node_counts.recoveries, now - datetime.timedelta(seconds=settle_seconds)
    )
    unhealthy = node_counts.not_ready + recently
    if node_counts.total and node_counts.not_ready == node_counts.total:
        return True
    return unhealthy >= MOST_NODES and unhealthy >= MOST_SHARE * node_counts.total


def judge_node(
    name: str, scheduled_at: datetime.datetime, nodes: Nodes, rules: LossRules, now: datetime.datetime
) -> Loss:
    """`scheduled_at`: when the pod in question got there, or was made."""
    node = nodes.by_name.get(name)
    if node is None:
        return _missing(name, scheduled_at, nodes, rules, now)
    if node.out_of_service and not node.ready:
        return Loss(lost=True, why=f"node {name} is out of service")
    return _silent(node, nodes, rules, now) if node.health is NodeHealth.SILENT else Loss()


def _silent(node: Node, nodes: Nodes, rules: LossRules, now: datetime.datetime) -> Loss:
    if rules.on_partition is OnPartition.CONSISTENT:
        return Loss(held=_kept(node))
    waits = _not_before(node, nodes, rules, now)
    if now < waits:
        return Loss(requeue_at=waits)
    if too_many(nodes.node_counts, rules.settle_seconds, now):
        return Loss(held=_braked(nodes.node_counts), requeue_at=now + _seconds(rules.settle_seconds))
    heartbeat = _fresh(nodes, node.name, now)
    if heartbeat is None:
        return Loss(ask=True)
    safe = _surely_stopped(node, heartbeat, rules)
    if now < safe:
        return Loss(requeue_at=safe)
    return Loss(lost=True, why=f"node {node.name} is not ready")


def _missing(
    name: str, scheduled_at: datetime.datetime, nodes: Nodes, rules: LossRules, now: datetime.datetime
) -> Loss:
    due = scheduled_at + _seconds(max(rules.lost_seconds, MISSING_NODE_SECONDS))
    if now < due:
        return Loss(requeue_at=due)
    heartbeat = _fresh(nodes, name, now)
    if heartbeat is None:
        return Loss(ask=True)
    if heartbeat.exists:  # the watch is behind
        return Loss(requeue_at=heartbeat.read_at + _seconds(FRESH_SECONDS + 1))
    return Loss(lost=True, why=f"node {name} no longer exists")


def _fresh(nodes: Nodes, name: str, now: datetime.datetime) -> Heartbeat | None:
    heartbeat = nodes.heartbeats.get(name)
    return heartbeat if heartbeat is not None and now - heartbeat.read_at <= _seconds(FRESH_SECONDS) else None


def _not_before(node: Node, nodes: Nodes, rules: LossRules, now: datetime.datetime) -> datetime.datetime:
    """When its silence has lasted for long enough, as this operator saw it."""
    if nodes.watched_since is None:
        return now + _seconds(rules.settle_seconds)
    return max(node.seen_at + _seconds(rules.lost_seconds), nodes.watched_since + _seconds(rules.settle_seconds))


def _surely_stopped(node: Node, heartbeat: Heartbeat, rules: LossRules) -> datetime.datetime:
    """When whatever may still train there has stopped, and by when a heartbeat that only looks fresh is known to be
    old.

    The kubelet's clock may be wrong by any amount. So its renewal is compared with the moment at which Kubernetes gave
    it up, at least 40 s later; where it looks newer, only that it does not change over the Lease's duration tells that
    it is no heartbeat.
    """
    renewed, unchanged_since = heartbeat.renewed_at, heartbeat.unchanged_since
    island = _seconds(AGENT_LEASE_SECONDS + PARTITION_GRACE) if rules.fenced else _seconds(0)
    interval = _seconds(heartbeat.lease_seconds / _RENEWALS)
    if renewed is None or unchanged_since is None:
        # Silent for all but one interval of Kubernetes' patience when it was called so.
        return node.seen_at + max(_seconds(0), island + interval - _seconds(KUBERNETES_PATIENCE))
    stopped = min(renewed + interval, node.seen_at, unchanged_since) + island
    if renewed <= node.since:
        return stopped
    return max(stopped, unchanged_since + _seconds(heartbeat.lease_seconds))


def _kept(node: Node) -> Held:
    return Held(
        reason=Reason.NODE_SILENT,
        message=message(Reason.NODE_SILENT, node=node.name, since=format_time(node.since)),
    )


def _braked(node_counts: NodeCounts) -> Held:
    text = message(Reason.NODES_UNHEALTHY, count=node_counts.not_ready, total=node_counts.total)
    return Held(reason=Reason.NODES_UNHEALTHY, message=text)


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
