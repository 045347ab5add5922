"""When a job has ended, and how.

The outcome that the agents write to etcd is final. Without it (etcd is unreachable, or the launcher is plain torchrun,
which writes none) the first worker pod that succeeds ends the job: all ranks of a group end together, so a pod that is
still running after a short grace period is late or idle. The job fails when the agents report a failure or when the
restart budget is exceeded.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from elasticjob_api import ElasticJob, Failure, Reason
from elasticjob_runtime.contract import MAX_RESTARTS_EXCEEDED, SCRIPT_FAILS, OutcomeState, OutcomeValue

from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import Connectivity, Pod, PodPhase, RendezvousView

GRACE_SECONDS = 10.0
"""How long other pods may keep running after the first one succeeded if the agents report no outcome, in seconds."""


def not_ended(requeue_at: datetime.datetime | None = None) -> ConditionUpdate:
    """`requeue_at`: when the job ends if nothing changes."""
    reason = Reason.NOT_FINISHED
    return ConditionUpdate(status=None, reason=reason, message=update(None, reason).message, requeue_at=requeue_at)


def outcome(
    job: ElasticJob, view: RendezvousView, workers: Sequence[Pod], budget: Budget, now: datetime.datetime
) -> ConditionUpdate:
    """The condition Succeeded. True: the job has succeeded; False: it has failed; None: it has not ended.

    `workers`: the pods of the current run, except those that are being removed.
    """
    if view.outcome is not None:
        return _reported(job, view.outcome, budget)
    ended = [pod for pod in workers if pod.end is not None or pod.phase is PodPhase.SUCCEEDED]
    succeeded = [pod for pod in ended if pod.succeeded and not pod.terminating]
    if succeeded:
        due = min(_ended_at(pod) for pod in succeeded) + datetime.timedelta(seconds=GRACE_SECONDS)
        # The agents of a short job may have written an outcome to an etcd that has not been read yet: wait for it.
        unread = job.has_plans and view.connectivity is not Connectivity.REACHABLE
        if now >= due or (all(pod.ended for pod in workers) and not unread):
            return _succeeded()
        return not_ended(due)
    if budget.unstartable is not None:
        detail = f"{budget.unstartable.worker}: {_first_line(budget.unstartable)}"
        return update(False, Reason.SCRIPT_FAILS, detail=detail)
    if budget.fatal is not None:
        return _by_rule(budget.fatal)
    return _over_budget(job, budget) if budget.spent else not_ended()


def outcome_of_suspended(job: ElasticJob, view: RendezvousView, budget: Budget) -> ConditionUpdate:
    """A job that succeeded before it was suspended has succeeded. A failure may be a result of the suspension, so it
    does not count."""
    if view.outcome is None or view.outcome.state is not OutcomeState.SUCCEEDED:
        return not_ended()
    return _reported(job, view.outcome, budget)


def _reported(job: ElasticJob, reported: OutcomeValue, budget: Budget) -> ConditionUpdate:
    if reported.state is OutcomeState.SUCCEEDED:
        return _succeeded()
    if reported.reason == MAX_RESTARTS_EXCEEDED:
        return _over_budget(job, budget, reported.message)
    if reported.reason == SCRIPT_FAILS:
        return update(False, Reason.SCRIPT_FAILS, detail=reported.message)
    return update(False, Reason.WORKERS_FAILED, detail=f"{reported.reason}: {reported.message}")


def _succeeded() -> ConditionUpdate:
    return update(True, Reason.WORKERS_SUCCEEDED)


def _over_budget(job: ElasticJob, budget: Budget, detail: str = "") -> ConditionUpdate:
    last = budget.last_failure
    detail = detail or (f"{last.worker}: {_first_line(last)}" if last else "unknown")
    policy = job.spec.failure_policy
    window = f" within {policy.window_seconds} s (windowSeconds)" if policy.window_seconds else ""
    limit = policy.max_restarts
    # The failure that ended the job was not followed by a restart.
    return update(
        False, Reason.MAX_RESTARTS_EXCEEDED, restarts=limit + 1, window=window, max_restarts=limit, detail=detail
    )


def _by_rule(failure: Failure) -> ConditionUpdate:
    if failure.reason == Reason.RUNTIME_UNUSABLE:
        return update(False, Reason.RUNTIME_UNUSABLE, worker=failure.worker, detail=_first_line(failure))
    return update(False, Reason.FAILED_BY_RULE, worker=failure.worker, detail=failure.cause)


def _first_line(failure: Failure) -> str:
    return failure.message.splitlines()[0] if failure.message else failure.reason


def _ended_at(pod: Pod) -> datetime.datetime:
    return (pod.end.finished_at if pod.end else None) or pod.created_at
