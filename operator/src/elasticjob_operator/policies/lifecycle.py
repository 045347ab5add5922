"""When a job rests, starts again, runs out of time, and is deleted.

A suspended job holds nothing: its pods go first, then its etcd, Services and keys. Only then the condition Suspended is
true. Resumed, it starts a new run under a new number, so that agents and keys of the last run can never meet it: the
run after the one that status names, for as long as Suspended is still true there. A job that was never started, or not
yet at rest when it was resumed, keeps its run - unless its template was changed meanwhile: workers of two templates are
never in one run.

All deadlines are counted from times in status, so they are exact whoever looks, however often the operator was
restarted.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from elasticjob_operator import names
from elasticjob_operator.api import ConditionType, ElasticJob, Reason, Status, message
from elasticjob_operator.policies.completion import Completion, End
from elasticjob_operator.state import Pod


def is_resuming(job: ElasticJob) -> bool:
    """It was at rest, and is to run."""
    return not job.is_suspended and job.status.is_true(ConditionType.SUSPENDED)


def starts_new_run(job: ElasticJob) -> bool:
    return is_resuming(job) and job.status.start_time is not None


def is_new_run(job: ElasticJob, run: int) -> bool:
    """`run`: the one to be. Status speaks of an earlier one."""
    before = job.status.rendezvous
    known = before is not None and job.status.start_time is not None and run > names.run_of(before.id, job.uid)
    return not job.is_suspended and (known or starts_new_run(job))


def outlived_its_template(job: ElasticJob, pods: Iterable[Pod], template_hash: str) -> bool:
    """`pods`: of the current run. The job was suspended, changed and resumed before they were gone, or while no
    operator looked."""
    if job.is_suspended or job.status.is_finished:
        return False
    return any(pod.template_hash != template_hash for pod in pods)


def forget_last_run(status: Status) -> Status:
    """What a new run begins with: what was said of the last run alone is gone, the job's own history stays."""
    restarts = status.restarts.model_copy(update={"reported": 0})
    return status.model_copy(update={"round": 0, "world_size": 0, "start_time": None, "restarts": restarts})


def deadlines(job: ElasticJob, *, trained: bool, waiting: str, now: datetime.datetime) -> Completion:
    """`trained`: this run has trained before. `waiting`: what it waits for, if not."""
    started, limits = job.status.start_time, job.spec.lifecycle
    if started is None:
        return Completion()
    found: list[tuple[datetime.datetime, End]] = []
    if (seconds := limits.active_deadline_seconds) is not None:
        text = message(Reason.DEADLINE_EXCEEDED, seconds=seconds)
        found.append((_after(started, seconds), End(succeeded=False, reason=Reason.DEADLINE_EXCEEDED, message=text)))
    if (seconds := limits.startup_deadline_seconds) is not None and not trained:
        text = message(Reason.STARTUP_DEADLINE_EXCEEDED, seconds=seconds, detail=waiting)
        found.append(
            (_after(started, seconds), End(succeeded=False, reason=Reason.STARTUP_DEADLINE_EXCEEDED, message=text))
        )
    if not found:
        return Completion()
    due, end = min(found, key=lambda each: each[0])
    return Completion(end=end) if now >= due else Completion(requeue_at=due)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expiry:
    """Whether an ended job is to be deleted."""

    delete: bool = False
    requeue_at: datetime.datetime | None = None


def expiry(job: ElasticJob, now: datetime.datetime) -> Expiry:
    """`job` has ended."""
    seconds, ended = job.spec.lifecycle.ttl_seconds_after_finished, job.status.completion_time
    if seconds is None or ended is None:
        return Expiry()
    due = _after(ended, seconds)
    return Expiry(delete=True) if now >= due else Expiry(requeue_at=due)


def _after(moment: datetime.datetime, seconds: float) -> datetime.datetime:
    return moment + datetime.timedelta(seconds=seconds)
