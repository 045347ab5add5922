"""How many worker pods of a job in a queue may exist, where, and what happens to its Workloads.

| base Workload | the job | what is written |
|---|---|---|
| none | goes on: waits, runs for a minute, or stops | the base is created, after the last pod of a job that stops |
| pending | no pod; what runs is stopped | surplus is deleted |
| admitted | minReplicas worker pods | once they are ready: one surplus at a time, up to `replicas` |
| evicted or deactivated | is stopped, and its state saved | released after the last pod has gone; surplus is deleted |
| finished, or made for another template or queue | is stopped | deleted after the last pod has gone |

A surplus that Kueue evicts, that is no longer wanted, or whose pods are never ready, gives its pods back by a planned
shrink, and is released or deleted after the last of them has gone. If Kueue is removed or cannot be watched, jobs that
run go on as they are.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from elasticjob_api import ConditionType, ElasticJob, Reason

from elasticjob_operator import names
from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.queue_state import Placement, QueueView, Workload, WorkloadPart
from elasticjob_operator.queueing import bodies, patches, withdrawal
from elasticjob_operator.queueing.base import asks_for_less, create_base, is_outdated, update_pending, update_priority
from elasticjob_operator.queueing.bodies import ETCD, WORKERS
from elasticjob_operator.queueing.job import Change, QueuedJob, base_of, delete, release, report_ready, sentence
from elasticjob_operator.queueing.lost import own_again, with_lost
from elasticjob_operator.queueing.placement import placement, unknown_flavor
from elasticjob_operator.queueing.prebuilt import adopt, why_incompatible
from elasticjob_operator.queueing.priorities import follow_base
from elasticjob_operator.queueing.surplus import Surplus, create_surplus, give_back, put_right, surplus_of, unused_of
from elasticjob_operator.state import Pod

MISSING_SECONDS = 60.0
"""How long a job may train without a base while Kueue is served. If Kueue is removed, its objects vanish before
discovery says so (15 s), and its webhook may be down for a moment."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """Worker pods that one Workload admits."""

    workload: str
    count: int
    placement: Placement


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What the queue allows now."""

    held: bool
    """No pod may run."""
    replicas: int
    """The most worker pods that may exist."""
    slots: tuple[Slot, ...] = ()
    """Base first. Empty while the job goes on without its queue."""
    etcd: Placement = dataclasses.field(default_factory=Placement)
    """Of the job's own etcd."""
    leaving: frozenset[str] = frozenset()
    """Workloads whose worker pods leave. Also names of some that do not exist, or no longer."""
    most: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By Workload of which a part is given back, how many of its worker pods stay."""
    queued: ConditionUpdate
    """The condition Queued."""
    changes: tuple[Change, ...] = ()
    requeue_at: datetime.datetime | None = None
    """When this changes if nothing else does."""


def grant(queued: QueuedJob) -> Grant:
    """For a job that is neither suspended nor finished."""
    view, lost = with_lost(queued.job, queued.view)
    queued = dataclasses.replace(queued, view=view)
    found = _by_base(queued)
    if lost:
        found = _owning_again(queued, found, lost)
    strays = [delete(stray) for stray in queued.strays if not stray.terminating and not queued.pods_of(stray)]
    return dataclasses.replace(found, changes=(*strays, *found.changes))


def _owning_again(queued: QueuedJob, found: Grant, lost: Sequence[Workload]) -> Grant:
    """Nothing else is written to them: the admission policy allows no write to a Workload without an owner."""
    taken = {workload.name: own_again(queued.job, workload) for workload in lost}
    others = [change for change in found.changes if change.workload is None or change.workload.name not in taken]
    said = found.queued
    if found.held and queued.base is not None and queued.base.name in taken:
        said = queued.waiting(Reason.WORKLOAD_REJECTED, queued.base, _ownerless(queued, queued.base.name))
    return dataclasses.replace(found, changes=(*others, *taken.values()), queued=said)


def _ownerless(queued: QueuedJob, name: str) -> str:
    remedy = f"if this lasts, delete it (kubectl delete workloads.kueue.x-k8s.io {name} -n {queued.job.namespace})"
    return f"Workload {name} has lost its owner reference to this job, which is being put back: {remedy}"


def _by_base(queued: QueuedJob) -> Grant:
    view, base = queued.view, queued.base
    if view.problem:
        return _without_queue(queued, queued.waiting(Reason.QUEUE_UNAVAILABLE, detail=view.problem))
    if queued.priority_class and queued.priority_class not in view.priorities and base is None:
        return _while_missing(queued, queued.waiting(Reason.PRIORITY_CLASS_MISSING, detail=queued.priority_class))
    if base is None:
        return _without_base(queued)
    return _with_base(queued, base)


def _with_base(queued: QueuedJob, base: Workload) -> Grant:
    if problem := why_incompatible(queued, base):
        return _stopping(queued, queued.waiting(Reason.PREBUILT_WORKLOAD_UNUSABLE, base, problem), None)
    if base.is_finished or is_outdated(queued, base):
        ended = f"Workload {base.name} counts as finished, and has no quota" if base.is_finished else ""
        removed = None if queued.uses_base or base.terminating else delete(base)
        return _stopping(queued, queued.waiting(Reason.REQUEUED, base, ended), removed)
    if base.must_stop:
        released = None if queued.uses_base else release(base, queued.now)
        return _stopping(queued, _why_stopped(queued, base), released)
    if base.terminating and base.is_reserved:  # by a finalizer: until Kueue wants its quota
        return _without_queue(queued, queued.waiting(Reason.WAITING_FOR_QUOTA, base, "It is being deleted"))
    if not base.is_admitted:
        return _stopping(queued, _why_pending(queued, base), None if base.terminating else update_pending(queued, base))
    return _running(queued, base)


def releases(
    job: ElasticJob, view: QueueView, pods: Sequence[Pod], now: datetime.datetime, *, etcd_runs: bool = False
) -> tuple[Change, ...]:
    """For a job that its owner has suspended, or that has finished, or that has left its queue. `pods` and `etcd_runs`:
    as of QueuedJob. Quota is given back after the last pod has gone."""
    in_queue = bool(bodies.queue_of(job))
    if pods and in_queue:
        return ()
    base, waits = base_of(job, view), etcd_runs and in_queue
    keeps_base = in_queue and (waits or job.status.is_finished)
    found = [
        delete(workload)
        for workload in view.workloads
        if not workload.terminating and not (keeps_base and workload is base)
    ]
    if keeps_base and not waits and base is not None and not base.is_finished:
        succeeded = job.status.is_true(ConditionType.SUCCEEDED)
        end = job.status.condition(ConditionType.SUCCEEDED if succeeded else ConditionType.FAILED)
        patch = patches.finished(base, succeeded=succeeded, message=end.message if end else "", now=now)
        found.append(Change(reason="the job has finished", workload=base, patch=patch, of_status=True))
    return tuple(found)


def _without_base(queued: QueuedJob) -> Grant:
    """It is created, or the one that the job names is taken."""
    prebuilt = bodies.prebuilt_of(queued.job)
    if prebuilt:
        adopted, problem = adopt(queued, prebuilt)
        if adopted is None:
            return _while_missing(queued, queued.waiting(Reason.PREBUILT_WORKLOAD_UNUSABLE, detail=problem))
        return _while_missing(queued, queued.waiting(Reason.WAITING_FOR_QUOTA), [adopted])
    name = names.base_workload(queued.job.name)
    if (foreign := queued.view.foreign_of(name)) is not None:
        return _while_missing(queued, queued.waiting(Reason.WORKLOAD_REJECTED, foreign, _whose(queued, foreign)))
    if not queued.accepted:
        return _while_missing(queued, queued.waiting(Reason.NOT_ACCEPTED))
    return _while_missing(queued, queued.waiting(Reason.WAITING_FOR_QUOTA), [create_base(queued)])


def _whose(queued: QueuedJob, foreign: Workload) -> str:
    name, namespace = foreign.name, queued.job.namespace
    if foreign.owner_uid or foreign.terminating:
        return f"Workload {name} of a deleted job of this name is still being deleted: wait, or see its finalizers"
    remedy = f"delete it (kubectl delete workloads.kueue.x-k8s.io {name} -n {namespace}), or give this job another name"
    return f"Workload {name} exists and belongs to no job: {remedy}"


def _while_missing(queued: QueuedJob, waits: ConditionUpdate, changes: Sequence[Change] = ()) -> Grant:
    """The job has no base. What runs goes on for a while, and then stops: it may be on quota that others have got."""
    since, found = queued.view.base_missing_since, _without_queue(queued, waits, changes)
    if since is None or found.held:
        return found
    due = since + datetime.timedelta(seconds=MISSING_SECONDS)
    return dataclasses.replace(found, requeue_at=due) if queued.now < due else _stopping(queued, waits, None)


def _without_queue(queued: QueuedJob, waits: ConditionUpdate, changes: Sequence[Change] = ()) -> Grant:
    """Nothing is known of what is admitted. What runs goes on with as many worker pods as before. A job that waits goes
    on waiting, and one that is being stopped goes on stopping."""
    before = queued.job.status.desired_replicas
    if not queued.pods or before is None:
        stopping = _stopping(queued, waits, None)
        return dataclasses.replace(stopping, changes=(*stopping.changes, *(() if queued.pods else changes)))
    going_on = dataclasses.replace(waits, status=False)
    return Grant(held=False, replicas=before, queued=going_on, changes=tuple(changes))


def _stopping(queued: QueuedJob, why: ConditionUpdate, change: Change | None) -> Grant:
    """No pod may run. Surplus is deleted: released, it would be admitted again at once."""
    surplus = [
        delete(workload)
        for workload in queued.surplus
        if not workload.terminating and not (workload.is_reserved and queued.may_use(workload))
    ]
    return Grant(held=True, replicas=0, queued=why, changes=(*surplus, *([change] if change else [])))


def _why_stopped(queued: QueuedJob, base: Workload) -> ConditionUpdate:
    evicted = base.condition("Evicted")
    if not base.active:
        return queued.waiting(Reason.DEACTIVATED, base, str(evicted.get("message") or ""))
    return queued.waiting(Reason.EVICTED, base, f"{evicted.get('reason')}: {evicted.get('message')}")


def _why_pending(queued: QueuedJob, base: Workload) -> ConditionUpdate:
    if base.terminating:
        said = "It is being deleted, and another one is created once it is gone: see its metadata.finalizers"
        return queued.waiting(Reason.WAITING_FOR_QUOTA, base, said)
    if not base.active:
        return queued.waiting(Reason.DEACTIVATED, base, str(base.condition("Evicted").get("message") or ""))
    if base.is_reserved:
        checks = ", ".join(base.unanswered)
        said = f"It waits for {checks}." if checks else str(base.condition("Admitted").get("message") or "")
        return queued.waiting(Reason.WAITING_FOR_CHECKS, base, said)
    # Away from the head of the queue, a Workload may have no condition.
    return queued.waiting(Reason.WAITING_FOR_QUOTA, base, str(base.condition("QuotaReserved").get("message") or ""))


def _running(queued: QueuedJob, base: Workload) -> Grant:
    job, view = queued.job, queued.view
    if not queued.pods and (flavor := unknown_flavor(base, view.flavors)):
        said = f"ResourceFlavor {flavor} says on which nodes its pods may run, and does not exist yet"
        return _stopping(queued, queued.waiting(Reason.WAITING_FOR_CHECKS, base, said), None)
    wanted = max(job.replicas, queued.minimum)
    surplus = surplus_of(queued, base, wanted)
    kept = (base, *surplus.admitted)
    admitted = min(wanted, sum(workload.counts.get(WORKERS, 0) for workload in kept))
    unused = unused_of(job, base, surplus.admitted, wanted)
    admitted -= unused
    changes = [*update_priority(queued, base), *follow_base(base, (*surplus.admitted, *surplus.pending))]
    changes += [change for workload in surplus.pending for change in put_right(queued, base, workload)]
    changes += _count_withdrawals(queued, base, surplus)
    changes += [
        give_back(queued, workload, is_wanted=workload.name not in surplus.unwanted)
        for workload in surplus.leaving
        if not queued.may_use(workload)
    ]
    lowered = _to_lower(kept, admitted) if unused else _to_lower((*kept, *surplus.pending), wanted)
    changes += _lower(queued, *lowered) if lowered is not None else ()
    changes += [change for workload in kept for change in _report_ready(queued, workload)]
    problem, retry_at = None, withdrawal.next_attempt(base.withdrawals, queued.now)
    is_settled = not surplus.pending and not surplus.leaving and not unused
    may_ask = is_settled and retry_at is None and base.is_true("PodsReady")
    if surplus.covered < wanted and may_ask:
        created, problem = create_surplus(queued, base, admitted, wanted)
        changes += created
    slots = tuple(_slot(queued, workload) for workload in kept)
    return Grant(
        held=False,
        replicas=admitted,
        slots=slots,
        etcd=placement(base, ETCD, view.flavors, {}),
        leaving=frozenset(
            (
                *(held.name for held in surplus.leaving),
                *(pod.workload for pod in queued.misnamed),
            )
        ),
        most={lowered[0].name: lowered[1]} if lowered is not None else {},
        queued=problem or _how_much(queued, base, surplus, admitted, wanted, retry_at),
        changes=tuple(changes),
        requeue_at=_next_deadline(queued.now, [*map(withdrawal.ready_by, surplus.admitted), retry_at]),
    )


def _slot(queued: QueuedJob, workload: Workload) -> Slot:
    """None of its worker pods is created before it is known where they may run."""
    flavors, count = queued.view.flavors, workload.counts.get(WORKERS, 0)
    if unknown_flavor(workload, flavors) and not queued.pods_of(workload):
        count = 0
    placed = placement(workload, WORKERS, flavors, _annotations(queued.job))
    return Slot(workload=workload.name, count=count, placement=placed)


def _next_deadline(now: datetime.datetime, moments: Sequence[datetime.datetime | None]) -> datetime.datetime | None:
    return min((moment for moment in moments if moment is not None and now < moment), default=None)


def _count_withdrawals(queued: QueuedJob, base: Workload, surplus: Surplus) -> list[Change]:
    """Before the Workload is deleted, so that it is not asked for again at once."""
    if any(not queued.may_use(workload) for workload in surplus.overdue):
        patch = withdrawal.recorded(base, queued.now)
        return [Change(reason="the worker pods of its surplus were not ready in time", workload=base, patch=patch)]
    if base.withdrawals.count and any(_report_ready(queued, workload) for workload in surplus.admitted):
        return [Change(reason="a surplus is ready", workload=base, patch=withdrawal.forgotten(base))]
    return []


def _how_much(
    queued: QueuedJob,
    base: Workload,
    surplus: Surplus,
    admitted: int,
    wanted: int,
    retry_at: datetime.datetime | None,
) -> ConditionUpdate:
    """The condition Queued of a job whose base is admitted: why it has fewer worker pods than it asks for. `retry_at`:
    when more are asked for again."""
    evicted = next((workload for workload in surplus.leaving if workload.must_stop), None)
    detail = ""
    if evicted is not None:
        reason = Reason.SURPLUS_EVICTED
        detail = f"{evicted.name} is evicted: {evicted.condition('Evicted').get('message')}"
    elif surplus.overdue or (retry_at is not None and admitted < wanted):
        reason = Reason.SURPLUS_WITHDRAWN
        detail = f"It is asked for again at {retry_at:%H:%M:%S} UTC" if retry_at is not None else ""
    elif admitted < wanted:
        reason = Reason.PARTLY_ADMITTED
        pending = next(iter(surplus.pending), None)
        said = pending.condition("QuotaReserved").get("message") if pending is not None else None
        detail = f"{pending.name}: {said}" if pending is not None and said else ""
    else:
        reason = Reason.ADMITTED
    if not detail and (less := asks_for_less(queued, base)):
        detail = f"Someone has changed {base.name}, and it is admitted with less than its pods use: {less}"
    return update(
        False,
        reason,
        queue=queued.queue,
        there=admitted,
        wanted=wanted,
        detail=sentence(detail),
        namespace=queued.job.namespace,
    )


def _to_lower(staying: Sequence[Workload], wanted: int) -> tuple[Workload, int] | None:
    """(the Workload of which a part is given back, how many worker pods it keeps). `staying`: the Workloads that do not
    leave. One that leaves is never a reason to give back a part of the base."""
    workload, covered = staying[-1], sum(held.counts.get(WORKERS, 0) for held in staying)
    return (workload, workload.counts.get(WORKERS, 0) - (covered - wanted)) if covered > wanted else None


def _lower(queued: QueuedJob, workload: Workload, count: int) -> list[Change]:
    """Once it has no more worker pods than that."""
    if workload.part is WorkloadPart.BASE and bodies.prebuilt_of(queued.job):
        return []
    if len(queued.pods_of(workload)) + len(queued.misnamed) > count:
        return []
    patch = patches.with_count(workload, WORKERS, count)
    return [Change(reason="fewer worker pods are requested", workload=workload, patch=patch)]


def _report_ready(queued: QueuedJob, workload: Workload) -> list[Change]:
    if workload.is_true("PodsReady") or not queued.is_ready(workload):
        return []
    return [report_ready(workload, queued.now)]


def _annotations(job: ElasticJob) -> Mapping[str, str]:
    annotations: Mapping[str, str] = (job.spec.workers.template.get("metadata") or {}).get("annotations") or {}
    return annotations
