"""Whether nothing but the progress of the training is new. Such a change decides nothing, so it needs no plan, and its
writes wait for the budget that all jobs share (`controller.progress_lane`).

of what agents report   the step, its rate and metrics, the newest checkpoint; or the count of optimizer steps
of the status           progress, optimizerSteps, goodput, and the samples of the history

The first report of a round, and of a job, is more than that: from then on training is known to go on, and the job to
have trained.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import OptimizerSteps, Progress, Status, StoredHistory
from elasticjob_api.progress import JobProgress
from elasticjob_runtime.contract import ProgressValue

from elasticjob_operator.state import RendezvousView


def only_progress_reported(before: RendezvousView, after: RendezvousView) -> bool:
    """Whether the agents reported that training goes on, and nothing else."""
    if before == after or not (_goes_on(before.progress, after.progress) and _goes_on(before.counted, after.counted)):
        return False
    return dataclasses.replace(before, progress=after.progress, counted=after.counted) == after


def _goes_on(before: ProgressValue | None, after: ProgressValue | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.round == after.round and before.step <= after.step


def newest_progress(view: RendezvousView, now: datetime.datetime) -> JobProgress | None:
    """None: nothing is reported."""
    found = JobProgress(progress=reported_progress(view, now), optimizer_steps=counted_steps(view))
    return None if found == JobProgress() else found


def reported_progress(view: RendezvousView, now: datetime.datetime) -> Progress | None:
    """As the script last reported it, and when this operator first saw that step."""
    reported = view.progress
    if reported is None:
        return None
    return Progress(
        step=max(0, reported.step),
        steps_per_second=reported.steps_per_second,
        total_steps=reported.total_steps,
        percent=None if reported.percent is None else min(100, reported.percent),
        remaining_seconds=reported.remaining_seconds,
        last_checkpoint_step=reported.last_checkpoint_step,
        metrics=reported.metrics,  # type: ignore[arg-type]  # the model turns numbers into strings
        updated_at=_time(reported.updated_at),
        observed_at=(view.progress_seen_at or now).replace(microsecond=0),
    )


def counted_steps(view: RendezvousView) -> OptimizerSteps | None:
    """As the agents last counted them."""
    counted = view.counted
    if counted is None or counted.optimizer_steps is None:
        return None
    return OptimizerSteps(
        count=max(0, counted.optimizer_steps),
        per_second=counted.steps_per_second,
        updated_at=_time(counted.updated_at),
    )


def _time(unix: float) -> datetime.datetime | None:
    return datetime.datetime.fromtimestamp(unix, datetime.timezone.utc) if unix else None


def only_progress_changed(written: Status, desired: Status) -> bool:
    """Whether the two statuses differ, and in nothing but progress."""
    if written == desired or _has_reported(written) != _has_reported(desired):
        return False
    return _without_progress(written) == _without_progress(desired)


def _has_reported(status: Status) -> tuple[bool, bool]:
    return status.progress is not None, status.optimizer_steps is not None


def _without_progress(status: Status) -> Status:
    history = status.history
    if history is not None:
        history = StoredHistory({**history.body, "samples": []})
    return status.model_copy(update={"progress": None, "optimizer_steps": None, "goodput": None, "history": history})
