"""Virtual time: events in a heap, actors that handle one message at a time, and calls that take time while others
continue."""

from __future__ import annotations

import collections
import heapq
import itertools
import random
from collections.abc import Callable

Call = Callable[[], None]

MAX_DEPTH = 12
"""Calls that may be under way at once, one inside the other."""


class Killed(BaseException):
    """Thrown into code of an agent that was killed while it waited for the store."""


class Clock:
    """Virtual monotonic seconds and all future events. Deterministic: only the seed decides."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self.trace: list[str] = []
        self.slow = 1.0
        """Factor on all message delays."""
        self._heap: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._depth = 0

    def note(self, who: str, text: str) -> None:
        self.trace.append(f"{self.now - 1000:9.4f} {who:8} {text}")

    def later(self, delay: float, call: Call) -> None:
        heapq.heappush(self._heap, (self.now + max(0.0, delay), next(self._numbers), call))

    def latency(self) -> float:
        """The delay of one message; occasionally much longer than usual."""
        usual = self.random.expovariate(1 / 0.002)
        return self.slow * (usual if self.random.random() < 0.95 else self.random.uniform(0.0, 0.2))

    def local_latency(self) -> float:
        """The delay of a message within one machine."""
        return self.random.uniform(0.0, 0.001)

    def run_until(self, end: float) -> None:
        while self._heap and self._heap[0][0] <= end:
            at, _, call = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            call()
        self.now = max(self.now, end)

    def let_pass(self, seconds: float) -> None:
        """The caller waits while all others continue."""
        if self._depth >= MAX_DEPTH:
            return
        self._depth += 1
        try:
            self.run_until(self.now + seconds)
        finally:
            self._depth -= 1


class Actor:
    """A thread: handles its messages one after the other, in order; none while `stopped()`."""

    def __init__(
        self, clock: Clock, stopped: Callable[[], bool], after: Call, latency: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self._latency = latency or clock.latency
        self._stopped = stopped
        self._after = after
        self._inbox: collections.deque[Call] = collections.deque()
        self._scheduled = False
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._inbox

    def post(self, call: Call) -> None:
        self._inbox.append(call)
        self.wake()

    def wake(self) -> None:
        if not self._scheduled and not self._busy and self._inbox:
            self._scheduled = True
            self._clock.later(self._latency(), self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._busy or self._stopped() or not self._inbox:
            return
        self._busy = True
        try:
            self._inbox.popleft()()
            self._after()
        except Killed:
            self._inbox.clear()
        finally:
            self._busy = False
        self.wake()
