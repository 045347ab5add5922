"""What has changed in a job between two looks: a line for each change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from elasticjob.decisions.waiting import why_failed
from elasticjob.state import Condition, JobState, WorkerState

TERMINATED = 143
"""Exit code of a worker pod that was asked to end."""
MOST_DETAIL = 300
"""Characters of what a container said at its end."""
STEP_SECONDS = 10.0
"""Progress is worth a line this often, s."""
_ROUTINE = ("NotFinished", "Progressing", "Complete", "NotTraining", "Resized", "Finished")
_END = ("Succeeded", "Failed")


class ChangeLine(NamedTuple):
    text: str
    style: str = ""
    """good, busy, warn, bad or dim."""


def changes(
    before: JobState | None,
    after: JobState | None,
    workers_before: Sequence[WorkerState],
    workers_after: Sequence[WorkerState],
) -> list[ChangeLine]:
    """`before`: None at the first look. `after`: None if the job was deleted."""
    if after is None:
        return [ChangeLine("the job was deleted", "warn")]
    return list(_changes(before, after, workers_before, workers_after))


def _changes(
    before: JobState | None,
    after: JobState,
    workers_before: Sequence[WorkerState],
    workers_after: Sequence[WorkerState],
) -> Iterator[ChangeLine]:
    if before is None:
        step = f", step {after.progress.step}" if after.progress else ""
        yield ChangeLine(f"{after.summary}: {after.workers_text} worker pods ready{step}", "busy")
    else:
        yield from _of_workers(workers_before, workers_after)
        if after.replicas != before.replicas:
            yield ChangeLine(f"scaled from {before.replicas} to {after.replicas} worker pods", "busy")
        if after.restarts > before.restarts:
            failure = f": {after.failure.worker} {after.failure.reason}" if after.failure else ""
            yield ChangeLine(f"restart {after.restarts} of at most {after.max_restarts}{failure}", "warn")
    yield from _of_conditions(before.conditions if before else {}, after)


def _of_conditions(before: Mapping[str, Condition], after: JobState) -> Iterator[ChangeLine]:
    for type_, condition in after.conditions.items():
        known = before.get(type_)
        seen = known is not None and (known.status, known.reason, known.message) == (
            condition.status,
            condition.reason,
            condition.message,
        )
        if seen or condition.reason in _ROUTINE or (known is None and not before and type_ not in ("Running", *_END)):
            continue
        if type_ in _END and condition.is_true:
            yield ChangeLine(
                *(("succeeded", "good") if type_ == "Succeeded" else (f"failed: {why_failed(after)}", "bad"))
            )
        elif type_ == "Running" or condition.is_true or (known is not None and known.is_true):
            good = condition.is_true == (
                type_ not in ("Stalled", "Degraded", "Restarting", "StragglersFound", "NodesSuspected")
            )
            yield ChangeLine(f"{type_} {condition.status}: {condition.message}", "good" if good else "warn")


def _of_workers(before: Sequence[WorkerState], after: Sequence[WorkerState]) -> Iterator[ChangeLine]:
    """Worker pods that come, go, end or get ready; many at once are counted."""
    old, new = {state.uid: state for state in before}, {state.uid: state for state in after}
    came = [state.name for state in after if state.uid not in old]
    gone = [state.name for state in before if state.uid not in new]
    ready = [state.name for state in after if state.ready and state.uid in old and not old[state.uid].ready]
    for verb, names, style in (("created", came, ""), ("is ready", ready, "good"), ("is gone", gone, "warn")):
        if names:
            yield ChangeLine(f"{_names(names)} {verb if len(names) == 1 else verb.replace('is ', 'are ')}", style)
    for state in after:
        known = old.get(state.uid)
        if state.deleting and state.exit_code == TERMINATED:
            continue  # it is about to be gone, as asked
        if state.problem and (known is None or known.problem != state.problem) and state.problem != "Completed":
            # A container without a message of its own has the end of its log.
            detail = state.detail.rpartition("\n")[2][-MOST_DETAIL:]
            yield ChangeLine(f"{state.name}: {state.problem} {detail}".strip(), "warn")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} worker pods ({names[0]} to {names[-1]})"


def progress_line(job: JobState) -> str:
    """The step and its rate; empty if none was reported."""
    progress = job.progress
    if progress is None:
        return ""
    rate = f", {progress.steps_per_second:.3g} steps/s" if progress.steps_per_second is not None else ""
    metrics = "".join(f", {name} {value}" for name, value in sorted(progress.metrics.items()))
    return f"step {progress.step}{rate}{metrics}"
