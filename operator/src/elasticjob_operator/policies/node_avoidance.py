"""Nodes on which workers keep failing, so that new workers rather go elsewhere.

Counted are failures that may be the node's fault: a worker that failed there first of its group, a pod that its kubelet
refused, the loss of the node itself. What the cluster or a person did on purpose (eviction, preemption, deletion) says
nothing about a node. A count is forgotten an hour after its newest failure.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from elasticjob_operator.api import ElasticJob, FailingNode
from elasticjob_operator.policies.failures import Cost, judge
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.state import Node, NodeHealth, Pod

MEMORY = datetime.timedelta(hours=1)
MOST = 32


def failing_nodes(
    job: ElasticJob,
    workers: Iterable[tuple[Pod, PodStatus]],
    nodes: Mapping[str, Node] | None,
    counted_now: str,
    now: datetime.datetime,
) -> tuple[FailingNode, ...]:
    """status.failingNodes after everything that is visible now. `counted_now`: name of the pod whose failure is counted
    in this very plan, for the first time."""
    known = {each.name: each for each in job.status.failing_nodes or () if now - each.last_time < MEMORY}
    for pod, stand in workers:
        moment = _blamed_at(job, pod, stand, nodes, counted_now)
        if moment is None:
            continue
        before = known.get(pod.node)
        if before is None or moment > before.last_time:
            known[pod.node] = FailingNode(
                name=pod.node, failures=before.failures + 1 if before else 1, last_time=moment
            )
    newest = sorted(known.values(), key=lambda each: each.last_time, reverse=True)[:MOST]
    return tuple(sorted(newest, key=lambda each: each.name))


def avoided(job: ElasticJob, failing: Sequence[FailingNode]) -> list[str]:
    """Names of the nodes that new workers rather not go to."""
    limit = job.spec.scheduling.avoid_nodes_after
    return [each.name for each in failing if limit and each.failures >= limit]


def _blamed_at(
    job: ElasticJob, pod: Pod, stand: PodStatus, nodes: Mapping[str, Node] | None, counted_now: str
) -> datetime.datetime | None:
    """When the pod's node did something wrong, in whole seconds; None: it did not, or that is counted already."""
    if not pod.node:
        return None
    if stand.state is PodState.LOST:
        node = nodes.get(pod.node) if nodes else None
        return node.since.replace(microsecond=0) if node is not None and node.health is NodeHealth.SILENT else None
    if stand.state is not PodState.FAILED:
        return None
    failure = judge(pod, job.spec.restart_policy.rules)
    blamed = (failure.cost is Cost.COUNTS and pod.name == counted_now) or (
        failure.cost is Cost.FREE_BUT_WAIT and failure.exit_code is None
    )
    return failure.time.replace(microsecond=0) if blamed else None
