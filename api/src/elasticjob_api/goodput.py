"""What a job's wall time was spent on, for `status.goodput`, metrics, `elasticjob describe` and `elasticjob plot`.

    divided = goodput(history, since=created, until=now)
    divided.seconds[TimePart.PRODUCTIVE], divided.low, divided.high

The parts add up to the wall time. A step is productive the first time that it is trained, and repeated after that. What
is not reported is unknown: the time after the newest sample, unless the agents say from which step training went
on, what stopped the steps for long before they went on, and a script that reports nothing at all. Pure.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from elasticjob_api.history import HANG, Change, ChangeType, History, Sample, Series

SLOW, LONG_SECONDS = 0.1, 30.0
"""Between two samples, steps came more rarely than this share of their usual rate, and that took so much longer, s: it
is an evaluation, a save, or a hang that ended by itself, and no training."""
CURVE_POINTS = 200
"""Of the share over time, about."""

Moment = datetime.datetime
_NEVER = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
_Point = tuple[Moment, float]
"""(time, step reached)."""


class TimePart(enum.StrEnum):
    """What a stretch of time was spent on."""

    PRODUCTIVE = "productive"
    """Steps that had not been trained before."""
    REPEATED = "repeated"
    """Steps that had been trained before, and were lost."""
    STARTING = "starting"
    """From the agreement on a round until its first step: processes start, connect and read a checkpoint. So are rounds
    that end before their first step."""
    FORMING = "forming"
    """From the cause of a change until the agents have agreed on the next round, with enough worker pods."""
    WAITING = "waiting"
    """For worker pods: for a queue, nodes, images or replacements."""
    HUNG = "hung"
    """From the last step that was reported until a hang was noticed."""
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with one use."""

    begin: Moment
    end: Moment
    part: TimePart

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class Goodput:
    """Wall time by what it was spent on."""

    seconds: Mapping[TimePart, float]
    """All parts; unused ones are 0."""

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    @property
    def active(self) -> float:
        """Without the time while the job was suspended."""
        return self.wall - self.seconds[TimePart.SUSPENDED]

    @property
    def low(self) -> float | None:
        """The share of the active time that was productive for certain. None: no step is known."""
        productive, unknown = self.seconds[TimePart.PRODUCTIVE], self.seconds[TimePart.UNKNOWN]
        return productive / self.active if self.active and (productive or not unknown) else None

    @property
    def high(self) -> float | None:
        """The share that it would be if all unknown time were productive."""
        low = self.low
        return None if low is None else low + self.seconds[TimePart.UNKNOWN] / self.active


def goodput(
    history: History, *, since: Moment | None = None, until: Moment | None = None, stalled: bool = False
) -> Goodput:
    """The parts of the time from `since`, by default the first change, to `until` or the end of the job.

    `stalled`: the job makes no progress now, so the time since its last step is a hang.
    """
    return _sum(spans(history, since=since, until=until, stalled=stalled))


def goodput_series(history: History, until: Moment | None = None) -> Series:
    """The productive share since the first change over time, to be drawn as a line: the share changes within each
    stretch, too. Empty if no step is known."""
    found = spans(history, until=until)
    if _sum(found).low is None:
        return []
    series: Series = [(found[0].begin, float(found[0].part is TimePart.PRODUCTIVE))]
    active = productive = 0.0
    for piece in _pieces(found):
        active += piece.seconds if piece.part is not TimePart.SUSPENDED else 0.0
        productive += piece.seconds if piece.part is TimePart.PRODUCTIVE else 0.0
        series.append((piece.end, productive / active if active else 0.0))
    return series


def _pieces(found: Sequence[Span]) -> Iterator[Span]:
    """The same spans, the long ones in several."""
    whole = found[-1].end - found[0].begin
    for span in found:
        length = span.end - span.begin
        count = math.ceil(CURVE_POINTS * (length / whole))
        ends = [span.begin + length * (index / count) for index in range(count + 1)]
        yield from (Span(begin, end, span.part) for begin, end in itertools.pairwise(ends))


def spans(
    history: History, *, since: Moment | None = None, until: Moment | None = None, stalled: bool = False
) -> tuple[Span, ...]:
    """One after the other, without gaps."""
    changes = [change for change in history.changes if change.type != ChangeType.SCALED]
    moments = [*([since] if since else []), *([changes[0].caused_at] if changes else [])]
    if not moments:
        return ()
    timeline = _Timeline(min(moments), _end(history, changes, until))
    steps = _Steps(timeline, history, stalled=stalled)
    between = TimePart.UNKNOWN if history.dropped else TimePart.WAITING
    for index, change in enumerate(changes):
        following = changes[index + 1] if index + 1 < len(changes) else None
        timeline.until(change.caused_at, between)
        if change.type == ChangeType.ROUND:
            _agreement(timeline, change, first=between is TimePart.WAITING)
            steps.of_round(change, following)
            between = TimePart.UNKNOWN
        else:
            timeline.until(change.time, between)
            between = TimePart.SUSPENDED if change.type == ChangeType.SUSPENDED else TimePart.WAITING
    timeline.until(timeline.end, between)
    return tuple(timeline.spans)


def _sum(found: Iterable[Span]) -> Goodput:
    seconds = dict.fromkeys(TimePart, 0.0)
    for span in found:
        seconds[span.part] += span.seconds
    return Goodput(MappingProxyType(seconds))


def _end(history: History, changes: list[Change], until: Moment | None) -> Moment:
    """The end of a finished job; else `until`, or the newest time that is known."""
    if changes and changes[-1].type in (ChangeType.SUCCEEDED, ChangeType.FAILED):
        return changes[-1].time
    samples = history.progress
    known = [*([until] if until else []), *([changes[-1].resumed_at] if changes else [])]
    return max([*known, *([samples[-1].time] if samples else [])], default=_NEVER)


def _agreement(timeline: _Timeline, change: Change, *, first: bool) -> None:
    """From the cause until the agents have agreed on the round."""
    if first:
        timeline.until(change.time, TimePart.WAITING)
        return
    waited = datetime.timedelta(seconds=change.wait_seconds or 0.0)
    timeline.until(change.time - waited, TimePart.FORMING)
    timeline.until(change.time, TimePart.WAITING)


class _Timeline:
    """Spans that follow each other: a time before the last one adds nothing, and one after the end is the end."""

    def __init__(self, begin: Moment, end: Moment) -> None:
        self.spans: list[Span] = []
        self.end = end
        self.now = begin

    def until(self, time: Moment, part: TimePart) -> None:
        time = min(time, self.end)
        if time <= self.now:
            return
        if self.spans and self.spans[-1].part is part:
            self.spans[-1] = Span(self.spans[-1].begin, time, part)
        else:
            self.spans.append(Span(self.now, time, part))
        self.now = time


class _Steps:
    """Divides the time of rounds by which steps are trained in them."""

    def __init__(self, timeline: _Timeline, history: History, *, stalled: bool) -> None:
        self._timeline = timeline
        self._samples = history.progress
        self._stalled = stalled
        self._silent = not self._samples and all(change.resume_seconds is None for change in history.changes)
        """The script reports no steps, or has taken none."""
        self._highest = -1.0
        """Highest step that was trained."""
        self._counted_before = math.inf if history.dropped else 0.0
        """Optimizer steps that earlier rounds have taken: the most that a round can repeat."""
        self._rate: float | None = None
        """Steps per second, as last known."""

    def of_round(self, change: Change, following: Change | None) -> None:
        """From the agreement on the round until the cause of the change that follows, or the end."""
        stop = self._timeline.end if following is None else max(following.caused_at, change.time)
        samples = self._of_round(change, following, stop)
        if not samples and change.resume_seconds is None:
            self._timeline.until(stop, TimePart.UNKNOWN if self._silent else TimePart.STARTING)
            return
        if change.resume_seconds is not None:
            self._timeline.until(min(change.resumed_at, stop), TimePart.STARTING)
        hung = following.failure == HANG if following is not None else self._stalled
        if samples and samples[-1].counted:
            self._counted(change, [sample for sample in samples if sample.counted], stop)
        else:
            goes_on = following is not None and following.steps_lost is not None and not hung
            self._reported(change, [sample for sample in samples if not sample.counted], stop if goes_on else None)
        self._timeline.until(stop, TimePart.HUNG if hung else TimePart.UNKNOWN)

    def _of_round(self, change: Change, following: Change | None, stop: Moment) -> list[Sample]:
        """Its samples. Those of earlier rounds raise the highest step."""
        before = [sample for sample in self._samples if _precedes(sample, change)]
        self._highest = max([self._highest, *(sample.step for sample in before if not sample.counted)])
        found = [
            dataclasses.replace(sample, time=min(sample.time, stop))
            for sample in self._samples[len(before) :]
            if (following is None or _precedes(sample, following)) and sample.time <= self._timeline.end
        ]
        self._rate = _rate(found) or self._rate
        return found

    def _counted(self, change: Change, samples: list[Sample], stop: Moment) -> None:
        """Optimizer steps are counted from the start of the processes, which may have read a checkpoint or not: only
        what exceeds all earlier ones is new for certain."""
        points = [(sample.time, float(sample.step)) for sample in samples]
        if change.resume_seconds is None:
            self._timeline.until(points[0][0], TimePart.UNKNOWN)
        else:
            points = [(self._timeline.now, 1.0), *points]
        self._divide(points, self._counted_before, TimePart.UNKNOWN)
        last, count = points[-1]
        unseen = max(0.0, (stop - last).total_seconds())
        self._counted_before += count + unseen * self._rate if self._rate else math.inf

    def _reported(self, change: Change, samples: list[Sample], goes_on: Moment | None) -> None:
        """`goes_on`: until then the round trained, as its agents say; None: only the samples say how long."""
        points = [(sample.time, float(sample.step)) for sample in samples]
        if change.resume_seconds is not None:
            points = [*self._first_step(change, points), *points]
        if not points:
            return
        self._timeline.until(points[0][0], TimePart.UNKNOWN)
        if goes_on is not None and self._rate:
            seconds = max(0.0, (goes_on - points[-1][0]).total_seconds())
            points.append((goes_on, points[-1][1] + seconds * self._rate))
        self._divide(points, self._highest, TimePart.REPEATED)

    def _first_step(self, change: Change, points: list[_Point]) -> list[_Point]:
        """When and at which step the round began, if that can be told. Then the steps that it repeats, if they are
        known, say how far the last round had come."""
        if self._rate is None:
            return []
        resumed = self._timeline.now
        if points:
            step = points[0][1] - max(0.0, (points[0][0] - resumed).total_seconds()) * self._rate
        elif change.steps_lost is not None and self._highest >= 0:
            step = self._highest - change.steps_lost + 1
        else:
            return []
        if change.steps_lost is not None:
            self._highest = max(self._highest, step + change.steps_lost - 1)
        return [(resumed, step)]

    def _divide(self, points: list[_Point], highest: float, again: TimePart) -> None:
        """The time between samples. Steps up to `highest` are `again`."""
        for (begin, first), (end, last) in itertools.pairwise(points):
            if last < first:  # the training went back in between, and the moment is unknown
                self._timeline.until(end, TimePart.UNKNOWN)
            elif last < highest:
                self._timeline.until(end, again)
            elif first < highest:
                self._timeline.until(begin + (end - begin) * ((highest - first) / (last - first)), again)
            self._timeline.until(end - self._without_steps(end - begin, last - first), TimePart.PRODUCTIVE)
            self._timeline.until(end, TimePart.UNKNOWN)
            highest = max(highest, first)

    def _without_steps(self, time: datetime.timedelta, steps: float) -> datetime.timedelta:
        """The part of `time`, in which so many steps were trained, that these steps did not take."""
        if not self._rate or steps < 0 or steps >= SLOW * self._rate * time.total_seconds():
            return datetime.timedelta()
        rest = time - datetime.timedelta(seconds=steps / self._rate)
        return rest if rest.total_seconds() > LONG_SECONDS else datetime.timedelta()


def _precedes(sample: Sample, change: Change) -> bool:
    """Whether the sample is older than the change. Both have whole seconds, and a round may begin in the same one."""
    is_last = change.type != ChangeType.ROUND or sample.step == change.step
    return sample.time < change.time or (sample.time == change.time and is_last)


def _rate(samples: list[Sample]) -> float | None:
    """Steps per second of a round: as first reported, else from its first two samples."""
    reported = (sample.steps_per_second for sample in samples if sample.steps_per_second)
    pairs = (
        (before, after, (after.time - before.time).total_seconds()) for before, after in itertools.pairwise(samples)
    )
    measured = (
        (after.step - before.step) / seconds
        for before, after, seconds in pairs
        if seconds > 0 and after.step > before.step
    )
    return next(itertools.chain(reported, measured), None)
