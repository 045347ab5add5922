"""Writes of progress, which wait for a budget that all jobs share: oldest first, at most so many a second. Changes of
state do not come here, so they are never behind progress.

A job waits once, however often it reports: what is written is what is known when its turn comes. The writes are tasks
of their own, so a slow API server delays other progress and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import logging
import time
from collections.abc import Awaitable, Callable

from elasticjob_operator.kube import ApiError
from elasticjob_operator.names import NamespacedName

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
"""Writes under way."""
RETRY_SECONDS = 30.0
"""Until a write that failed is tried again."""
NEVER = float("-inf")


@dataclasses.dataclass(slots=True)
class TokenBucket:
    """`rate` tokens a second, of which `burst` may be saved: full at first. Times in s."""

    rate: float
    burst: float
    _tokens: float = 0.0
    _at: float = NEVER

    def take(self, now: float) -> float:
        """Takes a token and returns 0, or returns how long there will be none. `rate` is above 0."""
        self._save(now)
        if self._tokens > 1 - 1e-9:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """From now on. No token is added."""
        self._save(now)
        self.rate, self.burst = rate, burst

    def _save(self, now: float) -> None:
        if self.rate > 0:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now


def _burst(rate: float) -> float:
    return max(1.0, min(rate, MOST_AT_ONCE))


@dataclasses.dataclass(slots=True)
class _Waiting:
    """Times are monotonic, s."""

    since: float
    due: float
    """When its turn comes, if the budget allows it."""
    latest: float
    """When the last progress was reported that waits."""


class ProgressLane:
    """`write(key)` may raise ApiError or ConnectionError: it is tried again later. `rate`: writes of all jobs a second;
    0: none. `pause`: between two writes of a job, `wait`: from the first report to its write, s."""

    def __init__(
        self, rate: float, write: Callable[[NamespacedName], Awaitable[None]], *, pause: float, wait: float = 0.0
    ) -> None:
        self._write = write
        self._pause = pause
        self._wait = wait
        self._changed = asyncio.Event()
        self._bucket = TokenBucket(rate, _burst(rate))
        self._waiting: dict[NamespacedName, _Waiting] = {}
        self._heap: list[tuple[float, NamespacedName]] = []
        """By `due`. An entry that differs from `_waiting` is outdated."""
        self._written_at: dict[NamespacedName, float] = {}
        self._running: set[asyncio.Task[None]] = set()

    def set_rate(self, rate: float) -> None:
        self._bucket.set_rate(rate, _burst(rate), time.monotonic())
        self._changed.set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def age(self) -> float:
        """How long the oldest progress has waited, s."""
        waiting = list(self._waiting.values())  # at once: metrics are rendered in a thread
        return time.monotonic() - min(one.since for one in waiting) if waiting else 0.0

    def add(self, key: NamespacedName) -> None:
        """The job has progress to write."""
        now = time.monotonic()
        if (waiting := self._waiting.get(key)) is not None:
            waiting.latest = now
        elif self._bucket.rate > 0:
            self._put(key, now, max(now + self._wait, self._written_at.get(key, NEVER) + self._pause))

    def _put(self, key: NamespacedName, since: float, due: float) -> None:
        self._waiting[key] = _Waiting(since, due, latest=since)
        heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def on_written(self, key: NamespacedName, decided_at: float) -> None:
        """Its progress was written together with something else, which had been decided then (monotonic, s): what was
        reported later still waits."""
        waiting, now = self._waiting.pop(key, None), time.monotonic()
        self._written_at[key] = now
        if waiting is not None and waiting.latest > decided_at:
            self._put(key, waiting.latest, max(waiting.latest + self._wait, now + self._pause))

    def forget(self, key: NamespacedName) -> None:
        self._waiting.pop(key, None)
        self._written_at.pop(key, None)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._changed.clear()
                wait = self._start_due(time.monotonic())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start_due(self, now: float) -> float | None:
        """Starts the writes that are due and within the budget. Returns after how long to look again, in s; None: after
        a change."""
        while self._heap and self._bucket.rate > 0 and len(self._running) < MOST_AT_ONCE:
            due, key = self._heap[0]
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.due == due:
                wait = max(0.0, due - now) or self._bucket.take(now)
                if wait > 0:
                    return wait
                del self._waiting[key]
                self._written_at[key] = now
                self._start(key, waiting)
            heapq.heappop(self._heap)
        return None

    def _start(self, key: NamespacedName, waiting: _Waiting) -> None:
        task = asyncio.create_task(self._run(key, waiting), name=f"progress of {'/'.join(key)}")
        self._running.add(task)
        task.add_done_callback(self._on_done)

    async def _run(self, key: NamespacedName, waiting: _Waiting) -> None:
        try:
            await self._write(key)
        except (ApiError, ConnectionError) as error:
            log.warning("Cannot write the progress of %s/%s, retrying in %.0f s: %s", *key, RETRY_SECONDS, error)
            self._put(key, waiting.since, time.monotonic() + RETRY_SECONDS)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A bug in writing progress", exc_info=error)
