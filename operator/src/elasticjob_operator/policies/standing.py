"""Where each worker pod stands: alive, on its way out, lost with its node, or ended.

A pod on a node that has been NotReady for `node_lost_seconds` is not waited for. When no node at all is Ready, the fault lies in the
control plane's view of the nodes, and replacing everything would only do harm: nothing is called lost.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping

from elasticjob_operator.world import Node, Pod

STUCK_SECONDS = 30.0
"""How long past its deadline a terminating pod is waited for where the operator cannot see nodes, s."""

MISSING_NODE_SECONDS = 10.0
"""A pod's node may be so new that the watch of nodes has not told of it yet, s."""


class Standing(enum.Enum):
    LIVE = "live"
    """Pending or running: has its place, and keeps it."""
    LEAVING = "leaving"
    """Somebody deleted it; its kubelet ends it."""
    LOST = "lost"
    """Its node is gone: nobody will ever end it."""
    FAILED = "failed"
    SUCCEEDED = "succeeded"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    standing: Standing
    why: str = ""
    """For people: why it is lost or leaving."""
    look_again: datetime.datetime | None = None
    """When a live or leaving pod will be called lost, if nothing changes."""


def standing(
    pod: Pod, nodes: Mapping[str, Node] | None, *, node_lost_seconds: float, stuck_seconds: float, now: datetime.datetime
) -> Stand:
    """`node_lost_seconds`, `stuck_seconds`: see settings."""
    otherwise = _without_nodes(pod)
    if otherwise.standing in (Standing.FAILED, Standing.SUCCEEDED) and not pod.terminating:
        return otherwise
    due, why = _lost_at(pod, nodes, node_lost_seconds, stuck_seconds)
    if due is None:
        return otherwise
    if now >= due:
        return Stand(standing=Standing.LOST, why=why)
    return dataclasses.replace(otherwise, look_again=due)


def _without_nodes(pod: Pod) -> Stand:
    if pod.terminating:
        return Stand(standing=Standing.LEAVING, why="deleted")
    if pod.succeeded:
        return Stand(standing=Standing.SUCCEEDED)
    return Stand(standing=Standing.FAILED if pod.failed else Standing.LIVE)


def _lost_at(
    pod: Pod, nodes: Mapping[str, Node] | None, node_lost_seconds: float, stuck_seconds: float
) -> tuple[datetime.datetime | None, str]:
    """(when the pod counts as lost, why); None: not at all."""
    if nodes is None:
        due = pod.delete_by + datetime.timedelta(seconds=STUCK_SECONDS) if pod.delete_by else None
        return due, "stuck in termination"
    if not pod.node or not any(node.ready for node in nodes.values()):
        return None, ""
    node = nodes.get(pod.node)
    if node is None:
        patience = datetime.timedelta(seconds=max(node_lost_seconds, MISSING_NODE_SECONDS))
        return (pod.scheduled_at or pod.created_at) + patience, f"node {pod.node} does not exist any more"
    if node.ready:
        due = pod.delete_by + datetime.timedelta(seconds=stuck_seconds) if pod.delete_by else None
        return due, f"stuck in termination on node {pod.node}"
    return node.since + datetime.timedelta(seconds=node_lost_seconds), f"node {pod.node} is not ready"
