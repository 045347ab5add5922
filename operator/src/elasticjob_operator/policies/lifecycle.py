"""When a job is suspended, resumed, out of time, and deleted.

A suspended job holds no resources: its pods are deleted first, then its etcd, Services and keys. Only then is the
condition Suspended true. A resumed job starts a new run with a new number, so that agents and keys of the last run
cannot interfere: as long as Suspended is true in status, the run is the one after the run in status. A suspension that
has begun is completed, even if the job is resumed meanwhile: pods that are ending may be saving what the next ones
continue from, or report that the job has succeeded. A job that has never started keeps its run, unless its template has
changed: a run never has workers of two templates. Until a run has trained, its template may change at any time, and
starts the next run.

All deadlines count from times in status, so restarts of the operator do not move them.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from elasticjob_api import ConditionType, ElasticJob, Reason, Status

from elasticjob_operator import names
from elasticjob_operator.policies.completion import not_ended
from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.state import Pod


def is_resuming(job: ElasticJob) -> bool:
    """It is suspended, and should run."""
    return not job.is_suspended and job.status.is_true(ConditionType.SUSPENDED)


def is_held(job: ElasticJob) -> bool:
    """Nothing of the job is to run: it is suspended, or was resumed while its pods were ending."""
    condition = job.status.condition(ConditionType.SUSPENDED)
    return job.is_suspended or (condition is not None and condition.reason == Reason.SUSPENDING)


def starts_new_run(job: ElasticJob) -> bool:
    return is_resuming(job) and job.status.start_time is not None


def is_new_run(job: ElasticJob, run: int) -> bool:
    """Whether status describes an earlier run than `run`."""
    before = job.status.rendezvous
    known = before is not None and job.status.start_time is not None and run > names.run_of(before.id, job.uid)
    return not job.is_suspended and (known or starts_new_run(job))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunTemplate:
    """The template of the current run's worker pods."""

    label: str
    """Their label with its hash."""
    hash: str
    """As `status.rendezvous` has it."""
    generation: int | None
    changed: bool = False
    """The job has another one now."""


def template_of_run(job: ElasticJob, run: int, pods: Iterable[Pod], template_hash: str) -> RunTemplate:
    """`pods`: of the run; `template_hash`: of the job, as this release computes it.

    What another release computed is never compared: the template is the same as long as the generation is. So a hash
    that a new release computes differently restarts no job.
    """
    label = next((pod.template_hash for pod in pods), "")
    now = RunTemplate(label=label or template_hash, hash=template_hash, generation=job.generation)
    before = job.status.rendezvous
    if not label:
        return now
    if before is None or not before.template_hash or names.run_of(before.id, job.uid) != run:
        return dataclasses.replace(now, label=template_hash, changed=label != template_hash)  # status was not written
    if before.template_hash == template_hash or before.template_generation == job.generation:
        return now
    return RunTemplate(
        label=template_hash, hash=before.template_hash, generation=before.template_generation, changed=True
    )


def outlived_its_template(job: ElasticJob, template: RunTemplate) -> bool:
    """Whether the job was changed before it had trained; or was suspended, changed and resumed before its pods were
    gone, or while no operator was running."""
    return template.changed and not job.is_suspended and not job.status.is_finished


def forget_last_run(status: Status) -> Status:
    """The status that a new run starts with: without what describes the last run only, with the job's history."""
    restarts = status.restarts.model_copy(update={"reported": 0})
    return status.model_copy(
        update={"round": 0, "world_size": 0, "start_time": None, "restarts": restarts, "replica_workers": None}
    )


def deadlines(job: ElasticJob, *, trained: bool, waiting: str, now: datetime.datetime) -> ConditionUpdate:
    """The condition Succeeded: False once a deadline has passed, else None. `trained`: this run has trained;
    `waiting`: what it waits for if it has not."""
    started, limits = job.status.start_time, job.spec.lifecycle
    if started is None:
        return not_ended()
    found: list[tuple[datetime.datetime, ConditionUpdate]] = []
    if (seconds := limits.active_deadline_seconds) is not None:
        found.append((_after(started, seconds), update(False, Reason.DEADLINE_EXCEEDED, seconds=seconds)))
    if (seconds := limits.startup_deadline_seconds) is not None and not trained:
        late = update(False, Reason.STARTUP_DEADLINE_EXCEEDED, seconds=seconds, detail=waiting)
        found.append((_after(started, seconds), late))
    if not found:
        return not_ended()
    due, failed = min(found, key=lambda item: item[0])
    return failed if now >= due else not_ended(due)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expiry:
    """Whether a finished job is deleted now."""

    delete: bool = False
    requeue_at: datetime.datetime | None = None


def expiry(job: ElasticJob, now: datetime.datetime) -> Expiry:
    """`job` has finished."""
    seconds, ended = job.spec.lifecycle.ttl_seconds_after_finished, job.status.completion_time
    if seconds is None or ended is None:
        return Expiry()
    due = _after(ended, seconds)
    return Expiry(delete=True) if now >= due else Expiry(requeue_at=due)


def _after(moment: datetime.datetime, seconds: float) -> datetime.datetime:
    return moment + datetime.timedelta(seconds=seconds)
