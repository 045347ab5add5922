"""When to take a snapshot, and whether there is memory for it. Pure: time and measurements are parameters."""

from __future__ import annotations

BUDGET = 0.005
"""Part of the training time that snapshots may take. A snapshot that takes 0.15 s, and all processes lost once an hour:
with this, snapshots and repeated steps together cost the least (Young, "A first order approximation to the optimum
checkpoint interval", 1974)."""
LONGEST_INTERVAL = 1 << 20
"""Steps."""
SHARE_OF_FREE_MEMORY = 0.5
"""Snapshots must not bring about the OOM killer."""
_WEIGHT = 0.2
"""Of the latest step in the mean."""
_OUTLIER = 4.0
"""A step that takes longer than this many usual ones counts as this many: an evaluation, say."""


def interval(cost: float, step_seconds: float) -> int:
    """Steps from one snapshot to the next, so that snapshots of `cost` seconds stay within the budget.

    A power of two: processes that have measured different costs then still take most snapshots after the same steps,
    and do not wait for each other's.
    """
    steps = 1
    while steps < LONGEST_INTERVAL and cost > BUDGET * steps * step_seconds:
        steps *= 2
    return steps


def fits(needed: int, free: int | None) -> bool:
    """Whether to allocate `needed` bytes. free: bytes; None: unknown."""
    return free is None or needed <= SHARE_OF_FREE_MEMORY * free


class Pace:
    """After which steps of one training to take snapshots."""

    def __init__(self) -> None:
        self.cost: float | None = None
        """Of a snapshot, s; None: not known yet."""
        self._step_seconds: float | None = None
        self._last: float | None = None

    @property
    def interval(self) -> int:
        """Steps; what is repeated at most when all processes are lost."""
        if self.cost is None or self._step_seconds is None:
            return 1
        return interval(self.cost, self._step_seconds)

    def changed(self) -> None:
        """The world has changed: what comes before the next step is none."""
        self._last = None

    def is_due(self, step: int, now: float) -> bool:
        """Called after each step. now: monotonic time, s."""
        if self._last is not None:
            seconds, mean = max(0.0, now - self._last), self._step_seconds
            self._step_seconds = seconds if mean is None else mean + _WEIGHT * (min(seconds, _OUTLIER * mean) - mean)
        self._last = now
        return step % self.interval == 0

    def took(self, cost: float, now: float) -> None:
        """A snapshot took `cost` seconds, until `now`."""
        self.cost = cost if self.cost is None else (self.cost + cost) / 2
        self._last = now  # the next step does not begin before
