"""When a job has ended, and how.

The agents' word (`outcome` in etcd) is final. Without it - etcd is away, or the launcher is plain torchrun, which
writes none - a worker pod that ended well ends the job: all ranks of a group end together, so stragglers after a short
grace are late or idle pods. The job fails when the agents say so or when the restart budget is spent.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from elasticjob_runtime.contract import OutcomeState, OutcomeValue

from elasticjob_operator.api import ElasticJob, Failure, Reason, message
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import Connectivity, Pod, RendezvousView

GRACE_SECONDS = 10.0
"""How long other pods may still run after the first one ended well, where the agents do not say what became of the job,
s."""

_MAX_RESTARTS = "MaxRestartsExceeded"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    succeeded: bool
    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    end: End | None = None
    """None: the job goes on."""
    requeue_at: datetime.datetime | None = None
    """When the job ends if nothing changes."""


def judge(
    job: ElasticJob, view: RendezvousView, workers: Sequence[Pod], budget: Budget, now: datetime.datetime
) -> Completion:
    """`workers`: the pods of the current run, but for those that must leave."""
    if view.outcome is not None:
        return Completion(end=_said(job, view.outcome, budget))
    ended_well = [pod for pod in workers if pod.succeeded and not pod.terminating]
    if ended_well:
        due = min(_ended_at(pod) for pod in ended_well) + datetime.timedelta(seconds=GRACE_SECONDS)
        # What the agents of a short job wrote is in an etcd that may not have been read yet: its end can wait for that,
        # too.
        unread = job.has_plans and view.connectivity is not Connectivity.REACHABLE
        if now >= due or (all(pod.ended for pod in workers) and not unread):
            return Completion(end=_succeeded())
        return Completion(requeue_at=due)
    if budget.fatal is not None:
        return Completion(end=_by_rule(budget.fatal))
    return Completion(end=_over_budget(job, budget) if budget.spent else None)


def judge_suspended(job: ElasticJob, view: RendezvousView, budget: Budget) -> Completion:
    """Of a job that is to rest: if it has succeeded all the same, it has. What fails now may fail of the suspension."""
    succeeded = view.outcome is not None and view.outcome.state is OutcomeState.SUCCEEDED
    return Completion(end=_said(job, view.outcome, budget) if view.outcome and succeeded else None)


def _said(job: ElasticJob, outcome: OutcomeValue, budget: Budget) -> End:
    if outcome.state is OutcomeState.SUCCEEDED:
        return _succeeded()
    if outcome.reason == _MAX_RESTARTS:
        return _over_budget(job, budget, outcome.message)
    text = message(Reason.WORKERS_FAILED, detail=f"{outcome.reason}: {outcome.message}")
    return End(succeeded=False, reason=Reason.WORKERS_FAILED, message=text)


def _succeeded() -> End:
    return End(succeeded=True, reason=Reason.WORKERS_SUCCEEDED, message=message(Reason.WORKERS_SUCCEEDED))


def _over_budget(job: ElasticJob, budget: Budget, detail: str = "") -> End:
    last = budget.last_failure
    detail = detail or (f"{last.worker}: {_line(last)}" if last else "unknown")
    policy = job.spec.restart_policy
    window = f" within {policy.window_seconds} s (windowSeconds)" if policy.window_seconds else ""
    limit = policy.max_restarts
    # The failure that ended the job was not followed by a restart.
    text = message(Reason.MAX_RESTARTS_EXCEEDED, restarts=limit + 1, window=window, max_restarts=limit, detail=detail)
    return End(succeeded=False, reason=Reason.MAX_RESTARTS_EXCEEDED, message=text)


def _by_rule(failure: Failure) -> End:
    detail = f"{failure.reason}, exit code {failure.exit_code}: {_line(failure)}"
    text = message(Reason.FAILED_BY_RULE, worker=failure.worker, detail=detail)
    return End(succeeded=False, reason=Reason.FAILED_BY_RULE, message=text)


def _line(failure: Failure) -> str:
    return failure.message.splitlines()[0] if failure.message else failure.reason


def _ended_at(pod: Pod) -> datetime.datetime:
    return (pod.end.finished_at if pod.end else None) or pod.created_at
