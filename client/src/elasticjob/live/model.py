"""What the full-screen view shows, from what was observed. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.decisions.changes import progress_line
from elasticjob.decisions.obstacles import obstacles
from elasticjob.state import JobState, WorkerState, in_rank_order
from elasticjob.views.jobs import style_of
from elasticjob.views.table import plain
from elasticjob.views.words import age, duration, first_line

COLORS = {"good": "green", "busy": "cyan", "warn": "yellow", "bad": "red", "dim": "bright_black", "": "default"}
MOST_OBSTACLES = 3
MOST_PAST = 20


@dataclass(frozen=True)
class Row:
    """A worker pod. Rows that are equal need not be drawn again."""

    key: str
    order: str
    name: str
    status: str
    style: str
    node: str
    age: str
    detail: str

    @property
    def cells(self) -> tuple[str, ...]:
        return self.order, self.name, self.status, self.node, self.age, self.detail


def title(job: JobState, now: datetime.datetime, lost_for: float) -> tuple[str, str]:
    """(text, style) of the first line."""
    if lost_for > 1:
        return f"{job.name}  the API server cannot be reached since {duration(lost_for)}; trying again", "bad"
    end = job.finished or now
    since = f"  for {duration((end - job.started).total_seconds())}" if job.started else ""
    return f"{job.namespace}/{job.name}  {job.status_word}{since}", style_of(job.status_word)


def facts(job: JobState, now: datetime.datetime, goodput: float | None = None) -> list[tuple[str, str]]:
    """Name and value of each fact, empty values left out. `goodput`: a share."""
    progress = job.progress
    saved = f"step {progress.checkpoint_step}" if progress and progress.checkpoint_step is not None else ""
    ago = f" ({age(progress.observed_at, now)} ago)" if progress and progress.observed_at else ""
    causes = ", ".join(f"{cause} {times}" for cause, times in sorted(job.causes.items()))
    failure = job.failure
    failed = f"{failure.worker} {failure.reason}, {age(failure.time, now)} ago" if failure else ""
    all_facts = [
        ("Worker pods", f"{job.workers_text} ready, sizes {job.range_text}"),
        ("Round", f"{job.round} with {job.world_size} processes" if job.round else ""),
        ("Progress", progress_line(job) + (ago if progress else "")),
        ("Checkpoint", saved),
        ("Goodput", "" if goodput is None else f"{100 * goodput:.1f} %"),
        ("Restarts", f"{job.restarts} of at most {job.max_restarts}" + (f" ({causes})" if causes else "")),
        ("Last failure", failed),
        ("", first_line(failure.message) if failure else ""),
    ]
    return [(name, plain(value)) for name, value in all_facts if value]


def in_the_way(job: JobState, workers: Sequence[WorkerState], now: datetime.datetime) -> list[str]:
    """The most important obstacles, with their remedies."""
    found = obstacles(job, workers, now)[:MOST_OBSTACLES]
    return [
        plain(f"{first_line(each.what)}  → {each.remedy}" if each.remedy else first_line(each.what)) for each in found
    ]


def past(job: JobState) -> list[tuple[str, str]]:
    """(local time, text) of the newest changes in the job's history."""
    return [
        (
            each.time.astimezone().strftime("%H:%M:%S") if each.time else "",
            plain(
                f"{f'round {each.round}' if each.type == 'Round' else each.type}: {each.reason} {each.message}".strip()
            ),
        )
        for each in job.history[-MOST_PAST:]
    ]


def rows(workers: Sequence[WorkerState], now: datetime.datetime, per_pod: int = 1) -> list[Row]:
    """Those in trouble first, then in the order of their ranks. `per_pod`: processes in each worker pod."""
    training = [each for each in in_rank_order(workers) if each.ready]
    order = {each.uid: number for number, each in enumerate(training)}
    shown = sorted(workers, key=lambda each: (each.ready, order.get(each.uid, -1)))
    return [
        Row(
            key=each.uid,
            order=_ranks(order.get(each.uid), per_pod),
            name=each.name,
            status=each.status_word,
            style=style_of(each.status_word),
            node=each.node,
            age=age(each.created, now),
            detail=plain(first_line(each.detail, 60)),
        )
        for each in shown
    ]


def _ranks(position: int | None, per_pod: int) -> str:
    if position is None:
        return ""
    first = position * per_pod
    return str(first) if per_pod == 1 else f"{first}-{first + per_pod - 1}"
