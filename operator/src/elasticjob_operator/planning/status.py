"""The status of a job, composed of what the policies decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_api import (
    REMEDY,
    Condition,
    ConditionStatus,
    ConditionType,
    FailingNode,
    OptimizerSteps,
    Progress,
    Reason,
    RendezvousBackend,
    RendezvousStatus,
    Status,
    message,
    set_condition,
    summary_of,
)

from elasticjob_operator import names
from elasticjob_operator.planning.context import Assessment, Context
from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.policies.node_avoidance import suspected
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.progress import counted_steps, reported_progress
from elasticjob_operator.policies.rendezvous import rendezvous_ready, store_ready
from elasticjob_operator.policies.replicas import replica_workers
from elasticjob_operator.policies.resizing import degraded, resizing
from elasticjob_operator.policies.running import Training
from elasticjob_operator.policies.stalling import stalled
from elasticjob_operator.policies.waits import ending
from elasticjob_operator.queueing.bodies import queue_of
from elasticjob_operator.queueing.grant import Grant
from elasticjob_operator.queueing.job import base_of, sentence
from elasticjob_operator.state import Kind

_OF_RUNNING = (
    ConditionType.RENDEZVOUS_READY,
    ConditionType.RUNNING,
    ConditionType.STALLED,
    ConditionType.RESTARTING,
    ConditionType.RESIZING,
    ConditionType.DEGRADED,
    ConditionType.STRAGGLERS_FOUND,
)
"""Conditions that are false while a job does not run."""


class _Conditions:
    """The job's conditions, to be set one by one."""

    def __init__(self, context: Context, known: tuple[Condition, ...] | None = None) -> None:
        """`known`: those that are set already; default: as written before."""
        self.all: tuple[Condition, ...] = context.job.status.conditions if known is None else known
        self._generation = context.job.generation
        self._now = context.now

    def set(self, type_: ConditionType, new: ConditionUpdate | None) -> None:
        """None: leave it as it is."""
        if new is None:
            return
        self.all = set_condition(
            self.all,
            type=type_,
            status=new.status,
            reason=new.reason,
            message=new.message,
            generation=self._generation,
            now=self._now,
        )

    def set_once(self, type_: ConditionType, new: ConditionUpdate | None) -> None:
        """A condition that does not exist until it is true for the first time."""
        if new is not None and (new.status or self.has(type_)):
            self.set(type_, new)

    def set_known(self, types: tuple[ConditionType, ...], new: ConditionUpdate) -> None:
        """Sets those of `types` that have been set before."""
        for type_ in types:
            if self.has(type_):
                self.set(type_, new)

    def has(self, type_: ConditionType) -> bool:
        return any(condition.type == type_.value for condition in self.all)


def status_of(assessment: Assessment, training: Training) -> Status:
    """The status of a job that is neither finished nor suspended."""
    conditions, job = _Conditions(assessment), assessment.job
    accepted = assessment.acceptance.status
    _set_accepted(conditions, assessment)
    _set_queued(conditions, assessment)
    conditions.set(ConditionType.RENDEZVOUS_READY, _rendezvous_ready(assessment, training))
    run = assessment.rendezvous.run
    reason = Reason.JOB_STARTED if run == names.FIRST_RUN else Reason.JOB_RESUMED
    conditions.set_known((ConditionType.SUSPENDED,), update(False, reason, run=run))
    if accepted or assessment.workers:
        conditions.set(ConditionType.RUNNING, training.running)
        conditions.set(ConditionType.RESTARTING, training.restarting)
        conditions.set_once(ConditionType.STALLED, stall_of(assessment, training))
        _set_size(conditions, assessment, training)
        _set_not_finished(conditions)
    elif accepted is False:
        conditions.set_known(_OF_RUNNING, assessment.acceptance)
    return _status(assessment, conditions).model_copy(
        update={
            "world_size": _world_size(assessment) if training.is_running else 0,
            # Of the group that trains or trained last: after a restart, a higher round means that training continues.
            "round": _round(assessment) if training.is_running else job.status.round,
            "start_time": job.status.start_time or (assessment.now.replace(microsecond=0) if accepted else None),
        }
    )


def with_suspects(
    status: Status, failing: Sequence[FailingNode], stragglers: ConditionUpdate, context: Context
) -> Status:
    """With the conditions NodesSuspected and StragglersFound. `stragglers`: the latter."""
    conditions = _Conditions(context, status.conditions)
    conditions.set_once(ConditionType.NODES_SUSPECTED, suspected(failing))
    conditions.set_once(ConditionType.STRAGGLERS_FOUND, stragglers)
    return status.model_copy(update={"failing_nodes": tuple(failing) or None, "conditions": conditions.all})


def suspended_status(assessment: Assessment) -> Status:
    """The status of a job that is suspended, or is being suspended."""
    conditions = _Conditions(assessment)
    _set_accepted(conditions, assessment)
    _set_queued(conditions, assessment)
    left = (*assessment.workers, *assessment.stale)
    reason = Reason.SUSPENDING if left else Reason.SUSPENDED
    why = None if left else _why_queued(assessment)
    if why is not None:
        reason, text = why
    elif left:
        pod, status = left[0]
        text = message(reason, count=len(left), worker=f"{pod.name} {pod.place}".rstrip())
        text += f" {status.kept.message}" if status.kept else f"{REMEDY}{ending(assessment.job, pod)}"
    else:
        queue = queue_of(assessment.job)
        text = message(reason, queue=f" It returns to queue {queue} when it is resumed." if queue else "")
    conditions.set_known(_OF_RUNNING, ConditionUpdate(status=False, reason=reason, message=text))
    conditions.set(ConditionType.SUSPENDED, ConditionUpdate(status=not left, reason=reason, message=text))
    _set_not_finished(conditions)
    return _status(assessment, conditions).model_copy(
        update={"world_size": 0, "round": _round(assessment) if left else assessment.job.status.round}
    )


def _why_queued(assessment: Assessment) -> tuple[Reason, str] | None:
    """Why its queue does not let the job run; None: it does. One that was admitted again while it stopped has stopped
    for what Queued said before."""
    grant, before = assessment.grant, assessment.job.status.condition(ConditionType.QUEUED)
    if grant is None:
        return None
    if grant.held:
        return grant.queued.reason, grant.queued.message
    if before is None or before.status is not ConditionStatus.TRUE:
        return None
    return Reason(before.reason), before.message


def ended_status(assessment: Assessment, outcome: ConditionUpdate) -> Status:
    """The status of a job that finishes now. `outcome`: the condition Succeeded, True or False."""
    conditions = _Conditions(assessment)
    _set_accepted(conditions, assessment)
    ended = (*_OF_RUNNING, ConditionType.SUSPENDED, ConditionType.QUEUED)
    conditions.set_known(ended, update(False, Reason.FINISHED))
    for type_, status in ((ConditionType.SUCCEEDED, bool(outcome.status)), (ConditionType.FAILED, not outcome.status)):
        conditions.set(type_, ConditionUpdate(status=status, reason=outcome.reason, message=outcome.message))
    now = assessment.now.replace(microsecond=0)
    return _status(assessment, conditions).model_copy(
        update={
            "world_size": 0,
            "round": _round(assessment),
            "start_time": assessment.job.status.start_time or now,
            "completion_time": now,
        }
    )


def status_without_namespace(context: Context) -> Status:
    """The status of a job whose namespace is being deleted."""
    conditions = _Conditions(context)
    if not context.job.status.is_finished:
        reason = Reason.NAMESPACE_TERMINATING
        conditions.set(ConditionType.RUNNING, update(False, reason, namespace=context.job.namespace))
    return context.job.status.model_copy(
        update={"conditions": conditions.all, "summary": summary_of(conditions.all), "world_size": 0}
    )


def finished_status(context: Context) -> Status:
    """The status of a job that finished before: only its pods still change."""
    job = context.job
    return job.status.model_copy(update={"observed_generation": job.generation, **_counts(context)})


def progress_of(context: Context) -> Progress | None:
    """The last report, and when an operator first saw it."""
    found, before = reported_progress(context.view, context.now), context.job.status.progress
    if found is None or before is None:
        return found or before
    same = found.step == before.step and before.observed_at is not None
    return found.model_copy(update={"observed_at": before.observed_at}) if same else found


def optimizer_steps_of(context: Context) -> OptimizerSteps | None:
    """The steps that agents have counted; None for a script that reports its progress."""
    counted, status = context.view.counted, context.job.status
    if context.view.progress is not None or (counted is None and status.progress is not None):
        return None
    return counted_steps(context.view) or status.optimizer_steps


def _set_accepted(conditions: _Conditions, assessment: Assessment) -> None:
    if assessment.acceptance.status is None and conditions.has(ConditionType.ACCEPTED):
        return  # a changed job keeps its condition until the API server has responded
    conditions.set(ConditionType.ACCEPTED, assessment.acceptance)


def _set_queued(conditions: _Conditions, assessment: Assessment) -> None:
    grant, rejection = assessment.grant, assessment.state.rejection
    if grant is None:
        conditions.set_known((ConditionType.QUEUED,), update(False, Reason.NOT_QUEUED))
        return
    new = grant.queued
    if rejection is not None and Kind.WORKLOAD in rejection.kinds and _lacks_workload(assessment, grant):
        new = update(new.status, Reason.WORKLOAD_REJECTED, detail=sentence(rejection.message))
    conditions.set(ConditionType.QUEUED, new)


def _lacks_workload(assessment: Assessment, grant: Grant) -> bool:
    """Otherwise, what was rejected is there by now, or is no longer wanted."""
    view = assessment.state.queue
    missing = view is not None and base_of(assessment.job, view) is None
    return missing or any(change.create is not None for change in grant.changes)


def _set_not_finished(conditions: _Conditions) -> None:
    for type_ in (ConditionType.SUCCEEDED, ConditionType.FAILED):
        conditions.set(type_, update(False, Reason.NOT_FINISHED))


def stall_of(assessment: Assessment, training: Training) -> ConditionUpdate | None:
    """The condition Stalled."""
    workers, progress = [pod for pod, _ in assessment.staying], progress_of(assessment)
    running, now = training.is_running, assessment.now
    return stalled(assessment.job, assessment.view, progress, workers, running=running, now=now)


def _set_size(conditions: _Conditions, assessment: Assessment, training: Training) -> None:
    """The conditions Resizing and Degraded."""
    job, view = assessment.job, assessment.view
    ready = training.at_work
    new = resizing(
        job,
        assessment.size,
        view,
        ready=ready,
        leaving=[pod for pod in assessment.leaving if not pod.ended],
        trained=job.status.round > 0 or training.is_running or conditions.has(ConditionType.RESIZING),
        missing=training.missing,
    )
    if new is None:
        return
    conditions.set(ConditionType.RESIZING, new)
    conditions.set(
        ConditionType.DEGRADED,
        degraded(
            job,
            view,
            ready=ready,
            running=training.is_running,
            resizing=bool(new.status),
            missing=training.missing,
        ),
    )


def _rendezvous_ready(assessment: Assessment, training: Training) -> ConditionUpdate | None:
    job, rendezvous = assessment.job, assessment.rendezvous
    if not rendezvous.allowed:
        return update(False, Reason.ENDPOINT_NOT_ALLOWED, endpoint=rendezvous.endpoint)
    if not rendezvous.access.allowed:
        return update(False, Reason.SECRET_NOT_ALLOWED, secret=job.spec.rendezvous.secret_name)
    if rendezvous.wait is not None:
        return ConditionUpdate(status=False, reason=rendezvous.wait.reason, message=rendezvous.wait.cause.message)
    left = assessment.left_behind
    if left is not None and left.serious and rendezvous.managed and not assessment.workers:
        return ConditionUpdate(status=False, reason=left.reason, message=left.cause.message)
    if not rendezvous.followed:
        if job.spec.rendezvous.backend is not RendezvousBackend.C10D:
            return None
        return store_ready(rendezvous, next((pod for pod, _ in assessment.workers if pod.index == 0), None))
    return rendezvous_ready(
        rendezvous,
        assessment.view,
        [pod for pod, _ in assessment.etcd],
        was_ready=job.status.round > 0 or job.status.is_true(ConditionType.RENDEZVOUS_READY),
        kept=next((status.kept for _, status in assessment.etcd if status.kept is not None), None),
        wait=assessment.etcd_wait,
        trains=training.is_running,
        now=assessment.now,
    )


def _status(assessment: Assessment, conditions: _Conditions) -> Status:
    """The fields that do not depend on whether the job runs."""
    job, budget = assessment.job, assessment.budget
    return job.status.model_copy(
        update={
            "observed_generation": job.generation,
            "selector": names.worker_selector(job.name),
            "desired_replicas": None if job.is_suspended else job.replicas,
            "scale_up_time": assessment.size.scale_up_at,
            "restarts": budget.restarts,
            "rendezvous": _rendezvous(assessment),
            "progress": progress_of(assessment),
            "optimizer_steps": optimizer_steps_of(assessment),
            "last_failure": budget.last_failure,
            "free_ends": budget.free_ends or None,
            "replica_workers": replica_workers(assessment.view.replicas.values()) or job.status.replica_workers,
            "conditions": conditions.all,
            "summary": summary_of(conditions.all),
            **_counts(assessment),
        }
    )


def _rendezvous(assessment: Assessment) -> RendezvousStatus | None:
    """Never an endpoint that is not allowed: what is in status counts as the run's own."""
    job, rendezvous = assessment.job, assessment.rendezvous
    if not rendezvous.allowed:
        return job.status.rendezvous
    if assessment.ends_attempt:
        next_id = names.run_id(job.uid, rendezvous.run, rendezvous.attempt + 1)
        rendezvous = dataclasses.replace(rendezvous, run_id=next_id)
    return rendezvous.to_status(str(job.spec.rendezvous.backend), assessment.template)


def _counts(context: Context) -> dict[str, object]:
    # By the phase of the pod: a sidecar that still runs holds the node's resources, so a queue must not release them.
    existing = [
        pod
        for pod, status in context.workers
        if status.state is PodState.LIVE or not (pod.over or status.state is PodState.LOST)
    ]
    # A pod that is being deleted and its replacement are one replica.
    replicas = len({pod.index for pod in existing})
    # Pods of an earlier run count until they are gone.
    stale = sum(not pod.over and status.state is not PodState.LOST for pod, status in context.stale)
    ready = sum(pod.ready and not pod.terminating for pod in existing)
    return {"replicas": replicas + stale, "ready_replicas": ready, "workers": f"{ready}/{context.job.replicas}"}


def _round(context: Context) -> int:
    """Never decreases, even if etcd is lost."""
    known = context.view.plan.round if context.view.plan else 0
    return max(context.job.status.round, known if context.job.has_plans else 1)


def _world_size(context: Context) -> int:
    return context.view.plan.world_size if context.view.plan else context.job.status.world_size
