"""Hang detection: no step for many times the usual step time. Pure; enabled by --hang-factor."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

MIN_STEPS = 5
"""Steps that must have been timed before a hang can be detected: the first ones compile and warm caches."""

REMEMBERED = 101
"""Number of recent steps that the median is computed from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HangLimits:
    factor: float = 0.0
    """No step for this many times the median is a hang; 0: disabled."""
    least: float = 30.0
    """Seconds; nothing shorter is a hang."""


class StepTimes:
    """The steps that the local workers of one round reported. Times are monotonic, s."""

    def __init__(self) -> None:
        self._times: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._last: tuple[int, float] | None = None
        self._pause: tuple[float, float, str] | None = None
        """(until when, seconds, reason): the script announced that no step comes until then."""

    def pause(self, seconds: float, why: str, now: float) -> None:
        """Announces that the next step may begin up to `seconds` from now, for example to evaluate. Of several
        pauses the longest counts; the next step ends it."""
        if self._pause is None or now + seconds > self._pause[0]:
            self._pause = (now + seconds, seconds, why)

    def add(self, step: int, now: float) -> None:
        """Records a step. If several ranks report the same one, the first counts. A report may skip steps."""
        if self._last is not None:
            before, at = self._last
            if step <= before:
                return
            if self._pause is None:
                self._times.append(now - at)
        self._last, self._pause = (step, now), None

    def count(self, steps: int, at: float) -> None:
        """Records that `steps` steps are done, the last of them at `at`: like `add`, but the steps since the record
        before count as equally long, because only their number is known."""
        if self._last is not None:
            before, last = self._last
            if steps <= before:
                return
            if self._pause is None:
                self._times.append((at - last) / (steps - before))
        self._last, self._pause = (steps, at), None

    @property
    def known(self) -> bool:
        """Whether there was a step."""
        return self._last is not None

    def deadline(self, limits: HangLimits) -> float | None:
        """When the lack of a report becomes a hang; None: not known yet."""
        if not limits.factor or self._last is None or len(self._times) < MIN_STEPS:
            return None
        since = max(self._last[1], self._pause[0]) if self._pause is not None else self._last[1]
        due = since + max(limits.least, limits.factor * statistics.median(self._times))
        return due if math.isfinite(due) else None

    def hang(self, limits: HangLimits, now: float) -> str | None:
        """`hang: no step for 31 s, median 0.4 s`, and the pause if one was announced; None: no hang."""
        deadline = self.deadline(limits)
        if deadline is None or now < deadline or self._last is None:
            return None
        text = f"hang: no step for {now - self._last[1]:.3g} s, median {statistics.median(self._times):.2g} s"
        if self._pause is None:
            return text
        _, seconds, why = self._pause
        return f"{text}, beyond the announced pause of {seconds:.3g} s{f' ({why})' if why else ''}"
