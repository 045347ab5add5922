"""Whether nothing but the progress of the training is new. Such a change decides nothing, so it needs no plan, and its
writes wait for the budget that all jobs share (`controller.progress_lane`).

of what agents report   the step, its rate and metrics, the newest checkpoint; or the count of optimizer steps
of the status           progress, optimizerSteps, goodput, and the samples of the history

The first report of a round, and of a job, is more than that: from then on training is known to go on, and the job to
have trained.
"""

from __future__ import annotations

import dataclasses

from elasticjob_api import Status, StoredHistory
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
