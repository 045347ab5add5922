"""The restart budget: how often the worker group was restarted because of failures, and whether that is too often.

Two kinds of failures add up in `status.restarts.total`:

- Worker processes that failed while their agents kept running. The agents count them: `restart_count` of the plan, one
  for each restart of the whole group. `status.restarts.reported` is how many of them are in the total.
- Pods that failed as a whole. A failed pod ends its whole group, so pods that fail together count once: those that
  existed at the last counted failure and ended before the agents had made another plan (within `GROUP_SECONDS` of it,
  where there are no plans). A restart by the agents that follows from the end of a pod is not another failure, and
  what its peers report is only that they lost it: the agents count no restart for a lost member.

Agents and kubelets have their own clocks, which may be wrong by hours. So times are never later than now, and rounds
take precedence over times.

A failed pod is deleted only after status, with its failure counted, is written. So an operator that is killed neither
forgets a failure nor counts it twice: status and the pod's own times show whether a pod was counted.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api import ElasticJob, Failure, FailurePolicy, FreeEnds, Reason, Restarts, RuleAction
from elasticjob_runtime.contract import PEER_LOST, FailureValue, PlanReason

from elasticjob_operator import names
from elasticjob_operator.policies.failures import Cost, PodFailure, action_for
from elasticjob_operator.policies.first_step import cannot_start
from elasticjob_operator.policies.free_ends import free_ends
from elasticjob_operator.state import Pod, RendezvousView

GROUP_SECONDS = 5.0
"""If the round is unknown: the rest of a worker group fails within this time of its first failure, in seconds."""
ROUND_SECONDS = 1800.0
"""The rest of a round fails within this time of its first failure, in seconds: torch's longest timeout."""
MAX_TIMES = 101
"""Number of restart times that are kept: one more than maxRestarts can be."""
IGNORED_AT_ONCE = 100
"""Restarts that agents may make while the operator is down, if rules ignore some of them."""
UNKNOWN = "WorkerFailed"
"""Cause of a restart for which the agents reported no failure."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The newest known round."""

    number: int
    began: datetime.datetime | None = None
    """None: unknown, or by a clock that is ahead of ours."""
    restarted: bool = False
    """The agents count a restart with it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    restarts: Restarts = dataclasses.field(default_factory=Restarts)
    limit: int = 0
    """spec.failurePolicy.maxRestarts."""
    last_failure: Failure | None = None
    new_failure: Failure | None = None
    """The newest failure of a whole pod that is counted for the first time now."""
    fatal: Failure | None = None
    """A failure that ends the job because of a rule."""
    unstartable: Failure | None = None
    """The script cannot be started at all."""
    requeue_at: datetime.datetime | None = None
    """When a restart leaves the window."""
    latest: Round | None = None
    """None: the job's agents publish no plans."""
    free_ends: tuple[FreeEnds, ...] = ()
    some_are_ignored: bool = False
    """A rule ignores failures. The agents cannot distinguish these from others."""

    @property
    def total(self) -> int:
        return self.restarts.total

    @property
    def used(self) -> int:
        """Restarts that count towards the limit."""
        return self.restarts.total if self.restarts.window is None else self.restarts.window

    @property
    def spent(self) -> bool:
        return self.used > self.limit

    @property
    def agents_limit(self) -> int:
        """The limit of the agents' own restart count in this run. If a rule ignores failures, the operator ends the
        job, one restart later than the agents would."""
        left = max(0, self.limit - self.used)
        return (self.restarts.reported or 0) + left + (IGNORED_AT_ONCE if self.some_are_ignored else 0)


class _Tally:
    """status.restarts, to add to."""

    def __init__(self, before: Restarts) -> None:
        self.total = before.total
        self.times = list(before.times or ())
        self.by_cause = dict(before.by_cause)

    def add(self, cause: str, time: datetime.datetime, count: int = 1) -> None:
        self.total += count
        self.times += [time] * min(count, MAX_TIMES)
        self.by_cause[cause] = self.by_cause.get(cause, 0) + count


def count_restarts(
    job: ElasticJob,
    view: RendezvousView,
    failed: Sequence[tuple[Pod, PodFailure]],
    now: datetime.datetime,
    earlier: Sequence[tuple[Pod, PodFailure]] = (),
) -> Budget:
    """The budget with everything observed now; the total never decreases.

    `earlier`: failures of earlier attempts of this run. They were counted with their attempt, but a rule may end the
    job because of one.
    """
    policy, before = job.spec.failure_policy, job.status.restarts
    tally = _Tally(before)
    said, latest = _reported(view), latest_round(job, view, now)
    known, reported = _clamped(job.status.last_failure, now), _clamped(said, now)
    last = _newer(known, reported, in_future=reported is not said)
    action = action_for(policy.rules, reported.exit_code, reported.reason) if reported else None
    fatal = reported if action is RuleAction.FAIL and last is reported and last != known else None
    count, fresh = _fresh(before, view)
    if fresh and known is not None and known.rank is None and last is known and reported is not None:
        fresh -= 1  # it followed from the end of that pod
    if fresh and action is not RuleAction.IGNORE:
        cause, time = (reported.reason or UNKNOWN, reported.time or now) if reported else (UNKNOWN, now)
        tally.add(cause, time, fresh)
    new: Failure | None = None
    unstartable: Failure | None = None
    in_order = sorted(failed, key=lambda item: (item[1].time, item[0].index))
    for pod, failure in (*in_order, *earlier):
        # The image runs elsewhere, so this is about one node: a job that has trained must not end because of it.
        trained = failure.reason == Reason.RUNTIME_UNUSABLE and job.status.round > 0
        if failure.ends_job and not trained:
            fatal = fatal or _of_pod(pod, failure, latest)
    for pod, failure in in_order:
        if failure.cost is Cost.COUNTS and not is_counted(pod, failure, last, latest):
            if unstartable is None and cannot_start(job, failure, last):
                unstartable = _of_pod(pod, failure, latest)
            tally.add(failure.reason, min(failure.time, now))
            last = new = _clamped(_of_pod(pod, failure, latest), now)
    restarts, again = _within_window(policy, tally, count, now)
    return Budget(
        restarts=restarts,
        limit=policy.max_restarts,
        last_failure=last,
        new_failure=new,
        fatal=fatal,
        unstartable=unstartable,
        requeue_at=again,
        latest=latest,
        free_ends=free_ends(job, failed, now),
        some_are_ignored=any(rule.action is RuleAction.IGNORE for rule in policy.rules),
    )


def latest_round(job: ElasticJob, view: RendezvousView, now: datetime.datetime) -> Round | None:
    if not job.has_plans:
        return None
    if view.plan is None:
        return Round(number=job.status.round)
    known = 0 < view.plan.created_at <= now.timestamp()
    began = datetime.datetime.fromtimestamp(view.plan.created_at, datetime.timezone.utc) if known else None
    return Round(number=view.plan.round, began=began, restarted=view.plan.reason is PlanReason.WORKER_FAILED)


def _clamped(failure: Failure | None, now: datetime.datetime) -> Failure | None:
    """With a time not later than now; a later time would hide all failures until then."""
    if failure is None or failure.time is None or failure.time <= now:
        return failure
    return failure.model_copy(update={"time": now.replace(microsecond=0)})


def _fresh(before: Restarts, view: RendezvousView) -> tuple[int | None, int]:
    """(the agents' count, how many of them are not in status yet). A count that decreased started again, with an empty
    etcd and new agents."""
    if view.plan is None:
        return before.reported, 0
    count = view.plan.restart_count
    known = before.total if before.reported is None else before.reported
    return count, max(0, count - known)


def _within_window(
    policy: FailurePolicy, tally: _Tally, reported: int | None, now: datetime.datetime
) -> tuple[Restarts, datetime.datetime | None]:
    """(status.restarts, when the next one leaves the window)"""
    if policy.window_seconds is None:
        return Restarts(total=tally.total, reported=reported, by_cause=tally.by_cause), None
    window = datetime.timedelta(seconds=policy.window_seconds)
    times = sorted(time for time in tally.times if time.replace(microsecond=0) + window > now)[-MAX_TIMES:]
    restarts = Restarts(
        total=tally.total, reported=reported, window=len(times), times=tuple(times), by_cause=tally.by_cause
    )
    return restarts, times[0].replace(microsecond=0) + window if times else None


def is_counted(pod: Pod, failure: PodFailure, last: Failure | None, latest: Round | None = None) -> bool:
    """Whether `last` is the failure of this pod, of its group, or a later one. Free failures always count as
    counted."""
    if failure.cost is not Cost.COUNTS:
        return True
    if last is None or last.time is None:
        return False
    if last.pod_uid == pod.uid:
        return True
    if last.reason == PEER_LOST and last.rank is not None and not (latest and latest.restarted):
        return False
    if not _is_of_same_group(failure, last, last.time, latest):
        return False
    # Times have whole seconds: a pod created in that very second is the failed pod itself, one of its group, or its
    # replacement.
    created = pod.created_at.replace(microsecond=0)
    is_replacement = pod.name != last.worker and names.index_of(last.worker) == pod.index
    return created < last.time or (created == last.time and not is_replacement)


def _is_of_same_group(failure: PodFailure, last: Failure, time: datetime.datetime, latest: Round | None) -> bool:
    """`time`: of `last`."""
    soon = failure.time <= time + datetime.timedelta(seconds=GROUP_SECONDS)
    ended_in = _round_of(failure, latest)
    if ended_in is None or last.round is None or failure.time > time + datetime.timedelta(seconds=ROUND_SECONDS):
        return soon
    return ended_in <= last.round or (soon and latest is not None and latest.began is None)


def failure_of(value: FailureValue | Mapping[str, Any]) -> Failure:
    """An agent's record of a failure, in the form of status.lastFailure."""
    if not isinstance(value, FailureValue):
        value = FailureValue(**{name: value[name] for name in FailureValue.__slots__ if name in value})
    return Failure(
        worker=value.member,
        round=value.round,
        rank=value.rank,
        exit_code=value.exit_code,
        reason=value.reason,
        message=f"{value.message}\n{value.traceback}".strip(),
        time=datetime.datetime.fromtimestamp(value.time, datetime.timezone.utc) if value.time else None,
    )


def _reported(view: RendezvousView) -> Failure | None:
    if view.outcome is not None and view.outcome.failure:
        return failure_of(view.outcome.failure)
    return failure_of(view.failure) if view.failure is not None else None


def _newer(known: Failure | None, reported: Failure | None, *, in_future: bool) -> Failure | None:
    """The failure that the agents report takes precedence, unless it followed from a pod failure that is already
    known. `in_future`: the clock of the agent that reported it is ahead of ours."""
    if known is None or reported is None or known.time is None or reported.time is None:
        return reported or known
    whole_pod = known.rank is None
    if known.round is not None and reported.round is not None and reported.round >= known.round:
        lost = whole_pod and reported.reason == PEER_LOST and reported.round == known.round + 1
        follows = lost and reported.time <= known.time + datetime.timedelta(seconds=ROUND_SECONDS)
        return reported if reported.round > known.round and not follows else known
    if in_future and known.round is not None:
        return known  # of an earlier round: at any time, such a clock says that it is new
    grace = datetime.timedelta(seconds=GROUP_SECONDS if whole_pod else 0)
    return reported if reported.time >= known.time + grace else known


def _of_pod(pod: Pod, failure: PodFailure, latest: Round | None) -> Failure:
    text = pod.first_end.message.strip() if pod.first_end else ""
    return Failure(
        worker=pod.name,
        pod_uid=pod.uid,
        round=_round_of(failure, latest),
        exit_code=failure.exit_code,
        reason=failure.reason,
        message=failure.detail if failure.detail.endswith(text) else f"{failure.detail}\n{text}",
        time=failure.time,
    )


def _round_of(failure: PodFailure, latest: Round | None) -> int | None:
    """The round in which the pod ended: its end may become known after the agents' next plan."""
    if latest is None:
        return None
    return max(0, latest.number - (latest.began is not None and latest.began >= failure.time))
