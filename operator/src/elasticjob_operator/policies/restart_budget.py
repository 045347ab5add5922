"""The restart budget: what was restarted because of failures, and whether that is too much.

Two kinds of failure add up in `status.restarts.total`:

- The agents' own, worker processes that failed while their agents lived: `restart_count` of the plan, one for each
  restart of the whole group. `status.restarts.reported` says how many of them are in the total.
- Pods that failed as a whole. A failed pod takes its group with it, so pods that fail together count once: those that
  were there at the last counted failure, and ended before the agents had made another plan (`GROUP_SECONDS` after it,
  where there are no plans). A restart of the agents that follows from a pod's end is no other failure.

Agents and kubelets have clocks of their own, and one may be wrong by hours. So no time is later than now, and rounds
come before times.

A failed pod is counted first, in status, and deleted only after that was written. So a killed operator neither forgets
a failure nor counts it twice: whether a pod was counted can be read from status and the pod's own times.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_runtime.contract import FailureValue

from elasticjob_operator.api import ElasticJob, Failure, RestartPolicy, RestartRule, Restarts, RuleAction
from elasticjob_operator.policies.failures import Cost, PodFailure, action_for, judge
from elasticjob_operator.state import Pod, RendezvousView

GROUP_SECONDS = 5.0
"""How long the rest of a worker group takes to fail of the first failure, where nothing says of which round it was,
s."""
ROUND_SECONDS = 1800.0
"""How long after the first failure the rest of its round may take to fail, s: torch's longest time-out."""
MAX_TIMES = 101
"""Times of restarts that are kept: one more than may be within a window."""
IGNORED_AT_ONCE = 100
"""Restarts that agents may make while the operator is away, where rules ignore some of them."""
UNKNOWN = "WorkerFailed"
"""Cause of a restart of which the agents reported no failure."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The newest round that is known."""

    number: int
    began: datetime.datetime | None = None
    """None: not known, or by a clock that is ahead of ours."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    restarts: Restarts = dataclasses.field(default_factory=Restarts)
    limit: int = 0
    """spec.restartPolicy.maxRestarts."""
    last_failure: Failure | None = None
    new_failure: Failure | None = None
    """The newest failure of a whole pod that is counted now, for the first time."""
    fatal: Failure | None = None
    """A failure that ends the job by a rule."""
    requeue_at: datetime.datetime | None = None
    """When a restart leaves the window."""
    latest: Round | None = None
    """None: the agents make no plans that the operator knows of."""
    some_are_ignored: bool = False
    """A rule ignores failures, which the agents cannot tell from others."""

    @property
    def total(self) -> int:
        return self.restarts.total

    @property
    def used(self) -> int:
        """What counts towards the limit."""
        return self.restarts.total if self.restarts.window is None else self.restarts.window

    @property
    def spent(self) -> bool:
        return self.used > self.limit

    @property
    def limit_of_agents(self) -> int:
        """What the agents may compare their own count of this run with. Where a rule ignores failures it is the
        operator that ends the job, a restart later than the agents would."""
        left = max(0, self.limit - self.used)
        return (self.restarts.reported or 0) + left + (IGNORED_AT_ONCE if self.some_are_ignored else 0)


class _Tally:
    """status.restarts, counted on."""

    def __init__(self, before: Restarts) -> None:
        self.total = before.total
        self.times = list(before.times or ())
        self.by_cause = dict(before.by_cause)

    def add(self, cause: str, time: datetime.datetime, count: int = 1) -> None:
        self.total += count
        self.times += [time] * min(count, MAX_TIMES)
        self.by_cause[cause] = self.by_cause.get(cause, 0) + count


def account(job: ElasticJob, view: RendezvousView, failed: Iterable[Pod], now: datetime.datetime) -> Budget:
    """The budget after everything that is visible now. Never below what status says."""
    policy, before = job.spec.restart_policy, job.status.restarts
    tally = _Tally(before)
    known, reported, latest = (
        _clamped(job.status.last_failure, now),
        _clamped(_reported(view), now),
        latest_round(job, view, now),
    )
    last = _newer(known, reported)
    action = action_for(policy.rules, reported.exit_code, reported.reason) if reported else None
    fatal = reported if action is RuleAction.FAIL and last is reported and last != known else None
    count, fresh = _fresh(before, view)
    if fresh and known is not None and known.rank is None and last is known and reported is not None:
        fresh -= 1  # it followed from that pod's end
    if fresh and action is not RuleAction.IGNORE:
        cause, time = (reported.reason or UNKNOWN, reported.time or now) if reported else (UNKNOWN, now)
        tally.add(cause, time, fresh)
    new: Failure | None = None
    for pod, failure in _in_order(failed, policy.rules):
        if failure.ends_job:
            fatal = fatal or _of_pod(pod, failure, latest)
        if failure.cost is Cost.COUNTS and not is_accounted(pod, failure, last, latest):
            tally.add(failure.reason, min(failure.time, now))
            last = new = _clamped(_of_pod(pod, failure, latest), now)
    restarts, again = _within_window(policy, tally, count, now)
    return Budget(
        restarts=restarts,
        limit=policy.max_restarts,
        last_failure=last,
        new_failure=new,
        fatal=fatal,
        requeue_at=again,
        latest=latest,
        some_are_ignored=any(rule.action is RuleAction.IGNORE for rule in policy.rules),
    )


def latest_round(job: ElasticJob, view: RendezvousView, now: datetime.datetime) -> Round | None:
    if not job.has_plans:
        return None
    if view.plan is None:
        return Round(number=job.status.round)
    known = 0 < view.plan.created_at <= now.timestamp()
    began = datetime.datetime.fromtimestamp(view.plan.created_at, datetime.timezone.utc) if known else None
    return Round(number=view.plan.round, began=began)


def _clamped(failure: Failure | None, now: datetime.datetime) -> Failure | None:
    """Not later than now, or it would hide all that happens until then."""
    if failure is None or failure.time is None or failure.time <= now:
        return failure
    return failure.model_copy(update={"time": now.replace(microsecond=0)})


def _fresh(before: Restarts, view: RendezvousView) -> tuple[int | None, int]:
    """(the agents' count, how many of it are not in status yet). A count that shrank began anew, with an empty etcd and
    new agents."""
    if view.plan is None:
        return before.reported, 0
    count = view.plan.restart_count
    known = before.total if before.reported is None else before.reported
    return count, max(0, count - known)


def _within_window(
    policy: RestartPolicy, tally: _Tally, reported: int | None, now: datetime.datetime
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


def is_accounted(pod: Pod, failure: PodFailure, last: Failure | None, latest: Round | None = None) -> bool:
    """Whether `last` is this pod's failure, a later one, or that of the group it belonged to. Free failures always
    are."""
    if failure.cost is not Cost.COUNTS:
        return True
    if last is None or last.time is None:
        return False
    if last.pod_uid == pod.uid:
        return True
    if not _is_of_that_group(failure, last, last.time, latest):
        return False
    # Times have whole seconds: made in that very second, it is the failed one itself, one of its group, or its
    # successor.
    created, ended = pod.created_at.replace(microsecond=0), failure.time.replace(microsecond=0)
    is_successor = pod.name == last.worker and (bool(last.pod_uid) or ended > last.time)
    return created < last.time or (created == last.time and not is_successor)


def _is_of_that_group(failure: PodFailure, last: Failure, time: datetime.datetime, latest: Round | None) -> bool:
    """`time`: of `last`."""
    if failure.time <= time + datetime.timedelta(seconds=GROUP_SECONDS):
        return True
    if latest is None or last.round is None or failure.time > time + datetime.timedelta(seconds=ROUND_SECONDS):
        return False
    return latest.number <= last.round or (latest.began is not None and latest.began >= failure.time)


def failure_of(value: FailureValue | Mapping[str, Any]) -> Failure:
    """An agent's record of a failure as status has it."""
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


def _newer(known: Failure | None, reported: Failure | None) -> Failure | None:
    """The agents' word on the first failure wins, but for what followed from a pod's failure already known."""
    if known is None or reported is None or known.time is None or reported.time is None:
        return reported or known
    of_a_pod = known.rank is None
    if known.round is not None and reported.round is not None and reported.round >= known.round:
        return reported if reported.round > known.round else known
    patience = datetime.timedelta(seconds=GROUP_SECONDS if of_a_pod else 0)
    return reported if reported.time >= known.time + patience else known


def _in_order(failed: Iterable[Pod], rules: Iterable[RestartRule]) -> list[tuple[Pod, PodFailure]]:
    return sorted(((pod, judge(pod, rules)) for pod in failed), key=lambda each: (each[1].time, each[0].index))


def _of_pod(pod: Pod, failure: PodFailure, latest: Round | None) -> Failure:
    words = pod.end.message.strip() if pod.end else ""
    return Failure(
        worker=pod.name,
        pod_uid=pod.uid,
        round=latest.number if latest else None,
        exit_code=failure.exit_code,
        reason=failure.reason,
        message=f"{failure.detail}\n{words}".strip(),
        time=failure.time,
    )
