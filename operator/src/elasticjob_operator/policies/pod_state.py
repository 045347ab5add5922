"""Where each worker pod stands: alive, on its way out, lost with its node, or ended.

Whether a node is lost is the matter of node_loss.py. A node whose kubelet says Ready=False is not: its pods may train,
or be saving. They are deleted as any pod is, with their grace time, and never by force; one that nobody ends in that
time keeps its name, and its successor takes another.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum

from elasticjob_operator.policies.node_loss import Held, Loss, LossRules, Nodes, judge_node, too_many
from elasticjob_operator.state import Node, NodeHealth, Pod

STUCK_SECONDS = 30.0
"""How long past its deadline a terminating pod is waited for where the operator cannot see nodes, s."""
STRANDED_SECONDS = 5.0
"""How long past its deadline a terminating pod holds its place on a node that is not ready, s."""


class PodState(enum.Enum):
    LIVE = "live"
    """Pending or running: has its place, and keeps it."""
    LEAVING = "leaving"
    """Somebody deleted it; its kubelet ends it."""
    STRANDED = "stranded"
    """Somebody deleted it, and a kubelet that lives cannot end it: it keeps its name, not its place."""
    LOST = "lost"
    """Its node is gone: nobody will ever end it."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PodStatus:
    state: PodState
    why: str = ""
    """For people: why it is lost or leaving."""
    requeue_at: datetime.datetime | None = None
    """When a live or leaving pod will be called lost, if nothing changes."""
    replace: bool = False
    """It lives, on a node that cannot run pods: to be deleted, gracefully."""
    ask: str = ""
    """Node whose heartbeat must be read before it can be called lost."""
    held: Held | None = None
    """Why it is not called lost though its node does not answer."""


def pod_state_of(pod: Pod, nodes: Nodes | None, rules: LossRules, now: datetime.datetime) -> PodStatus:
    """`nodes`: None: the operator may not see them."""
    otherwise = _without_nodes(pod)
    if otherwise.state in (PodState.FAILED, PodState.SUCCEEDED) and not pod.terminating:
        return otherwise
    if nodes is None:
        return _late(pod, otherwise, STUCK_SECONDS, "stuck in Terminating", now)
    if not pod.node:
        return otherwise
    node = nodes.by_name.get(pod.node)
    if node is not None and node.ready:
        return _late(pod, otherwise, rules.stuck_seconds, f"stuck in Terminating on node {pod.node}", now)
    if node is not None and node.health is NodeHealth.NOT_READY and not node.out_of_service:
        return _on_unready(pod, node, nodes, rules, otherwise, now)
    return _with(otherwise, judge_node(pod.node, pod.scheduled_at or pod.created_at, nodes, rules, now), pod.node)


def _without_nodes(pod: Pod) -> PodStatus:
    if pod.terminating:
        return PodStatus(state=PodState.LEAVING, why="deleted")
    if pod.succeeded:
        return PodStatus(state=PodState.SUCCEEDED)
    return PodStatus(state=PodState.FAILED if pod.failed else PodState.LIVE)


def _with(otherwise: PodStatus, loss: Loss, node: str) -> PodStatus:
    if loss.lost:
        return PodStatus(state=PodState.LOST, why=loss.why)
    return dataclasses.replace(otherwise, ask=node if loss.ask else "", held=loss.held, requeue_at=loss.requeue_at)


def _late(pod: Pod, otherwise: PodStatus, seconds: float, why: str, now: datetime.datetime) -> PodStatus:
    """Of a pod that is to end, lost so many seconds after it should have."""
    if pod.deletion_timestamp is None:
        return otherwise
    due = pod.deletion_timestamp + datetime.timedelta(seconds=seconds)
    return PodStatus(state=PodState.LOST, why=why) if now >= due else dataclasses.replace(otherwise, requeue_at=due)


def _on_unready(
    pod: Pod, node: Node, nodes: Nodes, rules: LossRules, otherwise: PodStatus, now: datetime.datetime
) -> PodStatus:
    why = f"node {node.name} is not ready"
    if pod.deletion_timestamp is not None:
        due = pod.deletion_timestamp + datetime.timedelta(seconds=STRANDED_SECONDS)
        if now < due:
            return dataclasses.replace(otherwise, requeue_at=due)
        return PodStatus(state=PodState.STRANDED, why=f"{why}, and its kubelet does not terminate the pod")
    due = node.seen_at + datetime.timedelta(seconds=rules.lost_seconds)
    if now < due:
        return dataclasses.replace(otherwise, requeue_at=due)
    if too_many(nodes.node_counts, rules.settle_seconds, now):
        return dataclasses.replace(otherwise, requeue_at=now + datetime.timedelta(seconds=rules.settle_seconds))
    return dataclasses.replace(otherwise, replace=True, why=why)
