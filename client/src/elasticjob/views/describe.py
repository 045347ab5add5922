"""`elasticjob describe`: everything about one job on a page, with what is in its way first. Pure."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from elasticjob_api import StoredHistory
from elasticjob_api.goodput import goodput

from elasticjob.decisions.commands import Flags, addressed
from elasticjob.decisions.obstacles import Obstacle, obstacles
from elasticjob.state import EventState, JobState, WorkerState
from elasticjob.views.jobs import style_of, worker_table
from elasticjob.views.table import Cell, Column, paint, plain, render
from elasticjob.views.text import plain_lines, wrapped
from elasticjob.views.words import age, duration, first_line, number, parts, percentage, steps_lost

MAX_EVENTS = 15
MAX_CHANGES = 10


def describe(
    job: JobState,
    workers: Sequence[WorkerState],
    events: Sequence[EventState] | None,
    now: datetime.datetime,
    *,
    width: int | None = None,
    color: bool = False,
    flags: Flags = (),
) -> list[str]:
    """`events`: oldest first; None: they are not shown. `flags`: of the commands that it suggests."""
    lines = [*_head(job, now, color=color)]
    found = [replace(obstacle, remedy=addressed(obstacle.remedy, flags)) for obstacle in obstacles(job, workers, now)]
    if found:
        lines += ["", *_obstacles(found, width, color=color)]
    if job.failure is not None and not job.is_true("Succeeded"):
        lines += ["", *_failure(job, now, color=color)]
    if job.conditions:
        lines += ["", *_conditions(job, now, width, color=color)]
    if job.history:
        lines += ["", *_history(job, now, width, color=color)]
    if workers:
        lines += ["", *worker_table(workers, now, width=width, color=color)]
    if events is not None:
        lines += ["", *_events(events, now, width, color=color)]
    return lines


def _head(job: JobState, now: datetime.datetime, *, color: bool) -> Iterator[str]:
    for name, value in _facts(job, now):
        if value:
            painted = paint(value, style_of(value.partition(" ")[0]), color=color) if name == "Status" else value
            yield f"{paint(f'{name}:', 'bold', color=color)}{' ' * (13 - len(name))}{painted}"


def _facts(job: JobState, now: datetime.datetime) -> Iterator[tuple[str, str]]:
    yield "Name", job.name
    yield "Namespace", job.namespace
    end = job.finished or now
    begin = job.conditions["Queued"].since if job.is_queued else job.started
    since = f" for {duration((end - begin).total_seconds())}" if begin and not job.is_finished else ""
    took = f" after {duration((end - job.started).total_seconds())}" if job.started and job.is_finished else ""
    yield "Status", f"{job.summary}{since}{took}"
    sizes = f", trains with {job.least} to {job.most}" if job.least != job.most else ""
    sizes += f", in replicas of {job.replica_size}" if job.replica_size else ""
    wanted = job.desired if job.desired is not None else job.replicas
    requested = f", {job.replicas} requested" if job.replicas > wanted else ""
    yield "Worker pods", f"{job.ready} of {wanted} ready{requested}{sizes}"
    if job.world_size:
        processes = "1 process" if job.world_size == 1 else f"{job.world_size} processes"
        yield "Training", f"{processes} in round {job.round}"
    yield "Progress", _progress(job, now)
    yield "Goodput", _goodput(job, now)
    causes = ", ".join(f"{cause} {times}" for cause, times in sorted(job.causes.items()))
    yield "Restarts", f"{job.restarts} of at most {job.max_restarts}" + (f" ({causes})" if causes else "")
    yield "Image", plain(job.image)
    yield "Command", plain(first_line(shlex.join(job.command), 200))
    yield "Checkpoints", job.checkpoint
    yield "Rendezvous", job.rendezvous
    yield "Created", f"{age(job.created, now)} ago" if job.created else ""


def _progress(job: JobState, now: datetime.datetime) -> str:
    progress = job.progress
    if progress is None:
        return _optimizer_steps(job, now)
    parts = [f"step {progress.step}"]
    if progress.steps_per_second is not None and not job.is_finished:
        parts.append(f"{number(progress.steps_per_second)} steps/s")
    if progress.checkpoint_step is not None:
        parts.append(f"last checkpoint at step {progress.checkpoint_step}")
    parts += [f"{name} {value}" for name, value in sorted(progress.metrics.items())]
    ago = f" ({age(progress.observed_at, now)} ago)" if progress.observed_at and not job.is_finished else ""
    return plain(", ".join(parts) + ago)


def _optimizer_steps(job: JobState, now: datetime.datetime) -> str:
    counted = job.optimizer_steps
    if counted is None:
        return ""
    rate = f", {number(counted.per_second)} per second" if counted.per_second is not None else ""
    ago = f" ({age(counted.updated_at, now)} ago)" if counted.updated_at and not job.is_finished else ""
    passes = counted.backward_passes
    what = f"{counted.count} optimizer steps" if passes is None else f"no optimizer step, {passes} backward passes"
    return f"{what}{'' if job.is_finished else rate}{ago}"


def _goodput(job: JobState, now: datetime.datetime) -> str:
    """Empty before the first round."""
    if not job.history:
        return ""
    stalled = job.is_true("Stalled")
    divided = goodput(
        StoredHistory(job.stored_history).read(), since=job.created, until=job.finished or now, stalled=stalled
    )
    return f"{percentage(divided)} ({', '.join(f'{name} {value}' for name, value in parts(divided))})"


def _obstacles(found: Sequence[Obstacle], width: int | None, *, color: bool) -> Iterator[str]:
    yield paint("Problems:", "bold", color=color)
    for obstacle in found:
        mark, style = ("✗", "bad") if obstacle.serious else ("!", "warn")
        yield from wrapped(plain_lines(obstacle.what), f"  {paint(mark, style, color=color)} ", "    ", width)
        if obstacle.remedy:
            yield from wrapped([obstacle.remedy], f"    {paint('→', 'good', color=color)} ", "      ", width)


def _failure(job: JobState, now: datetime.datetime, *, color: bool) -> Iterator[str]:
    failure = job.failure
    assert failure is not None
    rank = f"rank {failure.rank}{' of its replica' if job.replica_size else ''}" if failure.rank is not None else ""
    where = [failure.worker, rank]
    how = failure.reason + (f", exit code {failure.exit_code}" if failure.exit_code is not None else "")
    when = f"{age(failure.time, now)} ago" if failure.time else ""
    yield paint("Last failure:", "bold", color=color)
    yield "  " + "; ".join(filter(None, (", ".join(filter(None, where)), how, when)))
    yield from (f"    {line}" for line in plain_lines(failure.message))


def _conditions(job: JobState, now: datetime.datetime, width: int | None, *, color: bool) -> list[str]:
    columns = [
        Column("CONDITION"),
        Column("STATUS"),
        Column("REASON"),
        Column("SINCE", 1),
        Column("MESSAGE", 2, shrinks=True),
    ]
    rows = [
        [condition.type, condition.status, condition.reason, age(condition.since, now), first_line(condition.message)]
        for condition in job.conditions.values()
    ]
    return render(columns, rows, width=width, color=color)


def _history(job: JobState, now: datetime.datetime, width: int | None, *, color: bool) -> list[str]:
    """The newest changes, which outlive pods and Events."""
    columns = [
        Column("CHANGE"),
        Column("AGO"),
        Column("CAUSE"),
        Column("PROCESSES", 1),
        Column("RESUMED AFTER", 2, right=True),
        Column("STEPS LOST", 3, right=True),
        Column("MESSAGE", 4, shrinks=True),
    ]
    rows = [
        [
            f"round {each.round}" if each.type == "Round" else each.type.lower(),
            age(each.time, now),
            each.reason,
            f"{each.world_size_before} -> {each.world_size}" if each.type == "Round" else "",
            f"{number(each.resume_seconds)} s" if each.resume_seconds is not None else "",
            steps_lost(each.steps_lost, expected=each.type == "Round" and each.world_size_before > 0),
            first_line(each.message),
        ]
        for each in job.history[-MAX_CHANGES:]
    ]
    return render(columns, rows, width=width, color=color)


def _events(events: Sequence[EventState], now: datetime.datetime, width: int | None, *, color: bool) -> list[str]:
    if not events:
        return ["Events: none; Kubernetes keeps them for an hour."]
    columns = [Column("AGE"), Column("TYPE", 2), Column("EVENT"), Column("MESSAGE", shrinks=True)]
    rows = [
        [
            age(event.time, now) + (f" (x{event.count})" if event.count > 1 else ""),
            Cell("Warning", "warn") if event.warning else "Normal",
            event.reason,
            first_line(event.message),
        ]
        for event in events[-MAX_EVENTS:]
    ]
    return render(columns, rows, width=width, color=color)
