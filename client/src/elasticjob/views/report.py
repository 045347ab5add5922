"""`elasticjob plot`: a job's history as figures over time. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from elasticjob_api import Change, ChangeType, History
from elasticjob_api.goodput import goodput, goodput_series
from elasticjob_api.history import Series, repeated, step_rates, world_sizes

from elasticjob.state import JobState
from elasticjob.views.words import duration, parts, percentage

BLUE, GREEN, ORANGE, RED, GRAY = "#0969da", "#1a7f37", "#bc4c00", "#cf222e", "#6e7781"
_CAUSES = {
    "Start": GREEN,
    "WorkerFailed": RED,
    "MemberLost": RED,
    "MemberLeft": ORANGE,
    "MemberJoined": BLUE,
    "Resized": BLUE,
}


@dataclass(frozen=True)
class Panel:
    """One figure over time."""

    title: str
    series: Series
    color: str
    steps: bool = False
    """Each value holds until the next time."""
    most: float | None = None
    """The end of its scale. None: as the values need."""
    unit: str = ""
    missing: str = "Unknown: the script does not report its steps."
    """What is said instead of an empty grid."""


def panels(job: JobState, history: History, now: datetime.datetime) -> list[Panel]:
    """What is drawn, from top to bottom."""
    end = job.finished or now
    shares = [(time, 100 * value) for time, value in goodput_series(history, end)]
    return [
        Panel("Worker processes that train", _until(world_sizes(history), end), BLUE, steps=True),
        Panel("Steps per second", step_rates(history), GREEN, steps=True),
        Panel("Goodput: % of the time that trained new steps", shares, ORANGE, most=100, unit=" %"),
    ]


def _until(series: Series, end: datetime.datetime) -> Series:
    """The last value holds until the end."""
    return [*series, (max(end, series[-1][0]), series[-1][1])] if series else []


def color_of(change: Change) -> str:
    if change.type == ChangeType.FAILED:
        return RED
    return GREEN if change.type == ChangeType.SUCCEEDED else _CAUSES.get(change.reason, GRAY)


def title_of(change: Change) -> str:
    return f"Round {change.round}, {change.reason}" if change.type == ChangeType.ROUND else str(change.type)


def summary(job: JobState, history: History, now: datetime.datetime) -> list[tuple[str, str]]:
    """What the history amounts to, in a few figures."""
    end = job.finished or now
    divided = goodput(history, until=end, stalled=job.is_true("Stalled"))
    samples = history.progress
    found = []
    if history.changes:
        found.append(("duration", duration((end - history.changes[0].caused_at).total_seconds())))
    if samples:
        found.append(("steps", str(samples[-1].step)))
    rounds = sum(change.type == ChangeType.ROUND for change in history.changes)
    found += [("rounds", str(max(job.round, rounds))), ("restarts", str(job.restarts))]
    lost, known = repeated(history)
    found.append(("steps repeated", str(lost) if known else f"at least {lost}" if lost else "unknown"))
    found += [("goodput", percentage(divided)), *parts(divided)]
    return found
