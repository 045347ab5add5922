"""Whether workers that run get on: the condition Stalled, for scripts that report their steps.

A step takes what it takes, so the limit grows with it. Time counts from when this operator saw the last one, not from
what a node's clock says, and from when etcd answered again: while it is away, nothing is reported.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_operator.api import ConditionType, ElasticJob, Progress, Reason, message
from elasticjob_operator.api.fields import format_time
from elasticjob_operator.state import Connectivity, RendezvousView

STALL_SECONDS = 60.0
"""No step for so long is worth a word, s ..."""
STALL_STEPS = 30
"""... and for as long as so many steps have taken."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    stalled: bool
    reason: Reason
    message: str
    requeue_at: datetime.datetime | None = None


def judge_stall(
    job: ElasticJob, view: RendezvousView, progress: Progress | None, *, running: bool, now: datetime.datetime
) -> Stall | None:
    """`progress`: with the time at which this operator saw it. None: leave the condition as it is."""
    fine = Stall(stalled=False, reason=Reason.PROGRESSING, message=message(Reason.PROGRESSING))
    if not running:
        return fine if job.status.condition(ConditionType.STALLED) else None
    if (
        progress is None
        or progress.observed_at is None
        or view.progress is None
        or view.connectivity is not Connectivity.REACHABLE
    ):
        return None
    if view.plan is None or view.progress.round != view.plan.round:
        return fine if job.status.condition(ConditionType.STALLED) else None
    due = _since(job, progress.observed_at) + datetime.timedelta(seconds=limit(progress.steps_per_second))
    if now >= due:
        text = message(Reason.NO_PROGRESS, step=progress.step, since=format_time(progress.observed_at))
        return Stall(stalled=True, reason=Reason.NO_PROGRESS, message=text)
    return dataclasses.replace(fine, requeue_at=due)


def limit(steps_per_second: float | None) -> float:
    """For how long no step is nothing to speak of, s."""
    return max(STALL_SECONDS, STALL_STEPS / steps_per_second) if steps_per_second else STALL_SECONDS


def _since(job: ElasticJob, seen: datetime.datetime) -> datetime.datetime:
    ready = job.status.condition(ConditionType.RENDEZVOUS_READY)
    return max(seen, ready.last_transition_time) if ready is not None else seen
