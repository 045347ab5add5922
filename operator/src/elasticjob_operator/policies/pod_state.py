"""The state of each worker pod: live, terminating, lost with its node, or ended.

node_loss.py decides whether a node is lost. A node whose kubelet reports Ready=False is not: its pods may be training,
or saving a checkpoint. They are deleted like any other pod, with their grace period and never by force. A pod that the
kubelet does not stop in that time keeps its name, and its replacement gets another one.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable

from elasticjob_api import RestartRule

from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.policies.condition_updates import Cause
from elasticjob_operator.policies.failures import PodFailure, classify_failure
from elasticjob_operator.policies.node_loss import LossRules, NodeLoss, Nodes, assess_node, too_many
from elasticjob_operator.state import Pod

STUCK_SECONDS = 30.0
"""How long after its deadline a terminating pod is lost if the operator may not read nodes, in seconds."""
STRANDED_SECONDS = 5.0
"""How long after its deadline a terminating pod on a node that is not ready keeps its place, in seconds."""


class PodState(enum.Enum):
    LIVE = "live"
    """Pending or running."""
    TERMINATING = "terminating"
    """Deleted; waiting for the kubelet to stop it."""
    STRANDED = "stranded"
    """Deleted, but its kubelet, though alive, does not stop it: it keeps its name but no longer counts as a worker."""
    LOST = "lost"
    """Its node is gone: nothing will ever stop it."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PodStatus:
    """The state of a pod, with everything that follows from it."""

    state: PodState
    reason: str = ""
    """Human-readable: why the pod is lost, terminating or to be replaced."""
    requeue_at: datetime.datetime | None = None
    """When a live or terminating pod becomes lost if nothing changes."""
    replace: bool = False
    """The pod is live, on a node that cannot run pods: delete it gracefully."""
    verify_node: str = ""
    """Node whose heartbeat must be read before the pod can be lost."""
    kept: Cause | None = None
    """Why the pod is not lost although its node is silent."""
    failure: PodFailure | None = None
    """Set if and only if `state` is FAILED."""


def pod_status(
    pod: Pod, nodes: Nodes | None, rules: LossRules, now: datetime.datetime, restart_rules: Iterable[RestartRule] = ()
) -> PodStatus:
    """`nodes`: None: the operator may not read nodes. `restart_rules`: of the job's restart policy."""
    status = _with_node(pod, nodes, rules, now)
    if status.state is not PodState.FAILED:
        return status
    return dataclasses.replace(status, failure=classify_failure(pod, restart_rules))


def _with_node(pod: Pod, nodes: Nodes | None, rules: LossRules, now: datetime.datetime) -> PodStatus:
    status = _without_node(pod)
    if status.state in (PodState.FAILED, PodState.SUCCEEDED) and not pod.terminating:
        return status
    if nodes is None:
        return _lost_after(pod, status, STUCK_SECONDS, "stuck in Terminating", now)
    if not pod.node:
        return status
    node = nodes.by_name.get(pod.node)
    if node is not None and node.ready:
        return _lost_after(pod, status, rules.stuck_seconds, f"stuck in Terminating on node {pod.node}", now)
    if node is not None and node.health is NodeHealth.NOT_READY and not node.out_of_service:
        return _on_unready_node(pod, node, nodes, rules, status, now)
    return _on_silent_node(
        status, pod.node, assess_node(pod.node, pod.scheduled_at or pod.created_at, nodes, rules, now)
    )


def _without_node(pod: Pod) -> PodStatus:
    if pod.terminating:
        return PodStatus(state=PodState.TERMINATING, reason="deleted")
    if pod.succeeded:
        return PodStatus(state=PodState.SUCCEEDED)
    return PodStatus(state=PodState.FAILED if pod.failed else PodState.LIVE)


def _on_silent_node(status: PodStatus, node: str, loss: NodeLoss) -> PodStatus:
    if loss.lost:
        return PodStatus(state=PodState.LOST, reason=loss.reason)
    return dataclasses.replace(
        status, verify_node=node if loss.verify else "", kept=loss.kept, requeue_at=loss.requeue_at
    )


def _lost_after(pod: Pod, status: PodStatus, seconds: float, reason: str, now: datetime.datetime) -> PodStatus:
    """A terminating pod is lost this many seconds after its deadline."""
    if pod.deletion_timestamp is None:
        return status
    due = pod.deletion_timestamp + datetime.timedelta(seconds=seconds)
    return PodStatus(state=PodState.LOST, reason=reason) if now >= due else dataclasses.replace(status, requeue_at=due)


def _on_unready_node(
    pod: Pod, node: Node, nodes: Nodes, rules: LossRules, status: PodStatus, now: datetime.datetime
) -> PodStatus:
    reason = f"node {node.name} is not ready"
    if pod.deletion_timestamp is not None:
        due = pod.deletion_timestamp + datetime.timedelta(seconds=STRANDED_SECONDS)
        if now < due:
            return dataclasses.replace(status, requeue_at=due)
        return PodStatus(state=PodState.STRANDED, reason=f"{reason}, and its kubelet does not terminate the pod")
    due = node.seen_at + datetime.timedelta(seconds=rules.lost_seconds)
    if now < due:
        return dataclasses.replace(status, requeue_at=due)
    if too_many(nodes.node_counts, rules.settle_seconds, now):
        return dataclasses.replace(status, requeue_at=now + datetime.timedelta(seconds=rules.settle_seconds))
    return dataclasses.replace(status, replace=True, reason=reason)
