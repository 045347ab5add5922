"""A work queue of keys, like client-go's: a key is queued at most once, and never processed twice at the same time.

add(key)              now; while the key is being processed: right after
add_later(key)        like add, but after what is added in the next `LATER_SECONDS`
add_at(key, when)     at a time of the loop's clock; the earliest of several wins
add_aside(key)        like add, but occupies no worker; returns a future of its end
work(handle)          N workers call `await handle(key)`; an exception is logged and the key is requeued with
                      exponential backoff. A slow key occupies a worker for `WORKER_SECONDS` at most
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from elasticjob_operator import metrics

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_WAIT, MAX_WAIT = 0.25, 60.0
LATER_SECONDS = 60.0
"""Not for ever: what is added later gets its turn also where too much happens all the time."""
REFUSED_SECONDS = 900.0
"""How long to remember that a key was refused: some durations of the longest Lease."""
WORKER_SECONDS = 1.0
"""How long a reconciliation occupies a worker. A longer one waits for something - a webhook, a frozen etcd - and
continues without a worker; the next one of that key takes none at all."""
MAX_SLOW, SLOW_WAIT = 40, 0.25
"""Number of running reconciliations from which on a key known to be slow is delayed by `SLOW_WAIT`, s."""


class WorkQueue(Generic[K]):
    """`accepts(key)`: whether to process the key at all; asked when its turn would begin. `cooldown(key)`: minimum time
    between two runs of a key, s. Additions in the meantime are handled in one run; the first addition after a quiet
    time is not delayed."""

    def __init__(
        self, cooldown: Callable[[K], float] = lambda _: 0.0, accepts: Callable[[K], bool] = lambda _: True
    ) -> None:
        self._accepts = accepts
        self._cooldown = cooldown
        self._cooling: dict[K, float] = {}
        """Until when (monotonic, s)."""
        self._ready: asyncio.PriorityQueue[tuple[float, int, K]] = asyncio.PriorityQueue()
        """(when its turn is, number of the addition, key). Additions that `_turns` does not have are void."""
        self._turns: dict[K, float] = {}
        """When the turn of each waiting key is (monotonic, s): when it was added, or later."""
        self._numbers = itertools.count()
        self._refused: dict[K, float] = {}
        """When `accepts` refused what was added (monotonic, s), the latest last."""
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        """Added while being processed."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._slow: set[K] = set()
        """Keys whose last reconciliation exceeded `WORKER_SECONDS`."""
        self._aside: dict[K, asyncio.Future[None]] = {}
        """Keys that take no worker the next time, and what to tell when they were processed."""
        self._running: set[asyncio.Task[None]] = set()
        """Running, with a worker or without."""
        self._broken: asyncio.Future[None]

    def __len__(self) -> int:
        return len(self._turns) + len(self._dirty)

    @property
    def processing(self) -> Iterable[K]:
        """Keys that are being processed."""
        return self._processing

    @property
    def age(self) -> float:
        """How long a key has waited, at most, since its turn could have come, s."""
        turns = list(self._turns.values())  # at once: metrics are rendered in a thread
        return max(0.0, time.monotonic() - min(turns, default=math.inf))

    def refused_at(self, key: K) -> float:
        """When it was added that `accepts` refused (monotonic, s); -inf: not in the last `REFUSED_SECONDS`, or it was
        processed since."""
        return self._refused.get(key, -math.inf)

    def add(self, key: K) -> None:
        if not self._accepts(key):
            self._remember_refused(key)
        if key in self._processing:
            self._cancel_timer(key)
            self._dirty.add(key)
        elif (until := self._cooling.pop(key, 0.0)) > time.monotonic():
            self._cooling[key] = until
            self.add_at(key, until)
        else:
            self._put(key)

    def add_later(self, key: K) -> None:
        """For a key that nothing has happened to. What else it waits for, comes when it would without this."""
        if key in self._processing:
            self._dirty.add(key)
        elif (until := self._cooling.get(key, 0.0)) > time.monotonic():
            self.add_at(key, until)
        else:
            self._enqueue(key, LATER_SECONDS)

    def _remember_refused(self, key: K) -> None:
        now = time.monotonic()
        self._refused.pop(key, None)
        self._refused[key] = now
        while (first := next(iter(self._refused))) != key and self._refused[first] < now - REFUSED_SECONDS:
            del self._refused[first]

    def _put(self, key: K) -> None:
        self._cancel_timer(key)
        self._enqueue(key)

    def _enqueue(self, key: K, later: float = 0.0) -> None:
        if not self._accepts(key):
            if (aside := self._aside.pop(key, None)) is not None and not aside.done():
                aside.set_result(None)
            return
        turn = time.monotonic() + later
        if turn < self._turns.get(key, math.inf):
            self._turns[key] = turn
            self._ready.put_nowait((turn, next(self._numbers), key))

    def add_at(self, key: K, when: float) -> None:
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= when:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(max(when, loop.time()), self._on_timer, key)

    def add_aside(self, key: K) -> asyncio.Future[None]:
        """For what may take long and is not urgent. Done when the key was processed."""
        future = self._aside.setdefault(key, asyncio.get_running_loop().create_future())
        self.add(key)
        return future

    def forget(self, key: K) -> None:
        """Drops the timer, backoff and history of the key."""
        self._cancel_timer(key)
        self._failures.pop(key, None)
        self._cooling.pop(key, None)
        self._refused.pop(key, None)
        self._slow.discard(key)

    async def work(self, handle: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Until cancelled."""
        self._broken = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._worker(handle), name=f"reconcile-{number}") for number in range(workers)]
        try:
            await asyncio.gather(*tasks, self._broken)
        finally:
            self._broken.cancel()
            for task in (*tasks, *self._running):
                task.cancel()
            await asyncio.gather(*tasks, *self._running, return_exceptions=True)

    async def _worker(self, handle: Callable[[K], Awaitable[None]]) -> None:
        while True:
            turn, _, key = await self._ready.get()
            if self._turns.get(key) != turn:
                continue  # it came earlier
            del self._turns[key]
            self._refused.pop(key, None)
            waited = max(0.0, time.monotonic() - turn)
            if key in self._slow and len(self._running) >= MAX_SLOW:
                self.add_at(key, asyncio.get_running_loop().time() + SLOW_WAIT)
                continue
            metrics.QUEUE_WAIT.observe(waited)
            self._processing.add(key)
            aside = self._aside.pop(key, None)
            work = asyncio.create_task(self._process(handle, key))
            self._running.add(work)
            work.add_done_callback(self._on_process_done)
            if aside is not None:
                work.add_done_callback(lambda _, aside=aside: aside.done() or aside.set_result(None))  # type: ignore[misc]
            elif key not in self._slow:
                await asyncio.wait({work}, timeout=WORKER_SECONDS)

    async def _process(self, handle: Callable[[K], Awaitable[None]], key: K) -> None:
        began = time.monotonic()
        try:
            with metrics.RECONCILE.time():
                await handle(key)
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001  a bug in one job's handling must not stop the others
            self._on_failure(key, error)
        finally:
            self._processing.discard(key)
            (self._slow.add if time.monotonic() - began > WORKER_SECONDS else self._slow.discard)(key)
            if (seconds := self._cooldown(key)) > 0:
                self._cooling[key] = time.monotonic() + seconds
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)

    def _on_process_done(self, work: asyncio.Task[None]) -> None:
        """An exception that `_process` does not catch ends `work`."""
        self._running.discard(work)
        error = RuntimeError("a reconciliation was cancelled") if work.cancelled() else work.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _on_failure(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(MAX_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 20)) * random.uniform(0.75, 1.25)  # noqa: S311 spreads load
        expected = isinstance(error, ConnectionError) or hasattr(error, "status")
        log.warning("%s: %s; retrying in %.1f s", key, error, delay, exc_info=None if expected else error)
        self.add_at(key, asyncio.get_running_loop().time() + delay)

    def _on_timer(self, key: K) -> None:
        self._timers.pop(key, None)
        self._cooling.pop(key, None)
        if key in self._processing:
            self._dirty.add(key)
        else:
            self._put(key)

    def _cancel_timer(self, key: K) -> None:
        with contextlib.suppress(KeyError):
            self._timers.pop(key).cancel()
