"""The hang rule: no step for many times the usual. Pure; opt-in by --hang-factor."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

LEAST = 5
"""Steps that must have been timed before any can be missed: the first ones compile and warm caches."""

REMEMBERED = 101
"""Steps the median is taken of."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HangLimits:
    factor: float = 0.0
    """Missing for so many times the median: a hang; 0: never."""
    least: float = 30.0
    """s: nothing shorter is a hang."""


class StepTimes:
    """The steps that the local workers of one round reported. Times are monotonic, s."""

    def __init__(self) -> None:
        self._times: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._last: tuple[int, float] | None = None
        self._pause: tuple[float, float, str] | None = None
        """(until when, s, for what): the script has said that no step comes meanwhile."""

    def pause(self, seconds: float, why: str, now: float) -> None:
        """The next step may begin as late as so many seconds from now: an evaluation, a checkpoint. Of several the
        longest counts; the next step ends it."""
        if self._pause is None or now + seconds > self._pause[0]:
            self._pause = (now + seconds, seconds, why)

    def add(self, step: int, now: float) -> None:
        """Several ranks may report the same step: the first one counts. A report may skip steps."""
        if self._last is not None:
            before, at = self._last
            if step <= before:
                return
            if self._pause is None:
                self._times.append(now - at)
        self._last, self._pause = (step, now), None

    def deadline(self, limits: HangLimits) -> float | None:
        """When the next report is so late that it is a hang; None: there is no telling yet."""
        if not limits.factor or self._last is None or len(self._times) < LEAST:
            return None
        since = max(self._last[1], self._pause[0]) if self._pause is not None else self._last[1]
        due = since + max(limits.least, limits.factor * statistics.median(self._times))
        return due if math.isfinite(due) else None

    def hang(self, limits: HangLimits, now: float) -> str:
        """`hang: no step for 31 s, median 0.4 s`, with the pause that was asked for; empty: none."""
        deadline = self.deadline(limits)
        if deadline is None or now < deadline or self._last is None:
            return ""
        text = f"hang: no step for {now - self._last[1]:.3g} s, median {statistics.median(self._times):.2g} s"
        if self._pause is None:
            return text
        _, seconds, why = self._pause
        return f"{text}, though only {seconds:.3g} s were asked for{f' ({why})' if why else ''}"
