"""The status of a job, composed from what the policies say."""

from __future__ import annotations

import datetime

from elasticjob_operator import names
from elasticjob_operator.api import (
    Condition,
    ConditionType,
    ElasticJob,
    Progress,
    Reason,
    RendezvousBackend,
    Status,
    message,
    set_condition,
    summary_of,
)
from elasticjob_operator.planning.classify import Classified
from elasticjob_operator.policies.admission import Verdict
from elasticjob_operator.policies.completion import End
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.rendezvous import readiness, readiness_of_store
from elasticjob_operator.policies.resizing import degraded, resizing
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.policies.running import Activity
from elasticjob_operator.policies.stalling import Stall, judge_stall
from elasticjob_operator.state import JobState, Pod, RendezvousView

_OF_RUNNING = (
    ConditionType.RENDEZVOUS_READY,
    ConditionType.RUNNING,
    ConditionType.STALLED,
    ConditionType.RESTARTING,
    ConditionType.RESIZING,
    ConditionType.DEGRADED,
)
"""What is false of a job that does not run."""


class _Conditions:
    """The job's conditions, set one by one."""

    def __init__(self, job: ElasticJob, now: datetime.datetime) -> None:
        self.all: tuple[Condition, ...] = job.status.conditions
        self._generation = job.generation
        self._now = now

    def set(self, type_: ConditionType, status: bool | None, reason: Reason, text: str) -> None:
        self.all = set_condition(
            self.all, type=type_, status=status, reason=reason, message=text, generation=self._generation, now=self._now
        )

    def has(self, type_: ConditionType) -> bool:
        return any(each.type == type_.value for each in self.all)


def status_of(
    job: ElasticJob,
    world: JobState,
    observed: Classified,
    verdict: Verdict,
    budget: Budget,
    activity: Activity,
    now: datetime.datetime,
) -> Status:
    """Of a job that goes on."""
    conditions = _Conditions(job, now)
    _accepted(conditions, verdict)
    _rendezvous_ready(conditions, job, world, observed, now)
    if conditions.has(ConditionType.SUSPENDED):
        conditions.set(
            ConditionType.SUSPENDED, False, Reason.JOB_RESUMED, message(Reason.JOB_RESUMED, run=observed.rendezvous.run)
        )
    if verdict.accepted or observed.workers:
        _active(conditions, activity)
        _stalled(
            conditions,
            judge_stall(
                job, world.rendezvous, progress_of(job, world.rendezvous, now), running=activity.running, now=now
            ),
        )
        _sized(conditions, job, world, observed, activity)
        for type_ in (ConditionType.SUCCEEDED, ConditionType.FAILED):
            conditions.set(type_, False, Reason.NOT_FINISHED, message(Reason.NOT_FINISHED))
    elif verdict.accepted is False:
        for type_ in _OF_RUNNING:
            if conditions.has(type_):
                conditions.set(type_, False, verdict.reason, verdict.message)
    return _common(job, world, observed, budget, conditions, now).model_copy(
        update={
            "world_size": _world_size(job, world.rendezvous, activity),
            # Of the group that trains or trained last: after a restart, the round tells that training goes on.
            "round": _round(job, world.rendezvous) if activity.running else job.status.round,
            "start_time": job.status.start_time or (now.replace(microsecond=0) if verdict.accepted else None),
        }
    )


def suspended_status(
    job: ElasticJob, world: JobState, observed: Classified, verdict: Verdict, budget: Budget, now: datetime.datetime
) -> Status:
    """Of a job that rests, or is about to."""
    conditions = _Conditions(job, now)
    _accepted(conditions, verdict)
    left = len(observed.workers) + len(observed.stale)
    reason = Reason.SUSPENDING if left else Reason.SUSPENDED
    text = message(reason, count=left) if left else message(reason)
    for type_ in _OF_RUNNING:
        if conditions.has(type_):
            conditions.set(type_, False, reason, text)
    conditions.set(ConditionType.SUSPENDED, not left, reason, text)
    for type_ in (ConditionType.SUCCEEDED, ConditionType.FAILED):
        conditions.set(type_, False, Reason.NOT_FINISHED, message(Reason.NOT_FINISHED))
    return _common(job, world, observed, budget, conditions, now).model_copy(
        update={"world_size": 0, "round": _round(job, world.rendezvous) if left else job.status.round}
    )


def ended_status(
    job: ElasticJob,
    world: JobState,
    observed: Classified,
    verdict: Verdict,
    budget: Budget,
    end: End,
    now: datetime.datetime,
) -> Status:
    """Of a job at the moment of its end."""
    conditions = _Conditions(job, now)
    _accepted(conditions, verdict)
    over = message(Reason.FINISHED)
    for type_ in (*_OF_RUNNING, ConditionType.SUSPENDED):
        if conditions.has(type_):
            conditions.set(type_, False, Reason.FINISHED, over)
    won, lost = (
        (ConditionType.SUCCEEDED, ConditionType.FAILED)
        if end.succeeded
        else (ConditionType.FAILED, ConditionType.SUCCEEDED)
    )
    conditions.set(won, True, end.reason, end.message)
    conditions.set(lost, False, end.reason, end.message)
    moment = now.replace(microsecond=0)
    return _common(job, world, observed, budget, conditions, now).model_copy(
        update={
            "world_size": 0,
            "round": _round(job, world.rendezvous),
            "start_time": job.status.start_time or moment,
            "completion_time": moment,
        }
    )


def finished_status(job: ElasticJob, observed: Classified) -> Status:
    """Of a job that ended before: only its pods still change."""
    return job.status.model_copy(update={"observed_generation": job.generation, **_counts(job, observed)})


def _accepted(conditions: _Conditions, verdict: Verdict) -> None:
    if verdict.accepted is None and conditions.has(ConditionType.ACCEPTED):
        return  # being asked again, after a change: what was said holds until the answer
    conditions.set(ConditionType.ACCEPTED, verdict.accepted, verdict.reason, verdict.message)


def _rendezvous_ready(
    conditions: _Conditions, job: ElasticJob, world: JobState, observed: Classified, now: datetime.datetime
) -> None:
    if not observed.rendezvous.allowed:
        reason = Reason.ENDPOINT_NOT_ALLOWED
        conditions.set(
            ConditionType.RENDEZVOUS_READY, False, reason, message(reason, endpoint=observed.rendezvous.endpoint)
        )
        return
    if not observed.rendezvous.followed:
        if job.spec.rendezvous.backend is RendezvousBackend.C10D:
            first = next((pod for pod, _ in observed.workers if pod.index == 0), None)
            store = readiness_of_store(observed.rendezvous, first)
            conditions.set(ConditionType.RENDEZVOUS_READY, store.status, store.reason, store.message)
        return
    was_ready = job.status.round > 0 or job.status.is_true(ConditionType.RENDEZVOUS_READY)
    held = next((stand.held for _, stand in observed.etcd if stand.held is not None), None)
    etcd = [pod for pod, _ in observed.etcd]
    ready = readiness(observed.rendezvous, world.rendezvous, etcd, was_ready=was_ready, held=held, now=now)
    if ready is not None:
        conditions.set(ConditionType.RENDEZVOUS_READY, ready.status, ready.reason, ready.message)


def _stalled(conditions: _Conditions, stall: Stall | None) -> None:
    """Said of a job only once it was so."""
    if stall is not None and (stall.stalled or conditions.has(ConditionType.STALLED)):
        conditions.set(ConditionType.STALLED, stall.stalled, stall.reason, stall.message)


def _active(conditions: _Conditions, activity: Activity) -> None:
    conditions.set(ConditionType.RUNNING, activity.running, activity.running_reason, activity.running_message)
    if activity.restarting is not None:
        conditions.set(
            ConditionType.RESTARTING, activity.restarting, activity.restarting_reason, activity.restarting_message
        )


def _sized(conditions: _Conditions, job: ElasticJob, world: JobState, observed: Classified, activity: Activity) -> None:
    ready = sum(pod.ready for pod, stand in observed.staying if stand.state is PodState.LIVE)
    leaving = sum(not pod.ended for pod in observed.scaling.surplus)
    trained = job.status.round > 0 or activity.running
    resized = resizing(
        job, observed.growth, world.rendezvous, ready=ready, leaving=leaving, trained=trained, missing=activity.missing
    )
    if resized is None:
        return
    conditions.set(ConditionType.RESIZING, resized.status, resized.reason, resized.message)
    missing = degraded(
        job, world.rendezvous, ready=ready, runs=activity.running, resizing=resized.status, missing=activity.missing
    )
    conditions.set(ConditionType.DEGRADED, missing.status, missing.reason, missing.message)


def _common(
    job: ElasticJob,
    world: JobState,
    observed: Classified,
    budget: Budget,
    conditions: _Conditions,
    now: datetime.datetime,
) -> Status:
    view, before = world.rendezvous, job.status
    return before.model_copy(
        update={
            "observed_generation": job.generation,
            "selector": names.worker_selector(job.name),
            "desired_replicas": None if job.is_suspended else job.replicas,
            "scale_up_time": observed.growth.scale_up_at,
            "restarts": budget.restarts,
            "rendezvous": observed.rendezvous.to_status(str(job.spec.rendezvous.backend)),
            "progress": progress_of(job, view, now),
            "last_failure": budget.last_failure,
            "conditions": conditions.all,
            "summary": summary_of(conditions.all),
            **_counts(job, observed),
        }
    )


def _counts(job: ElasticJob, observed: Classified) -> dict[str, object]:
    # By the pod's phase: a sidecar that runs on holds the node's resources, and a queue must not give them away.
    there = [pod for pod, stand in observed.workers if not pod.over and stand.state is not PodState.LOST]
    # Pods of an earlier run take their place until they are gone.
    stale = sum(not pod.over and stand.state is not PodState.LOST for pod, stand in observed.stale)
    ready = sum(_is_ready(pod) for pod in there)
    return {"replicas": len(there) + stale, "ready_replicas": ready, "workers": f"{ready}/{job.replicas}"}


def _is_ready(pod: Pod) -> bool:
    return pod.ready and not pod.terminating


def _round(job: ElasticJob, view: RendezvousView) -> int:
    """Never less than it was, whatever became of etcd."""
    known = view.plan.round if view.plan else 0
    return max(job.status.round, known if job.has_plans else 1)


def _world_size(job: ElasticJob, view: RendezvousView, activity: Activity) -> int:
    if not activity.running:
        return 0
    return view.plan.world_size if view.plan else job.status.world_size


def progress_of(job: ElasticJob, view: RendezvousView, now: datetime.datetime) -> Progress | None:
    """What was reported last, and since when this operator knows it."""
    said, before = view.progress, job.status.progress
    if said is None:
        return before
    found = Progress(
        step=max(0, said.step),
        steps_per_second=said.steps_per_second,
        last_checkpoint_step=said.last_checkpoint_step,
        metrics=said.metrics,  # type: ignore[arg-type]  # numbers become strings there
        updated_at=datetime.datetime.fromtimestamp(said.updated_at, datetime.timezone.utc) if said.updated_at else None,
    )
    known = before.observed_at if before is not None and before.step == found.step else None
    return found.model_copy(update={"observed_at": known or now.replace(microsecond=0)})
