"""The base Workload of a job: how it is created and kept up to date, and when it serves no longer."""

from __future__ import annotations

from typing import Any

from elasticjob_operator.queue_state import Workload, WorkloadPart
from elasticjob_operator.queueing import bodies, patches
from elasticjob_operator.queueing.bodies import WORKERS
from elasticjob_operator.queueing.job import Change, QueuedJob
from elasticjob_operator.queueing.priorities import Priority, may_change, priority_of
from elasticjob_operator.queueing.requests import shortfall


def create_base(queued: QueuedJob) -> Change:
    body = bodies.workload(
        queued.job,
        WorkloadPart.BASE,
        count=queued.minimum,
        template_hash=queued.template_hash,
        priority=(priority_of(queued) or Priority()).fields,
        etcd=queued.etcd,
    )
    return Change(reason=f"the job waits in queue {queued.queue}", create=body)


def is_outdated(queued: QueuedJob, base: Workload) -> bool:
    """It was made for another template or queue, or more worker pods are needed than it can admit: what is reserved
    never grows."""
    if base.template_hash != queued.template_hash or base.queue != queued.queue:
        return True
    return base.is_reserved and base.counts.get(WORKERS, 0) < queued.minimum


def asks_for_less(queued: QueuedJob, base: Workload) -> str:
    """What it asks for less than the pods that it admits. Empty: nothing."""
    wanted = _pod_sets(queued)
    if bodies.prebuilt_of(queued.job):
        wanted = wanted[:1]  # the operator of the manager cluster may have another etcd
    return shortfall(base.pod_sets, wanted)


def _pod_sets(queued: QueuedJob) -> list[dict[str, Any]]:
    return bodies.pod_sets(queued.job, queued.minimum, queued.etcd)


def update_pending(queued: QueuedJob, base: Workload) -> Change | None:
    """Another minReplicas or priority keeps the place in the queue. What someone else has lowered is put right."""
    if bodies.prebuilt_of(queued.job):
        return None
    if not base.is_reserved and (less := asks_for_less(queued, base)):
        return Change(reason=less, workload=base, patch=patches.with_pod_sets(base, _pod_sets(queued)))
    if not base.is_reserved and base.counts.get(WORKERS, 0) != queued.minimum:
        patch = patches.with_count(base, WORKERS, queued.minimum)
        return Change(reason="minReplicas was changed", workload=base, patch=patch)
    return next(iter(update_priority(queued, base)), None)


def update_priority(queued: QueuedJob, base: Workload) -> list[Change]:
    wanted = priority_of(queued)
    if bodies.prebuilt_of(queued.job) or wanted is None or not may_change(base, wanted):
        return []
    patch = {"metadata": {"resourceVersion": base.version}, "spec": {"priorityClassRef": None, **wanted.fields}}
    return [Change(reason="the job has another priority class", workload=base, patch=patch)]
