"""The surplus of a job whose base is admitted: what stays, what leaves, what is asked for next, and what someone else
has changed in one that waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_api import ElasticJob, Reason

from elasticjob_operator import names
from elasticjob_operator.policies.condition_updates import ConditionUpdate
from elasticjob_operator.queue_state import Workload, WorkloadPart
from elasticjob_operator.queueing import bodies, patches
from elasticjob_operator.queueing.bodies import WORKERS
from elasticjob_operator.queueing.job import Change, QueuedJob, delete, release
from elasticjob_operator.queueing.placement import placement
from elasticjob_operator.queueing.priorities import Priority, below
from elasticjob_operator.queueing.requests import shortfall


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Surplus:
    """The surplus of a job whose base is admitted."""

    admitted: tuple[Workload, ...] = ()
    pending: tuple[Workload, ...] = ()
    leaving: tuple[Workload, ...] = ()
    """Evicted, finished, more than is wanted, or not ready in time."""
    unwanted: frozenset[str] = frozenset()
    """Those of `leaving` that do not return to the queue."""
    overdue: tuple[Workload, ...] = ()
    """Those of `leaving` that were not ready in time."""
    covered: int = 0
    """Worker pods of base and surplus together, pending and evicted ones included."""


def surplus_of(queued: QueuedJob, base: Workload, wanted: int) -> Surplus:
    """What is admitted is kept before what is pending."""
    admitted: list[Workload] = []
    pending: list[Workload] = []
    leaving: list[Workload] = []
    overdue: list[Workload] = []
    unwanted: set[str] = set()
    covered = base.counts.get(WORKERS, 0)
    for workload in sorted(queued.surplus, key=lambda workload: not workload.is_admitted):
        if workload.terminating:
            continue
        if covered >= wanted or workload.is_finished:
            leaving.append(workload)
            unwanted.add(workload.name)
            continue
        covered += workload.counts.get(WORKERS, 0)
        if queued.is_overdue(workload):
            overdue.append(workload)
            leaving.append(workload)
            unwanted.add(workload.name)
            continue
        (leaving if workload.must_stop else admitted if workload.is_admitted else pending).append(workload)
    useless = unused_of(queued.job, base, admitted, wanted)
    if useless:
        admitted.sort(key=lambda workload: not queued.pods_of(workload))  # those that are in use are kept
    while admitted and useless >= admitted[-1].counts.get(WORKERS, 0):
        workload = admitted.pop()
        leaving.append(workload)
        unwanted.add(workload.name)
        useless -= workload.counts.get(WORKERS, 0)
    return Surplus(
        admitted=tuple(admitted),
        pending=tuple(pending),
        leaving=tuple(leaving),
        unwanted=frozenset(unwanted),
        overdue=tuple(overdue),
        covered=covered,
    )


def unused_of(job: ElasticJob, base: Workload, admitted: Sequence[Workload], wanted: int) -> int:
    """How many of the worker pods that are admitted belong to no allowed size, as after the eviction of one surplus of
    several."""
    there = min(wanted, sum(workload.counts.get(WORKERS, 0) for workload in (base, *admitted)))
    return there - job.round_down(there)


def create_surplus(
    queued: QueuedJob, base: Workload, admitted: int, wanted: int
) -> tuple[list[Change], ConditionUpdate | None]:
    """(the Workload, or why there is none)"""
    job, rules, known = queued.job, queued.job.spec.scheduling.queue, queued.view.priorities
    class_name = rules.surplus_priority_class_name
    if class_name and class_name not in known:
        missing = queued.waiting(Reason.PRIORITY_CLASS_MISSING, detail=class_name)
        return [], dataclasses.replace(missing, status=False)
    if not queued.accepted:
        return [], None
    taken = {workload.name for workload in (*queued.view.workloads, *queued.view.foreign)} | queued.view.taken
    numbers = range(len(taken) + 1)
    body = bodies.workload(
        job,
        WorkloadPart.SURPLUS,
        number=next(number for number in numbers if names.surplus_workload(job.name, number) not in taken),
        count=_next_step(job, admitted, wanted),
        template_hash=queued.template_hash,
        priority=Priority(value=known[class_name] if class_name else below(base), name=class_name).fields,
        # The group stays homogeneous: what the base's flavor selects is part of what a surplus asks for.
        node_selector=placement(base, WORKERS, queued.view.flavors, {}).node_selector,
    )
    return [Change(reason=f"{wanted} worker pods are requested, {admitted} are admitted", create=body)], None


def _next_step(job: ElasticJob, admitted: int, wanted: int) -> int:
    """How many worker pods to ask for: a step, or as many as the next allowed size needs."""
    step = max(job.spec.scheduling.queue.step, job.next_size(admitted) - admitted)
    return max(1, min(wanted, job.round_down(admitted + step)) - admitted)


def give_back(queued: QueuedJob, surplus: Workload, *, is_wanted: bool) -> Change:
    """Its last pod is gone."""
    if not is_wanted:
        return delete(surplus, "fewer worker pods are requested")
    return release(surplus, queued.now)


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
