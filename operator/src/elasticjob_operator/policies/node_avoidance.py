"""Nodes on which workers keep failing, so that new workers prefer other nodes.

Only failures that may be the node's fault count: the first failure of a worker group, a pod rejected by the kubelet,
the loss of the node itself, an init container that fails while worker pods got past theirs on other nodes. A node on
which worker processes failed again and again while others trained elsewhere, or that failed a check before a member
joined, is avoided at once. Intentional
disruptions (eviction, preemption, deletion) say nothing about a node. A count expires an hour after its newest failure.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from elasticjob_api import ElasticJob, FailingNode, Reason
from elasticjob_api.status import MAX_CHECK
from elasticjob_runtime.contract import PREFLIGHT_FAILED, ExitCode

from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.policies.failures import BLAMES_NODE, Cost
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.state import Pod

MEMORY = datetime.timedelta(hours=1)
MOST = 32
SHOWN = 8
"""Nodes that a condition names."""


def failing_nodes(
    job: ElasticJob,
    workers: Iterable[tuple[Pod, PodStatus]],
    nodes: Mapping[str, Node] | None,
    counted_now: str,
    now: datetime.datetime,
) -> tuple[FailingNode, ...]:
    """status.failingNodes, with everything observed now. `counted_now`: name of the pod whose failure this plan counts
    for the first time."""
    known = {
        failing_node.name: failing_node
        for failing_node in job.status.failing_nodes or ()
        if now - failing_node.last_time < MEMORY
    }
    workers = list(workers)
    unwell = [worker for worker in workers if worker[1].failure is not None or worker[1].state is PodState.LOST]
    for pod, status in unwell:
        if status.failure is not None and status.failure.before_training and not _starts_elsewhere(pod, workers):
            continue
        moment = _blamed_at(pod, status, nodes, counted_now)
        if moment is None:
            continue
        before = known.get(pod.node)
        if before is None or moment > before.last_time:
            count = max(1, job.spec.scheduling.avoid_nodes_after) if _blames_node(status) else 1
            known[pod.node] = FailingNode(
                name=pod.node,
                failures=count + (before.failures if before else 0),
                last_time=moment,
                check=_check(status) or (before.check if before else None),
            )
    newest = sorted(known.values(), key=lambda node: node.last_time, reverse=True)[:MOST]
    return tuple(sorted(newest, key=lambda node: node.name))


def _starts_elsewhere(failed: Pod, workers: Iterable[tuple[Pod, PodStatus]]) -> bool:
    """Whether worker pods got past their init containers on other nodes."""
    return any(pod.node != failed.node and (pod.end is not None or pod.running) for pod, _ in workers)


def avoided(job: ElasticJob, failing: Sequence[FailingNode]) -> list[str]:
    """Names of the nodes that new workers should avoid."""
    limit = job.spec.scheduling.avoid_nodes_after
    return [node.name for node in failing if limit and node.failures >= limit]


def suspected(failing: Sequence[FailingNode]) -> ConditionUpdate:
    """The condition NodesSuspected."""
    found = [(node.name, node.check) for node in failing if node.check]
    if not found:
        return update(False, Reason.NO_SUSPECTS)
    nodes = "; ".join(f"{name} ({check})" for name, check in found[:SHOWN])
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return update(True, Reason.CHECK_FAILED, nodes=nodes + more, node=found[0][0])


def _check(status: PodStatus) -> str | None:
    """The checks that the pod's node fails, and what they found."""
    failure = status.failure
    if failure is None or failure.exit_code != ExitCode.SUSPECT:
        return None
    return failure.detail.removeprefix(PREFLIGHT_FAILED)[:MAX_CHECK]


def _blamed_at(
    pod: Pod, status: PodStatus, nodes: Mapping[str, Node] | None, counted_now: str
) -> datetime.datetime | None:
    """When the pod's node failed it, in whole seconds. None: it did not, or that is already counted."""
    if not pod.node:
        return None
    if status.state is PodState.LOST:
        node = nodes.get(pod.node) if nodes else None
        return node.since.replace(microsecond=0) if node is not None and node.health is NodeHealth.SILENT else None
    failure = status.failure
    if failure is None:
        return None
    blamed = (failure.cost is Cost.COUNTS and pod.name == counted_now) or (
        failure.cost is Cost.FREE_BUT_WAIT and (failure.exit_code is None or _blames_node(status))
    )
    return failure.time.replace(microsecond=0) if blamed else None


def _blames_node(status: PodStatus) -> bool:
    return status.failure is not None and status.failure.exit_code in BLAMES_NODE
