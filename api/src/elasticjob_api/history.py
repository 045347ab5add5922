"""`status.history` of an ElasticJob: what happened to its worker group, and how far the training was when.

The operator writes it. To read it:

    history = job.status.history.read() if job.status.history else History()
    world_sizes(history), step_rates(history), repeated(history)

`elasticjob_api.goodput` says what its time was spent on.

It survives the pods and the end of the job, and is bounded: docs/design/0018-history.md says why it is part of the
status, and what it costs.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import itertools
import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from elasticjob_api.fields import ATOMIC, Causes, Count, LongCount, Model, Text, Time, clip, finite_or_none, format_time

MAX_CHANGES = 50
"""Newest changes that are kept."""
MAX_SAMPLES = 60
"""Samples that are kept, about evenly spaced over the time since the first one."""
MAX_CHANGE_MESSAGE = 256
MAX_SAMPLE = 96
MAX_FAILURE_KIND = 64
MAX_SECONDS = 1e8
"""Of a duration: three years."""
HANG = "Hang"
"""Failure of a worker process that took no step for too long."""
COUNTED = "counted"


def _seconds(value: object) -> object:
    """With four digits after the point, because an etcd of many jobs stores them, and small enough to add to a date:
    they come from the job's etcd, so they are untrusted."""
    value = finite_or_none(value)
    return round(min(max(0.0, value), MAX_SECONDS), 4) if isinstance(value, int | float) else value


Seconds = Annotated[float | None, BeforeValidator(_seconds)]
"""A duration in s; None: unknown."""


ChangeMessage = Annotated[
    str, BeforeValidator(lambda value: clip(value, MAX_CHANGE_MESSAGE)), Field(max_length=MAX_CHANGE_MESSAGE)
]


class ChangeType(enum.StrEnum):
    """What a change is about."""

    ROUND = "Round"
    """The worker group trains in a new round."""
    SCALED = "Scaled"
    """Another number of worker pods is requested. The round of that size follows."""
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Phases(Model, frozen=True):
    """How long the phases of a change took, in seconds, as rank 0's agent observed them. Unknown phases are left out.
    Some overlap."""

    detect: Seconds = None
    """From the cause until the agent knew of it."""
    stop: Seconds = None
    """Until the worker processes of the last round were gone, with the time they had to save."""
    plan: Seconds = None
    """Until the agents had agreed on the new round."""
    fork: Seconds = None
    """Until all worker processes of the agent ran the script."""
    connect: Seconds = None
    """Until they had their process group."""
    interrupt: Seconds = None
    """In place: until the worker processes had ended or interrupted their step."""
    form: Seconds = None
    """In place: until they had the process group of the new world."""
    agree: Seconds = None
    """In place: until all had the same state."""
    restore: Seconds = None
    """To read a checkpoint."""
    first_step: Seconds = None
    """Until the first step of the new round was done."""


class Change(Model, frozen=True):
    """One change of the worker group."""

    time: Time
    """When the agents agreed on the new round; of other changes, when the operator saw it."""
    type: Annotated[str, Field(max_length=64)]
    """Round, Scaled, Suspended, Resumed, Succeeded or Failed."""
    reason: Annotated[str, Field(max_length=128)]
    """Cause, as one CamelCase word. Of a round: Start, WorkerFailed, MemberLost, MemberLeft, MemberJoined or Resized;
    of the end: the reason of the condition."""
    message: ChangeMessage = ""
    """Cause, for people."""
    run: Count = 1
    """Run of the job; each resume begins another one."""
    round: Count | None = None
    """Rendezvous round that began with this change."""
    world_size_before: Count = 0
    """Worker processes before the change."""
    world_size: Count = 0
    """Worker processes after it."""
    workers_before: Count = 0
    """Worker pods before the change; if the type is Scaled, requested before."""
    workers: Count = 0
    """Worker pods after it; if the type is Scaled, requested now."""
    restarts: Count = 0
    """Restarts because of failures so far, over the job's lifetime."""
    step: LongCount | None = None
    """Step that the training had last reported."""
    steps_lost: LongCount | None = None
    """Steps that the training repeats after this change, if known."""
    failure: Annotated[Text, Field(max_length=MAX_FAILURE_KIND)] | None = None
    """Kind of the failure that is the cause, as in lastFailure.reason, if one is."""
    form_seconds: Seconds = None
    """From the cause until the agents had agreed on the new round."""
    wait_seconds: Seconds = None
    """How much of that time the job had too few worker pods, if it had."""
    resume_seconds: Seconds = None
    """From the cause until the first step of the new round."""
    phases: Phases | None = None
    """What `resumeSeconds` consists of."""

    @property
    def caused_at(self) -> datetime.datetime:
        """Of a first round, which has no cause that is known: when rank 0's agent was there."""
        planned = self.phases.plan if self.phases is not None else None
        return self.time - datetime.timedelta(seconds=self.form_seconds or planned or 0.0)

    @property
    def resumed_at(self) -> datetime.datetime:
        """When training went on; of a round whose first step is unknown, when it began."""
        return max(self.time, self.caused_at + datetime.timedelta(seconds=self.resume_seconds or 0.0))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """How far the training was at one moment."""

    time: datetime.datetime
    step: int
    world_size: int
    steps_per_second: float | None = None
    counted: bool = False
    """The script reports no progress: `step` counts optimizer steps since the worker processes started."""

    def __str__(self) -> str:
        rate = "-" if self.steps_per_second is None else f"{self.steps_per_second:.4g}"
        counted = f" {COUNTED}" if self.counted else ""
        return f"{format_time(self.time)} {self.step} {self.world_size} {rate}{counted}"

    @classmethod
    def parse(cls, text: str) -> Sample | None:
        """None: it is not a sample, perhaps one of another version."""
        time = time_of(text)
        try:
            step, world_size, rate = text.split()[1:4]
            steps_per_second = None if rate == "-" else float(rate)
            if time is None or not math.isfinite(steps_per_second or 0.0):
                return None
            return cls(
                time=time,
                step=int(step),
                world_size=int(world_size),
                steps_per_second=steps_per_second,
                counted=text.split()[4:5] == [COUNTED],
            )
        except ValueError:
            return None


def time_of(sample: str) -> datetime.datetime | None:
    """The time of a sample, of which the rest is not parsed. None: it has none."""
    try:
        time = datetime.datetime.fromisoformat(sample.partition(" ")[0])
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


class History(Model, frozen=True):
    """Changes of the worker group, and samples of its progress. Bounded, so old ones are dropped."""

    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES, json_schema_extra=ATOMIC)] = ()
    """The newest changes, oldest first."""
    dropped: Causes = {}  # noqa: RUF012 pydantic copies defaults
    """How many older changes are no longer in the list, by reason."""
    samples: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_SAMPLE)], ...],
        Field(max_length=MAX_SAMPLES, json_schema_extra=ATOMIC),
    ] = ()
    """Progress over time, oldest first, each as `<time> <step> <world size> <steps per second>`; `-`: unknown. Of a
    script that reports no progress, the step is a count of optimizer steps, and the line ends with `counted`. They get
    fewer with time, but the first and the newest stay."""

    @property
    def progress(self) -> tuple[Sample, ...]:
        """The samples, parsed. Those that cannot be read are left out."""
        return tuple(sample for text in self.samples if (sample := Sample.parse(text)) is not None)

    @property
    def dropped_changes(self) -> int:
        return sum(self.dropped.values())


Series = list[tuple[datetime.datetime, float]]
"""(time, value), ordered by time."""


def world_sizes(history: History) -> Series:
    """The number of worker processes that train, as steps: each value holds until the next time. 0 from the cause of a
    change until training goes on, and in rounds that make no step."""
    series: Series = []
    idle = _idle(history)
    for index, change in enumerate(history.changes):
        if change.type == ChangeType.ROUND:
            if change.world_size_before and change.resumed_at > change.caused_at:
                _append(series, change.caused_at, 0)
            _append(series, change.resumed_at, 0 if index in idle else change.world_size)
        elif change.type != ChangeType.SCALED:
            _append(series, change.time, 0)
    return series


def step_rates(history: History) -> Series:
    """Steps per second, as steps: each value is the mean until the next time, with interruptions and repeated steps. 0
    from a suspension until training goes on."""
    samples = history.progress
    rates: dict[datetime.datetime, float] = {}
    for before, after in itertools.pairwise(samples):
        seconds = (after.time - before.time).total_seconds()
        if seconds > 0:
            pauses = _suspensions(history, before.time, after.time)
            if pauses:  # the rest may be shorter than the second to which times of samples are exact
                seconds = max(1.0, seconds - sum((end - begin).total_seconds() for begin, end in pauses))
            rates[before.time] = rate = max(0, after.step - before.step) / seconds
            for begin, end in pauses:
                rates[begin] = 0.0
                if end < after.time:
                    rates[end] = rate
    series = sorted(rates.items())
    return [*series, (samples[-1].time, series[-1][1])] if series else []


def repeated(history: History) -> tuple[int, bool]:
    """How many steps were trained again, and whether those are all: what a round repeats is known after its first step,
    if the script reports its steps."""
    known = not history.dropped
    for change in history.changes[1:]:
        if change.type == ChangeType.ROUND:
            known = change.steps_lost is not None
    return _repeats(history), known


def _repeats(history: History) -> int:
    """Steps that were trained again: those that agents reported, and those by which samples go back further."""
    rounds = [change for change in history.changes if change.type == ChangeType.ROUND]
    found = sum(entry.steps_lost or 0 for entry in rounds)
    reported = [sample for sample in history.progress if not sample.counted]
    for before, after in itertools.pairwise(reported):
        known = sum(entry.steps_lost or 0 for entry in rounds if before.time <= entry.time <= after.time)
        found += max(0, before.step - after.step - known)
    return found


def _idle(history: History) -> set[int]:
    """The rounds that made no step, by their index in the changes. None of them if the script reports no steps at
    all."""
    changes, samples = history.changes, history.progress
    if not samples and all(change.resume_seconds is None for change in changes):
        return set()
    found = set()
    for index, change in enumerate(changes):
        if change.type == ChangeType.ROUND and change.resume_seconds is None:
            later = next((change for change in changes[index + 1 :] if change.type != ChangeType.SCALED), None)
            end = later.caused_at if later else samples[-1].time if samples else change.time
            if not any(change.time <= sample.time <= end for sample in samples):
                found.add(index)
    return found


def _suspensions(
    history: History, since: datetime.datetime, until: datetime.datetime
) -> list[tuple[datetime.datetime, datetime.datetime]]:
    """Each from when no pod was left until training went on, as far as it is in that time."""
    found = []
    suspended = None
    for change in history.changes:
        if change.type == ChangeType.SUSPENDED:
            suspended = suspended or change.time
        elif change.type == ChangeType.ROUND and suspended is not None:
            begin, end = max(since, suspended), min(until, change.resumed_at)
            found += [(begin, end)] if begin < end else []
            suspended = None
    return found


def _append(series: Series, time: datetime.datetime, value: float) -> None:
    """Times never decrease, though the clocks of nodes differ."""
    series.append((max(time, series[-1][0]) if series else time, value))
