"""One watch for each etcd, over the prefix of all runs; each event goes to the run watch it concerns.

    get revision -> watch from there on -> read each run -> apply events until the stream breaks -> start over

A run is read after its watch is established, so no change is missed; `RunKeys` drops what it has already. After any
error everything is read again: decisions need the state, not its history. The watch never gives up: errors are shown in
the views of its runs, and it retries with a growing delay, or at once on `reconnect`. A stream that breaks and is
re-established at once is not reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
import random
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.contract import DEFAULT_PREFIX
from elasticjob_runtime.etcd import Denied, Event, KeyRange, Operation, StoreError, Unavailable

from elasticjob_operator.etcd.client import AsyncStore
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.responses import for_log
from elasticjob_operator.etcd.run_watch import RunWatch
from elasticjob_operator.tasks import Supervisor

log = logging.getLogger(__name__)

FIRST_WAIT = 0.1
MAX_WAIT = 10.0
"""Between two attempts, s: a job's own etcd is up within seconds, and its pod becoming ready triggers a reconnect."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner counts as a failure: the next attempt waits."""
TRAINING_PROBE_SECONDS, RESTING_PROBE_SECONDS = 10.0, 60.0
"""After so much silence of a watch, s, its etcd is probed: while one of its runs trains, and otherwise. A run that
reports progress is never silent for that long, so it is not probed. A thousand idle etcds cost about 1 % of a core."""
READS = 16
"""Runs read concurrently from one etcd."""

ROOT = f"{DEFAULT_PREFIX}/"
Write = tuple[Operation, Callable[[int], None]]


class SharedWatch:
    """`open_store` raises ValueError where the endpoint is not an address.

    An error, expected or not, affects only the runs that it concerns.
    """

    def __init__(
        self, endpoint: str, open_store: Callable[[str, TimeBudget], AsyncStore], supervisor: Supervisor
    ) -> None:
        self.endpoint = endpoint
        self._open_store = open_store
        self._supervisor = supervisor
        self._budget = TimeBudget(lambda: len(self._runs))
        self._runs: dict[str, RunWatch] = {}
        """By run id."""
        self._store: AsyncStore | None = None
        """None: not connected."""
        self._connected_at = math.inf
        self._answered_at: float | None = None
        """Monotonic time of the last response, s."""
        self._reconnect_requested = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)
        self._reading: dict[RunWatch, asyncio.Task[None]] = {}
        self._task = supervisor.start(self._keep_connected(), f"watch of etcd {endpoint}")
        self._following: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def answered_at(self) -> datetime.datetime | None:
        """When the etcd last responded; None: never."""
        if self._answered_at is None:
            return None
        age = datetime.timedelta(seconds=asyncio.get_running_loop().time() - self._answered_at)
        return datetime.datetime.now(datetime.timezone.utc) - age

    def add(self, run: RunWatch) -> None:
        self._runs[run.target.run_id] = run
        if self._store is not None:
            self._read(self._store, run)

    def remove(self, run: RunWatch) -> None:
        self._runs.pop(run.target.run_id, None)
        run.close()
        if reading := self._reading.pop(run, None):
            reading.cancel()

    def reconnect(self, *, replaced: bool) -> None:
        """The etcd has become ready: connect now. `replaced`: an open stream belongs to its predecessor."""
        self._reconnect_requested.set()
        if replaced and self._following is not None:
            self._following.cancel()

    async def close(self) -> None:
        """No callbacks after this returns."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        tasks = [*self._reading.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await self._supervisor.stop(self._task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self, run: RunWatch, write: Write) -> None:
        """Raises StoreError; then the run's view shows it, and `changed` is called once a retry may succeed."""
        operation, on_written = write
        store = self._store
        if store is None:
            run.on_failed_write()
            raise Unavailable(f"not connected to {self.endpoint} yet")
        try:
            result = await store.txn([operation])
        except StoreError as error:
            self.on_failed_write(run, error)
            raise
        self._on_answer()
        if self._runs.get(run.target.run_id) is run:
            run.failed_writes = 0
            on_written(result.revision)

    def on_failed_write(self, run: RunWatch, error: StoreError) -> None:
        """The run's view shows the error until the run was read again, after a delay."""
        run.on_failed_write()
        run.on_trouble(error)
        if self._store is not None and self._runs.get(run.target.run_id) is run:
            self._read(self._store, run)

    async def call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """A call about users and roles. Raises StoreError."""
        if self._store is None:
            raise Unavailable(f"not connected to {self.endpoint} yet")
        answer = await self._store.call(path, request)
        self._on_answer()
        return answer

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            self._connected_at = math.inf
            error = await self._connected_once()
            self._store = None
            if asyncio.get_running_loop().time() - self._connected_at > SHORT_SECONDS:
                failures = 0
                log.info("etcd at %s: %s", self.endpoint, for_log(error))
                continue  # reconnect at once; reported only if that fails
            for run in list(self._runs.values()):
                run.on_trouble(error)
            # The Service of an etcd whose pod has just become ready may still refuse connections for a moment: retry
            # often again.
            failures = 0 if await self._reconnect_requested_within(_delay(failures)) else failures + 1

    async def _connected_once(self) -> StoreError:
        """Connects and watches. Returns what ended it; `_store` is set if it was connected."""
        self._following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({self._following})
        finally:
            self._following.cancel()
            for reading in self._reading.values():
                reading.cancel()
            self._reading.clear()
        if self._following.cancelled():
            return Unavailable("reconnecting: the etcd was replaced")
        problem = self._following.exception()
        match problem:
            case StoreError():
                return problem
            case ValueError():
                return Denied(str(problem))
            case None:
                return Unavailable("the watch ended")
            case _:
                log.error("Fault in the watch of etcd at %s", self.endpoint, exc_info=problem)
                return _internal_error()

    async def _follow(self) -> None:
        store = self._open_store(self.endpoint, self._budget)
        try:
            start = await store.revision(ROOT) + 1
            self._on_answer()
            async with contextlib.aclosing(store.watch(KeyRange.prefix(ROOT), start, self._probe_after)) as stream:
                async for events in stream:
                    self._on_answer()
                    if self._store is None:
                        self._store = store
                        self._connected_at = asyncio.get_running_loop().time()
                        for run in self._runs.values():
                            self._read(store, run)
                    self._dispatch(events)
        finally:
            store.close()

    def _dispatch(self, events: tuple[Event, ...]) -> None:
        for event in events:
            run = self._runs.get(event.key[len(ROOT) :].partition("/")[0])
            if run is not None:
                try:
                    run.on_events((event,))
                except Exception:
                    log.exception("Fault in applying an event of %s", run.target.run_id)
                    run.on_trouble(_internal_error())

    def _read(self, store: AsyncStore, run: RunWatch) -> None:
        """Reads the run in the background."""
        if run in self._reading:
            return
        task = asyncio.create_task(self._read_until_done(store, run))
        self._reading[run] = task
        task.add_done_callback(lambda done: self._reading.pop(run, None) if self._reading.get(run) is done else None)

    async def _read_until_done(self, store: AsyncStore, run: RunWatch) -> None:
        """Retried for each run: etcd may reject one and serve the others."""
        failures = run.failed_writes
        while True:
            if failures:
                await asyncio.sleep(_delay(failures - 1))
            try:
                async with self._reads:
                    run.begin_reading()
                    found = await store.txn(run.reads)
                self._on_answer()
                run.on_state((kv for kvs in found.reads for kv in kvs), found.revision)
            except StoreError as error:
                failures += 1
                run.on_trouble(error)
                continue
            except Exception:
                log.exception("Fault in reading %s", run.target.run_id)
                failures += 1
                run.on_trouble(_internal_error())
                continue
            return

    def _on_answer(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()

    def _probe_after(self) -> float:
        """How long the watch may be silent before the etcd is probed, s. Short while a run trains: status must not
        report a healthy rendezvous for long while training is blocked by it."""
        trains = any(run.view.plan is not None and run.view.outcome is None for run in self._runs.values())
        return TRAINING_PROBE_SECONDS if trains else RESTING_PROBE_SECONDS

    async def _reconnect_requested_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._reconnect_requested.wait()
        requested = self._reconnect_requested.is_set()  # also if it was set just as the time ended
        self._reconnect_requested.clear()
        return requested


def _internal_error() -> StoreError:
    return StoreError("an internal error of the operator: see its log")


def _delay(failures: int) -> float:
    return min(MAX_WAIT, FIRST_WAIT * 2.0 ** min(failures, 10)) * random.uniform(0.75, 1.25)  # noqa: S311 spreads load
