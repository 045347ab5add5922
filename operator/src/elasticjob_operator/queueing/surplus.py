"""What someone else has changed in a surplus that waits."""

from __future__ import annotations

from elasticjob_operator.queue_state import Workload
from elasticjob_operator.queueing import bodies, patches
from elasticjob_operator.queueing.bodies import WORKERS
from elasticjob_operator.queueing.job import Change, QueuedJob
from elasticjob_operator.queueing.placement import placement
from elasticjob_operator.queueing.requests import shortfall


def put_right(queued: QueuedJob, base: Workload, surplus: Workload) -> list[Change]:
    """It asks for less than its worker pods, or its priority is not that of its class."""
    if surplus.is_reserved:
        return []
    pod_sets = bodies.pod_sets(
        queued.job,
        max(1, surplus.counts.get(WORKERS, 0)),
        node_selector=placement(base, WORKERS, queued.view.flavors, {}).node_selector,
    )
    if less := shortfall(surplus.pod_sets, pod_sets):
        return [Change(reason=less, workload=surplus, patch=patches.with_pod_sets(surplus, pod_sets))]
    value = queued.view.priorities.get(surplus.priority_class)
    if value in (None, surplus.priority) or surplus.has_pod_priority:
        return []
    patch = {"metadata": {"resourceVersion": surplus.version}, "spec": {"priority": value}}
    return [Change(reason="its priority is not that of its class", workload=surplus, patch=patch)]
