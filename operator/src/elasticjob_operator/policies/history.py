"""What `status.history` records: the difference between two statuses, and what agents reported about a round.

An entry is written together with the status that it is about, in one request. So an operator that is killed neither
loses an entry nor writes one twice, and a change costs no request of its own.

round       the group trains in a newer round; or it trains again after Restarting, where rounds are unknown or started
            again with an empty etcd. Rounds that passed unseen, as while no operator was running, are one entry
scaled      another number of worker pods is requested
suspended   no pod is left of a suspended job
resumed     it may run again
end         it has succeeded or failed

Samples of the progress are in `samples`.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import (
    Change,
    ChangeType,
    ConditionStatus,
    ConditionType,
    ElasticJob,
    Failure,
    History,
    Phases,
    Reason,
    Status,
    StoredHistory,
)
from elasticjob_api.history import MAX_CHANGES, MAX_FAILURE_KIND
from elasticjob_runtime.contract import PlanReason, PlanValue, TransitionValue

from elasticjob_operator import names
from elasticjob_operator.policies.goodput import goodput_status, is_outdated
from elasticjob_operator.policies.samples import new_sample, sample_of_stall, with_sample
from elasticjob_operator.state import RendezvousView

_ENDS = (ConditionType.SUCCEEDED, ConditionType.FAILED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Observed:
    """One reconciliation."""

    job: ElasticJob
    before: Status
    after: Status
    view: RendezvousView
    now: datetime.datetime

    @property
    def run(self) -> int:
        return names.run_of(self.after.rendezvous.id if self.after.rendezvous else "", self.job.uid)

    @property
    def plan(self) -> PlanValue | None:
        return self.view.plan if self.job.has_plans else None

    @property
    def history(self) -> History:
        """Parsed on each access."""
        return self.before.history.read() if self.before.history is not None else History()

    @property
    def is_training(self) -> bool:
        return self.after.is_true(ConditionType.RUNNING)

    @property
    def step(self) -> int | None:
        """Last reported before this change."""
        return self.before.progress.step if self.before.progress is not None else None


def with_history(
    job: ElasticJob, before: Status, after: Status, view: RendezvousView, now: datetime.datetime
) -> Status:
    """`after`, the status to write, with its history. `before`: the status that it was decided from; `view`: of the
    current run."""
    observed = _Observed(job=job, before=before, after=after, view=view, now=now)
    changed = stored = _with_changes(before.history, observed)
    if view.transition is not None and stored is not None and stored.open_round == view.transition.round:
        stored = StoredHistory(_completed(stored.read(), view.transition, observed.run).to_api())
    stall = sample_of_stall(before, after, view, now)
    if (sample := stall or new_sample(before, after, view, now)) is not None:
        stored = with_sample(stored, sample)
    stalled = after.is_true(ConditionType.STALLED)
    if stored is None or (stored is after.history and not stalled):
        return after
    after = after.model_copy(update={"history": stored})
    begins_or_ends = stalled != before.is_true(ConditionType.STALLED)
    if changed is before.history and not begins_or_ends and not is_outdated(before.goodput, now):
        return after
    return after.model_copy(update={"goodput": goodput_status(job, after, stored, now)})


def _with_changes(stored: StoredHistory | None, observed: _Observed) -> StoredHistory | None:
    """Reads the history only if there is a change: parsing it takes a millisecond."""
    kinds = (_suspension, _scaled, _round, _end)
    found = [change for kind in kinds if (change := kind(observed)) is not None]
    if not found:
        return stored
    history = observed.history
    for change in found:
        history = _added(history, change)
    return StoredHistory(history.to_api())


def _change(observed: _Observed, type_: ChangeType, reason: str, message: str, **fields: object) -> Change:
    return Change.model_validate(
        {
            "time": observed.now,
            "type": type_.value,
            "reason": reason,
            "message": message,
            "run": observed.run,
            "restarts": observed.after.restarts.total,
            "step": observed.step,
            **fields,
        }
    )


def _suspension(observed: _Observed) -> Change | None:
    condition = observed.after.condition(ConditionType.SUSPENDED)
    true = observed.after.is_true(ConditionType.SUSPENDED)
    if condition is None or true == observed.before.is_true(ConditionType.SUSPENDED):
        return None
    type_, fields = (
        (ChangeType.SUSPENDED, _sizes_before(_group(observed.history, observed.run)))
        if true
        else (ChangeType.RESUMED, {})
    )
    return _change(observed, type_, condition.reason, condition.message, **fields)


def _scaled(observed: _Observed) -> Change | None:
    before, after = observed.before.desired_replicas, observed.after.desired_replicas
    if before is None or after is None or before == after:
        return None
    reason = Reason.SCALING_UP if after > before else Reason.SCALING_DOWN
    message = f"Requested worker pods: {before} -> {after}."
    group = {"worldSizeBefore": observed.before.world_size, "worldSize": observed.after.world_size}
    return _change(
        observed, ChangeType.SCALED, reason.value, message, workersBefore=before, workers=after, round=None, **group
    )


def _round(observed: _Observed) -> Change | None:
    before, after, plan = observed.before, observed.after, observed.plan
    ended = after.is_finished and not before.is_finished
    restarting = before.is_true(ConditionType.RESTARTING) and not after.is_true(ConditionType.RESTARTING)
    resumed = observed.is_training and restarting
    higher = after.round > _round_before(observed) and (observed.is_training or ended)
    if not (higher or resumed):
        return None
    history = observed.history
    group = _group(history, observed.run)
    fields: dict[str, object] = {
        **_sizes_before(group),
        "worldSize": plan.world_size if plan else after.world_size,
        "workers": plan.size if plan else after.ready_replicas,
        "round": plan.round if plan else after.round,
    }
    if plan is None:
        condition = before.condition(ConditionType.RESTARTING)
        reason = PlanReason.START.value if group is None or condition is None else condition.reason
        message = condition.message if condition is not None and group is not None else ""
        return _change(observed, ChangeType.ROUND, reason, message, **fields)
    began = min(observed.now, _time(plan.created_at) or observed.now)
    fields["time"] = max(began, history.changes[-1].time) if history.changes else began
    if plan.caused_at and plan.created_at:
        fields["formSeconds"] = plan.created_at - plan.caused_at
        fields["waitSeconds"] = _waited(before, plan)
    failure = _failure(plan, _of_run(observed, after.last_failure), group)
    fields["failure"] = _kind(failure)
    return _change(observed, ChangeType.ROUND, plan.reason.value, _cause(plan, failure), **fields)


def _waited(before: Status, plan: PlanValue) -> float | None:
    """How long the job had too few worker pods until this plan, as its condition Running says; None: never."""
    running = before.condition(ConditionType.RUNNING)
    if (
        running is None
        or running.status is not ConditionStatus.FALSE
        or running.reason == Reason.WAITING_FOR_RENDEZVOUS.value
    ):
        return None
    waited = plan.created_at - max(running.last_transition_time.timestamp(), plan.caused_at)
    return waited if waited > 0 else None


def _round_before(observed: _Observed) -> int:
    """0 if the status describes an earlier run."""
    known = observed.before.rendezvous
    same = known is None or names.run_of(known.id, observed.job.uid) == observed.run
    return observed.before.round if same else 0


def _of_run(observed: _Observed, failure: Failure | None) -> Failure | None:
    """None if it is of an earlier run, which counted its own rounds."""
    began = next((change.time for change in observed.history.changes if change.run == observed.run), None)
    if failure is None or failure.time is None or began is None or observed.run == names.FIRST_RUN:
        return failure
    return failure if failure.time >= began.replace(microsecond=0) else None


def _failure(plan: PlanValue, failure: Failure | None, group: Change | None) -> Failure | None:
    """The last failure, if it is what the plan is about."""
    last_round = group.round if group is not None and group.round is not None else 0
    about = plan.reason in (PlanReason.WORKER_FAILED, PlanReason.MEMBER_LOST, PlanReason.MEMBER_LEFT)
    if failure is None or not about or failure.round is None or not last_round <= failure.round < plan.round:
        return None
    return failure


def _kind(failure: Failure | None) -> str | None:
    return failure.reason[:MAX_FAILURE_KIND] if failure is not None else None


def _cause(plan: PlanValue, failure: Failure | None) -> str:
    """The failure tells more than the plan."""
    if failure is None:
        return plan.message
    who = failure.worker if failure.rank is None else f"{failure.worker}, rank {failure.rank}"
    return f"{who}: {failure.cause}"


def _end(observed: _Observed) -> Change | None:
    condition = next((observed.after.condition(end) for end in _ENDS if observed.after.is_true(end)), None)
    if condition is None or observed.before.is_finished:
        return None
    progress, failure, group = (
        observed.after.progress,
        _of_run(observed, observed.after.last_failure),
        _group(observed.history, observed.run),
    )
    if failure is not None and (group is None or failure.round != group.round):
        failure = None
    fields = {
        **_sizes_before(group),
        "step": progress.step if progress is not None else None,
        "failure": _kind(failure) if condition.type == ConditionType.FAILED else None,
    }
    return _change(observed, ChangeType(condition.type), condition.reason, condition.message, **fields)


def _group(history: History, run: int) -> Change | None:
    """The round in which the run's worker group trained last."""
    rounds = (change for change in reversed(history.changes) if change.type == ChangeType.ROUND and change.run == run)
    return next(rounds, None)


def _sizes_before(group: Change | None) -> dict[str, object]:
    return {"worldSizeBefore": group.world_size if group else 0, "workersBefore": group.workers if group else 0}


def _time(seconds: float) -> datetime.datetime | None:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc) if seconds else None


def _added(history: History, change: Change) -> History:
    changes = (*history.changes, change)
    gone, changes = changes[:-MAX_CHANGES], changes[-MAX_CHANGES:]
    dropped = dict(history.dropped)
    for entry in gone:
        dropped[entry.reason] = dropped.get(entry.reason, 0) + 1
    return History(changes=changes, dropped=dropped, samples=history.samples)


def _completed(history: History, transition: TransitionValue, run: int) -> History:
    """With what rank 0's agent reported about the newest round."""
    group = _group(history, run)
    if group is None or group.round != transition.round or group.resume_seconds is not None:
        return history
    if transition.seconds is None:
        return history
    known = {name.replace("-", "_"): seconds for name, seconds in transition.phases.items()}
    completed = group.model_copy(
        update={
            "resume_seconds": round(max(0.0, transition.seconds), 4),
            "phases": Phases.model_validate({name: known.get(name) for name in Phases.model_fields}),
            "steps_lost": _steps_lost(group, transition),
        }
    )
    changes = tuple(completed if change is group else change for change in history.changes)
    return history.model_copy(update={"changes": changes})


def _steps_lost(group: Change, transition: TransitionValue) -> int | None:
    """As the agent says. If its own worker processes report no steps, or it has just joined: at least those that were
    reported before the change."""
    if transition.steps_lost is not None:
        return max(0, transition.steps_lost)
    if transition.step is None or group.step is None:
        return None
    return max(0, group.step - transition.step + 1)
