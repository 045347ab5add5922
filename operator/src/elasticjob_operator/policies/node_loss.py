"""Whether a node is lost, so that its pods may be deleted by force, without waiting for the kubelet. That cannot be
undone, so in any doubt the node is not lost.

    the Node object is gone, or has the taint out-of-service         lost
    Ready=Unknown for `lost_seconds`, or as long as the pods'
      template tolerates that, and a fresh read of the
      kubelet's Lease shows no heartbeat since                       lost
    Ready=False                                                      never lost: its kubelet is alive

Times count from when this operator observed a change, not from the timestamps of the API server: after an outage of the
API server its timestamps are old, and so are all heartbeats. After any gap in the operator's watch of nodes, including
its own start, kubelets get `settle_seconds` to renew their heartbeats. When most nodes are not ready, or were not a
moment ago, the nodes themselves are probably not at fault, and none is lost: the node lifecycle controller of
Kubernetes does the same.

A silent node may be cut off from the network while its pods keep training. They stop `PARTITION_GRACE` after their
members' leases expire. With `spec.rendezvous.onPartition: Available` the pods are replaced once that time has certainly
passed; with `Consistent` they are not replaced until the node is back, deleted or tainted.
"""

from __future__ import annotations

import bisect
import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_api import OnPartition, Reason
from elasticjob_api.fields import format_time
from elasticjob_runtime.contract import LEASE_TTL, PARTITION_GRACE

from elasticjob_operator.node_state import Heartbeat, Node, NodeCounts, NodeHealth
from elasticjob_operator.policies.condition_updates import Cause, cause

FRESH_SECONDS = 10.0
"""A heartbeat older than this is read again before it is used, in seconds."""
MISSING_NODE_SECONDS = 10.0
"""A pod's node may be so new that the watch of nodes has not reported it yet, in seconds."""
_LONGEST_TOLERATION = 10 * 365 * 86400
"""Kubernetes takes any number of seconds, and a date has a limit."""
MOST_SHARE, MOST_NODES = 0.55, 3
"""If at least this share and this number of nodes is not ready, none is lost: kube-controller-manager's
--unhealthy-zone-threshold."""
NODE_MONITOR_GRACE = 40.0
"""kube-controller-manager's --node-monitor-grace-period, in seconds, used if the kubelet's Lease cannot be read. Newer
releases wait for 50 s."""
_UNREACHABLE = "node.kubernetes.io/unreachable"
"""Taint of a node whose Ready is Unknown."""
BACK_SECONDS, LONGEST_CUT = 60.0, 3600.0
"""A kubelet that comes back has ended by then what was replaced; it was not cut off for longer, in seconds."""
_RENEWALS = 4
"""How often a kubelet renews its Lease within the Lease's duration."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LossRules:
    """From the operator's settings and the job."""

    lost_seconds: float | None = 5.0
    """None: its pods tolerate a silent node forever."""
    settle_seconds: float = 25.0
    on_partition: OnPartition = OnPartition.AVAILABLE
    fenced: bool = True
    """The job's agents stop by themselves behind a network partition. False: torchrun's agents, which do not."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """All nodes, as in state.JobState."""

    by_name: Mapping[str, Node]
    watched_since: datetime.datetime | None
    heartbeats: Mapping[str, Heartbeat]
    node_counts: NodeCounts


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeLoss:
    """Exactly one of: lost; `verify` first; `kept`; not lost (none of these is set)."""

    lost: bool = False
    reason: str = ""
    """Human-readable: why the node is lost."""
    verify: bool = False
    """Read the node's heartbeat, then assess it again."""
    kept: Cause | None = None
    """Why the silent node is not lost."""
    requeue_at: datetime.datetime | None = None


def tolerated_seconds(tolerations: Iterable[Mapping[str, Any]], default: float) -> float | None:
    """How long pods tolerate a silent node; None: forever. `tolerations`: as in the template of the pods, because
    Kubernetes adds its own default of 300 s to every pod. Those that do not name the taint were hardly meant for it."""
    ours = [
        toleration.get("tolerationSeconds")
        for toleration in tolerations
        if toleration.get("key") == _UNREACHABLE and toleration.get("effect") in (None, "", "NoExecute")
    ]
    limits = [min(max(0, seconds), _LONGEST_TOLERATION) for seconds in ours if isinstance(seconds, int)]
    return float(min(limits)) if limits else None if None in ours else default


def count_nodes(nodes: Mapping[str, Node]) -> NodeCounts:
    recoveries = sorted(node.recovered_at for node in nodes.values() if node.ready and node.recovered_at is not None)
    return NodeCounts(
        total=len(nodes),
        not_ready=sum(not node.ready for node in nodes.values()),
        recoveries=tuple(recoveries),
        mounting_images=sum(node.mounts_images for node in nodes.values()),
    )


def too_many(node_counts: NodeCounts, settle_seconds: float, now: datetime.datetime) -> bool:
    """Whether so many nodes are not ready, or have just recovered, that the nodes themselves are not at fault."""
    recently = len(node_counts.recoveries) - bisect.bisect_right(
        node_counts.recoveries, now - datetime.timedelta(seconds=settle_seconds)
    )
    unhealthy = node_counts.not_ready + recently
    if node_counts.total and node_counts.not_ready == node_counts.total:
        return True
    return unhealthy >= MOST_NODES and unhealthy >= MOST_SHARE * node_counts.total


def cut_off(node: Node | None, moment: datetime.datetime) -> bool:
    """Whether a node was silent at that moment, or had just come back. `moment`: perhaps by the node's own clock."""
    if node is None or node.health is NodeHealth.SILENT:
        return node is not None
    back = node.recovered_at
    return back is not None and back - _seconds(LONGEST_CUT) <= moment <= back + _seconds(BACK_SECONDS)


def assess_node(
    name: str, scheduled_at: datetime.datetime, nodes: Nodes, rules: LossRules, now: datetime.datetime
) -> NodeLoss:
    """`scheduled_at`: when the pod in question was scheduled there, or else created."""
    node = nodes.by_name.get(name)
    if node is None:
        return _missing(name, scheduled_at, nodes, now)
    if node.out_of_service and not node.ready:
        return NodeLoss(lost=True, reason=f"node {name} is out of service")
    return _silent(node, nodes, rules, now) if node.health is NodeHealth.SILENT else NodeLoss()


def _silent(node: Node, nodes: Nodes, rules: LossRules, now: datetime.datetime) -> NodeLoss:
    if rules.on_partition is OnPartition.CONSISTENT or rules.lost_seconds is None:
        return NodeLoss(kept=cause(Reason.NODE_SILENT, node=node.name, since=format_time(node.since)))
    silent_until = _not_before(node, nodes, rules, now)
    if now < silent_until:
        return NodeLoss(requeue_at=silent_until)
    if too_many(nodes.node_counts, rules.settle_seconds, now):
        counts = nodes.node_counts
        kept = cause(Reason.NODES_UNHEALTHY, count=counts.not_ready, total=counts.total)
        return NodeLoss(kept=kept, requeue_at=now + _seconds(rules.settle_seconds))
    heartbeat = _fresh(nodes, node.name, now)
    if heartbeat is None:
        return NodeLoss(verify=True)
    stopped = _certainly_stopped(node, heartbeat, rules)
    if now < stopped:
        return NodeLoss(requeue_at=stopped)
    return NodeLoss(lost=True, reason=f"node {node.name} is not ready")


def _missing(name: str, scheduled_at: datetime.datetime, nodes: Nodes, now: datetime.datetime) -> NodeLoss:
    due = scheduled_at + _seconds(MISSING_NODE_SECONDS)
    if now < due:
        return NodeLoss(requeue_at=due)
    heartbeat = _fresh(nodes, name, now)
    if heartbeat is None:
        return NodeLoss(verify=True)
    if heartbeat.exists:  # the watch lags behind
        return NodeLoss(requeue_at=heartbeat.read_at + _seconds(FRESH_SECONDS + 1))
    return NodeLoss(lost=True, reason=f"node {name} no longer exists")


def _fresh(nodes: Nodes, name: str, now: datetime.datetime) -> Heartbeat | None:
    heartbeat = nodes.heartbeats.get(name)
    return heartbeat if heartbeat is not None and now - heartbeat.read_at <= _seconds(FRESH_SECONDS) else None


def _not_before(node: Node, nodes: Nodes, rules: LossRules, now: datetime.datetime) -> datetime.datetime:
    """When this operator has observed the silence for long enough."""
    if nodes.watched_since is None:
        return now + _seconds(rules.settle_seconds)
    return max(node.seen_at + _seconds(rules.lost_seconds or 0), nodes.watched_since + _seconds(rules.settle_seconds))


def _certainly_stopped(node: Node, heartbeat: Heartbeat, rules: LossRules) -> datetime.datetime:
    """When pods that may still train there have certainly stopped, and a heartbeat that only looks fresh is known to be
    old.

    The kubelet's clock may be wrong by any amount. So its last renewal is compared with the time at which Kubernetes
    set Ready=Unknown, at least 40 s later. If the renewal looks newer than that, it is known to be old only once it has
    not changed for the duration of the Lease.
    """
    renewed, unchanged_since = heartbeat.renewed_at, heartbeat.unchanged_since
    grace = _seconds(LEASE_TTL + PARTITION_GRACE) if rules.fenced else _seconds(0)
    interval = _seconds(heartbeat.lease_seconds / _RENEWALS)
    if renewed is None or unchanged_since is None:
        # When it became Unknown, it had been silent for Kubernetes' grace period, less at most one interval.
        return node.seen_at + max(_seconds(0), grace + interval - _seconds(NODE_MONITOR_GRACE))
    stopped = min(renewed + interval, node.seen_at, unchanged_since) + grace
    if renewed <= node.since:
        return stopped
    return max(stopped, unchanged_since + _seconds(heartbeat.lease_seconds))


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
