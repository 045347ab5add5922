"""Which ranks are slow, so that all others wait for them in each step. Pure.

A rank's own time is what a step takes beyond waiting for other ranks. Its mean over a window counts, because a CPU
limit makes few steps very slow and leaves the others as they are. One slow window says nothing where machines are
busy: a rank is named after several in a row, and no longer after as many that were not slow.
"""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import PaceValue, PreflightValue, Straggler
from elasticjob_runtime.membership.preflight import COMPUTE

IN_A_ROW = 3
"""Windows."""
LEAST_EXCESS = 0.1
"""Of a step, by which a slow rank's own time exceeds the median of the others: less is not worth a name."""
THROTTLED = 0.1
"""Share of periods without CPU from which on a container's limit is a sign."""

SLOW_PREFLIGHT = 1.3
"""Times the median of the others, that a machine's computation took before it joined."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StragglerSettings:
    factor: float = 1.3
    """A rank is slow if its own time is this many times the median of the others; 0: none is."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A rank in one window. Times in s."""

    rank: int
    member: str
    own: float
    median: float
    step: float
    throttled: float

    @property
    def text(self) -> str:
        """
        >>> Slow(rank=1, member="a", own=0.061, median=0.031, step=0.062, throttled=0.6).text
        'own time 61 ms of a step of 62 ms, median of the others 31 ms; CPU limit reached in 60 % of the time'
        """
        own, step, median = (f"{1000 * seconds:.3g} ms" for seconds in (self.own, self.step, self.median))
        limit = f"; CPU limit reached in {self.throttled:.0%} of the time" if self.throttled >= THROTTLED else ""
        return f"own time {own} of a step of {step}, median of the others {median}{limit}".replace("%", " %")


def slow_ranks(paces: Mapping[str, PaceValue], factor: float) -> list[Slow]:
    """Those that are slow in the last windows of all members, slowest first."""
    own = {int(rank): seconds for pace in paces.values() for rank, seconds in pace.own_seconds.items()}
    if len(own) < 2 or not factor:
        return []
    step = statistics.median(pace.step_seconds for pace in paces.values())
    ordered = sorted(own.values())
    found = []
    for member, pace in paces.items():
        for rank in map(int, pace.own_seconds):
            median = _median_of_others(ordered, own[rank])
            if own[rank] > factor * median and own[rank] - median > LEAST_EXCESS * step:
                found.append(
                    Slow(
                        rank=rank,
                        member=member,
                        own=own[rank],
                        median=median,
                        step=step,
                        throttled=pace.throttled,
                    )
                )
    return sorted(found, key=lambda slow: slow.median - slow.own)


def _median_of_others(ordered: Sequence[float], value: float) -> float:
    """The median of all but one `value`. There may be thousands of them.

    >>> _median_of_others([1.0, 2.0, 4.0, 9.0], 9.0), _median_of_others([1.0, 2.0, 4.0], 2.0)
    (2.0, 2.5)
    """
    left_out, count = bisect.bisect_left(ordered, value), len(ordered) - 1
    middle = {(count - 1) // 2, count // 2}
    return statistics.fmean(ordered[index + (index >= left_out)] for index in middle)


def with_preflight(stragglers: Sequence[Straggler], reports: Mapping[str, PreflightValue]) -> list[Straggler]:
    """With the sign that the machine was slow before it joined. `reports`: of all members that ran the checks."""
    compute = {name: report.measured[COMPUTE] for name, report in reports.items() if COMPUTE in report.measured}
    found = []
    for straggler in stragglers:
        others = [seconds for name, seconds in compute.items() if name != straggler.member]
        own, signs = compute.get(straggler.member), list(straggler.signs)
        if own is not None and others and own > SLOW_PREFLIGHT * statistics.median(others):
            signs.append("its machine was slow in the preflight checks")
        found.append(dataclasses.replace(straggler, signs=signs))
    return found


class StragglerWatch:
    """Names ranks of one round from the windows of all its members."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._windows: dict[str, int] = {}
        """The last window of each member that was looked at."""
        self._in_a_row: dict[int, int] = {}
        """By rank, how many windows were slow, or if negative, not."""
        self._named: dict[int, Straggler] = {}

    def add(self, paces: Mapping[str, PaceValue]) -> list[Straggler] | None:
        """`paces`: of all members of the round. Returns the ranks that are named now, if that has changed."""
        before = self._named
        slow = {one.rank: one for one in slow_ranks(paces, self._factor)}
        self._named = {rank: before[rank] for rank in before if any(str(rank) in p.own_seconds for p in paces.values())}
        for member, pace in paces.items():
            if self._windows.get(member) == pace.window:
                continue
            self._windows[member] = pace.window
            for rank in map(int, pace.own_seconds):
                self._count(rank, slow.get(rank))
        if self._named.keys() == before.keys():
            return None
        return sorted(self._named.values(), key=lambda one: one.rank)

    def _count(self, rank: int, slow: Slow | None) -> None:
        count = self._in_a_row.get(rank, 0)
        self._in_a_row[rank] = count = max(1, count + 1) if slow is not None else min(-1, count - 1)
        if slow is not None and count >= IN_A_ROW and rank not in self._named:
            signs = ["its CPU limit slows it down"] if slow.throttled >= THROTTLED else []
            self._named[rank] = Straggler(rank=rank, member=slow.member, text=slow.text, signs=signs)
        elif -count >= IN_A_ROW:
            self._named.pop(rank, None)
