"""A work queue of keys, as client-go's: a key is in it at most once, and never worked on twice at the same time.

add(key)              now. While the key is worked on: again right after
add_at(key, when)     at a time of the loop's clock; the earliest of several wins
work(handle)          N workers call `await handle(key)`; an exception is logged and the key comes again after a growing
                      wait. A worker waits for a slow key no longer than its budget
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from elasticjob_operator import metrics

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_WAIT, LONGEST_WAIT = 0.25, 60.0
BUDGET = 1.0
"""For how long a round holds a worker, s. One that takes longer waits for somebody - a webhook, an etcd that is frozen
- and does so without a worker from then on; the next round of such a key takes none at all."""
SLOW_ROUNDS, SLOW_WAIT = 40, 0.25
"""While so many rounds are under way, no other key that is known to be slow begins one; it looks again after so long,
s."""


class WorkQueue(Generic[K]):
    """`rest(key)`: for how long a key, once worked on, is left alone, s. What comes meanwhile is taken together; the
    first thing after a quiet time is not held up."""

    def __init__(self, rest: Callable[[K], float] = lambda _: 0.0) -> None:
        self._rest = rest
        self._resting: dict[K, float] = {}
        """Until when (monotonic, s)."""
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: dict[K, float] = {}
        """In `_ready`, in that order, and since when (monotonic, s)."""
        self._working: set[K] = set()
        self._again: set[K] = set()
        """Added while worked on."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._slow: set[K] = set()
        """Keys whose last round went beyond its budget."""
        self._rounds: set[asyncio.Task[None]] = set()
        """Under way, with a worker or without."""
        self._broken: asyncio.Future[None]

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    @property
    def age(self) -> float:
        """How long the key at the head has waited, s."""
        return time.monotonic() - next(iter(self._waiting.values())) if self._waiting else 0.0

    def add(self, key: K) -> None:
        if key in self._working:
            self._cancel_timer(key)
            self._again.add(key)
        elif (until := self._resting.pop(key, 0.0)) > time.monotonic():
            self._resting[key] = until
            self.add_at(key, until)
        else:
            self._put(key)

    def _put(self, key: K) -> None:
        self._cancel_timer(key)
        if key not in self._waiting:
            self._waiting[key] = time.monotonic()
            self._ready.put_nowait(key)

    def add_at(self, key: K, when: float) -> None:
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= when:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(max(when, loop.time()), self._on_timer, key)

    def forget(self, key: K) -> None:
        """No more waiting for that key, and its failures are forgiven."""
        self._cancel_timer(key)
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._slow.discard(key)

    async def work(self, handle: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Until cancelled."""
        self._broken = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._worker(handle), name=f"reconcile-{number}") for number in range(workers)]
        try:
            await asyncio.gather(*tasks, self._broken)
        finally:
            self._broken.cancel()
            for task in (*tasks, *self._rounds):
                task.cancel()
            await asyncio.gather(*tasks, *self._rounds, return_exceptions=True)

    async def _worker(self, handle: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self._ready.get()
            waited = time.monotonic() - self._waiting.pop(key)
            if key in self._slow and len(self._rounds) >= SLOW_ROUNDS:
                self.add_at(key, asyncio.get_running_loop().time() + SLOW_WAIT)
                continue
            metrics.QUEUE_WAIT.observe(waited)
            self._working.add(key)
            work = asyncio.create_task(self._round(handle, key))
            self._rounds.add(work)
            work.add_done_callback(self._on_round_done)
            if key not in self._slow:
                await asyncio.wait({work}, timeout=BUDGET)

    async def _round(self, handle: Callable[[K], Awaitable[None]], key: K) -> None:
        began = time.monotonic()
        try:
            with metrics.RECONCILE.time():
                await handle(key)
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001  one job's fault, whatever it is, must not stop the others
            self._on_failure(key, error)
        finally:
            self._working.discard(key)
            (self._slow.add if time.monotonic() - began > BUDGET else self._slow.discard)(key)
            if (seconds := self._rest(key)) > 0:
                self._resting[key] = time.monotonic() + seconds
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _on_round_done(self, work: asyncio.Task[None]) -> None:
        """What `_round` does not catch is no fault of a job: `work` ends with it."""
        self._rounds.discard(work)
        error = RuntimeError("somebody cancelled a round") if work.cancelled() else work.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _on_failure(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 20)) * random.uniform(0.75, 1.25)  # noqa: S311 spreads load
        expected = isinstance(error, ConnectionError) or hasattr(error, "status")
        log.warning("%s: %s; again in %.1f s", key, error, delay, exc_info=None if expected else error)
        self.add_at(key, asyncio.get_running_loop().time() + delay)

    def _on_timer(self, key: K) -> None:
        self._timers.pop(key, None)
        self._resting.pop(key, None)
        if key in self._working:
            self._again.add(key)
        else:
            self._put(key)

    def _cancel_timer(self, key: K) -> None:
        with contextlib.suppress(KeyError):
            self._timers.pop(key).cancel()
