"""Hang detection: when to ask what worker processes do that take no step, and what to do then. Pure.

That no step comes for many times the usual step time only *asks*: an evaluation of ten minutes looks the same. A
restart at once needs a process that keeps the others waiting and does nothing itself (culprit.py). Otherwise the hang
is only reported, and asked about again after twice the time, and so on. After `longest`, for which torch waits in a
collective, the processes are restarted, unless all of them are busy.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

from elasticjob_runtime.contract import SpecValue
from elasticjob_runtime.membership.culprit import Culprit

MIN_STEPS = 5
"""Steps that must have been timed before a hang can be detected: the first ones compile and warm caches."""

REMEMBERED = 101
"""Number of recent steps that the median is computed from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HangLimits:
    factor: float = 20.0
    """No step for this many times the median may be a hang; 0: hangs are not looked for."""
    least: float = 60.0
    """Seconds; nothing shorter is a hang."""
    longest: float = 1800.0
    """Seconds; what is longer always is one, unless `factor` or `least` say more."""
    restarts: bool = True
    """False: hangs are only reported."""


def limits_of(spec: SpecValue | None, own: HangLimits) -> HangLimits:
    """The agent's own, with what the job's spec says."""
    if spec is None:
        return own
    return HangLimits(
        factor=own.factor if spec.hang_factor is None else spec.hang_factor,
        least=own.least if spec.hang_min is None else spec.hang_min,
        longest=own.longest,
        restarts=own.restarts and spec.hang_restarts is not False,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """No step for long."""

    text: str
    """`no step for 75 s, median 0.4 s`, and the pause if one was announced."""
    final: bool
    """For as long as HangLimits.longest, and it was asked about before."""
    long: bool = False
    """For half as long. Hardly an evaluation or a save takes that long."""


def restarts(hang: Hang, culprit: Culprit, limits: HangLimits) -> bool:
    """Whether to restart the processes now."""
    return limits.restarts and ((hang.final and culprit.stuck) or bool(culprit.ranks and culprit.acts))


def is_certain(hang: Hang, culprit: Culprit) -> bool:
    """Whether something is wrong, and people should know. Evaluations and saves are not."""
    return hang.long or culprit.certain


class StepTimes:
    """The steps that the local workers of one round reported. Times are monotonic, s."""

    def __init__(self, unit: str = "step") -> None:
        """`unit`: what is counted instead of steps."""
        self._unit = unit
        self._times: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._last: tuple[int, float] | None = None
        self._alive_at = 0.0
        """The script trained then, whether or not that ended a step."""
        self._pause: tuple[float, float, str] | None = None
        """(until when, seconds, reason): the script announced that no step comes until then."""
        self._asked = 0.0
        """After how many seconds without a step it was asked last; 0: not yet."""
        self._asked_at = 0.0
        """When that was: later, if the machine stood still."""

    def pause(self, seconds: float, why: str, now: float) -> None:
        """Announces that the next step may begin up to `seconds` from now, for example to evaluate. Of several
        pauses the longest counts; the next step ends it."""
        if self._pause is None or now + seconds > self._pause[0]:
            self._pause = (now + seconds, seconds, why)
            self._asked = 0.0

    def add(self, step: int, now: float) -> None:
        """Records a step. If several ranks report the same one, the first counts. A report may skip steps. One of an
        earlier step shows that the script trains: its count begins again, or it has gone back."""
        if self._last is not None:
            before, at = self._last
            if step < before:
                self.alive(now)
            if step <= before:
                return
            if self._pause is None:
                self._times.append(now - at)
        self._took(step, now)

    def count(self, steps: int, at: float) -> None:
        """Records that `steps` steps are done, the last of them at `at`: like `add`, but the steps since the record
        before count as equally long, because only their number is known."""
        if self._last is not None:
            before, last = self._last
            if steps <= before:
                return
            if self._pause is None:
                taken = steps - before
                self._times.extend([(at - last) / taken] * min(taken, MIN_STEPS))
        self._took(steps, at)

    def alive(self, at: float) -> None:
        """The script trained at that time: in a minute without a step, all of whose gradients overflow, for example."""
        if self._last is not None and at > max(self._last[1], self._alive_at):
            self._alive_at, self._asked = at, 0.0

    def _took(self, step: int, at: float) -> None:
        self._last, self._pause, self._asked = (step, at), None, 0.0

    @property
    def last(self) -> tuple[int, float] | None:
        """The last step, and until when the script trained; None: there was none."""
        return (self._last[0], max(self._last[1], self._alive_at)) if self._last is not None else None

    def deadline(self, limits: HangLimits) -> float | None:
        """When to ask what the processes do; None: not known yet."""
        wait = self._wait(limits)
        if wait is None or self.last is None:
            return None
        due = max(self.last[1], self._pause[0] if self._pause is not None else 0.0) + wait
        if self._asked:
            due = max(due, self._asked_at + wait - self._asked)
        return due if math.isfinite(due) else None

    def hang(self, limits: HangLimits, now: float) -> Hang | None:
        """What to ask about now; each time only once."""
        deadline, wait = self.deadline(limits), self._wait(limits)
        if deadline is None or wait is None or now < deadline or self._last is None:
            return None
        asked_before = self._asked > 0.0
        self._asked, self._asked_at = wait, now
        text = f"no {self._unit} for {now - self._last[1]:.3g} s, median {statistics.median(self._times):.2g} s"
        if self._pause is not None:
            _, seconds, why = self._pause
            text = f"{text}, beyond the announced pause of {seconds:.3g} s{f' ({why})' if why else ''}"
        return Hang(text, final=asked_before and wait >= limits.longest, long=wait >= limits.longest / 2)

    def _wait(self, limits: HangLimits) -> float | None:
        """After how many seconds without a step to ask; None: not known yet."""
        if not limits.factor or len(self._times) < MIN_STEPS:
            return None
        first = max(limits.least, limits.factor * statistics.median(self._times))
        longest = max(first, limits.longest)
        if self._asked >= longest:
            return self._asked + longest
        return min(max(first, 2 * self._asked), longest)
