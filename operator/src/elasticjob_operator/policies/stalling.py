"""The condition Stalled: whether running workers make progress, for scripts that report their steps.

The limit grows with the duration of a step. Time counts from when this operator first saw the latest step, not from
what a node's clock says, and not before etcd became reachable: nothing is reported while it is not.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import ConditionType, ElasticJob, Progress, Reason
from elasticjob_api.fields import format_time

from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.state import Connectivity, RendezvousView

STALL_SECONDS = 60.0
"""Workers have stalled if they report no step for this long, in seconds ..."""
STALL_STEPS = 30
"""... and for as long as this many steps have taken."""


def stalled(
    job: ElasticJob, view: RendezvousView, progress: Progress | None, *, running: bool, now: datetime.datetime
) -> ConditionUpdate | None:
    """None: leave the condition as it is. `progress`: with the time at which this operator first saw it."""
    progressing = update(False, Reason.PROGRESSING)
    ended = progressing if job.status.condition(ConditionType.STALLED) else None
    if not running:
        return ended
    if (
        progress is None
        or progress.observed_at is None
        or view.progress is None
        or view.connectivity is not Connectivity.REACHABLE
    ):
        return None
    if view.plan is None or view.progress.round != view.plan.round:
        return ended
    if progress.step == 0 and progress.percent is not None:
        return ended  # a script that counts no steps
    due = _since(job, progress.observed_at) + datetime.timedelta(seconds=limit(progress.steps_per_second))
    if now >= due:
        return update(True, Reason.NO_PROGRESS, step=progress.step, since=format_time(progress.observed_at))
    return dataclasses.replace(progressing, requeue_at=due)


def limit(steps_per_second: float | None) -> float:
    """How long workers may go without a step before they have stalled, in seconds."""
    return max(STALL_SECONDS, STALL_STEPS / steps_per_second) if steps_per_second else STALL_SECONDS


def _since(job: ElasticJob, seen: datetime.datetime) -> datetime.datetime:
    ready = job.status.condition(ConditionType.RENDEZVOUS_READY)
    return max(seen, ready.last_transition_time) if ready is not None else seen
