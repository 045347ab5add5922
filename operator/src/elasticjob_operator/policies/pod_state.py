"""The state of each worker pod: live, terminating, unreachable, lost with its node, or ended.

A pod that is being deleted does not hold its worker index: its replacement has another name and is created at once. Its
kubelet ends it, in whatever time that takes: on a node whose kubelet reports, no pod is ever deleted by force.

node_loss.py decides whether a node is lost. Until then a pod on a silent node holds its index, deleted or not: it may
be training.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
from collections.abc import Iterable

from elasticjob_api import FailureRule

from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.policies.condition_updates import Cause
from elasticjob_operator.policies.failures import PodFailure, classify_failure
from elasticjob_operator.policies.node_loss import LossRules, Nodes, assess_node, cut_off
from elasticjob_operator.state import Pod


class PodState(enum.Enum):
    LIVE = "live"
    """Pending or running."""
    TERMINATING = "terminating"
    """Deleted; its kubelet stops it."""
    UNREACHABLE = "unreachable"
    """Deleted, on a silent node that is not lost yet."""
    LOST = "lost"
    """Its node is gone: nothing will ever stop it."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PodStatus:
    """The state of a pod, with everything that follows from it."""

    state: PodState
    reason: str = ""
    """Human-readable: why the pod is lost or terminating."""
    requeue_at: datetime.datetime | None = None
    """When the pod becomes lost if nothing changes."""
    verify_node: str = ""
    """Node whose heartbeat must be read before the pod can be lost."""
    kept: Cause | None = None
    """Why the pod is not lost although its node is silent."""
    failure: PodFailure | None = None
    """Set if and only if `state` is FAILED."""
    holds_index: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds_index", self.state not in (PodState.TERMINATING, PodState.LOST))


# Shared by all pods that are so: a job may have thousands of them, and each plan judges them all.
_TERMINATING = PodStatus(state=PodState.TERMINATING, reason="deleted")
_LIVE = PodStatus(state=PodState.LIVE)
_SUCCEEDED = PodStatus(state=PodState.SUCCEEDED)


def pod_status(
    pod: Pod, nodes: Nodes | None, rules: LossRules, now: datetime.datetime, failure_rules: Iterable[FailureRule] = ()
) -> PodStatus:
    """`nodes`: None: the operator may not read nodes. `failure_rules`: of the job's failure policy."""
    status = _LIVE if pod.deletion_timestamp is None else _TERMINATING
    node = nodes.by_name.get(pod.node) if nodes is not None else None
    if status is _LIVE and pod.ended:
        if pod.succeeded:
            return _SUCCEEDED
        failure = classify_failure(pod, failure_rules, functools.partial(cut_off, node))
        return PodStatus(state=PodState.FAILED, failure=failure)
    if nodes is None or not pod.node:
        return status
    if node is not None and (
        node.health is NodeHealth.READY or (node.health is NodeHealth.NOT_READY and not node.out_of_service)
    ):
        return status
    loss = assess_node(pod.node, pod.scheduled_at or pod.created_at, nodes, rules, now)
    if loss.lost:
        return PodStatus(state=PodState.LOST, reason=loss.reason)
    return PodStatus(
        state=PodState.UNREACHABLE if pod.terminating else status.state,
        reason=status.reason,
        verify_node=pod.node if loss.verify else "",
        kept=loss.kept,
        requeue_at=loss.requeue_at,
    )
