"""Training speed, from reports of steps."""

from __future__ import annotations

import collections


class RateMeter:
    """Steps per second over the reports of about the last ten seconds. Starts over when the step or the clock goes
    back."""

    WINDOW = 10.0
    GRAIN = 0.1
    """The minimum interval in s between two reports that are kept."""

    def __init__(self) -> None:
        self._reports: collections.deque[tuple[float, int]] = collections.deque()
        self._last = (0.0, 0)

    def rate(self, step: int, at: float) -> float:
        """Returns the rate after a report of `step` at time `at` (s)."""
        if at < self._last[0] or step < self._last[1]:
            self._reports.clear()
        self._last = (at, step)
        if not self._reports or at - self._reports[-1][0] >= self.GRAIN:
            self._reports.append((at, step))
        while len(self._reports) > 2 and at - self._reports[0][0] > self.WINDOW:
            self._reports.popleft()
        start, first = self._reports[0]
        return (step - first) / (at - start) if at > start else 0.0
