"""One etcd and all sessions on it: one watch over the prefix of all runs, whose news are handed to the session they
concern.

    revision -> watch from there on -> read the state of each run -> news, until the stream breaks -> from the start

A run's state is read after the watch was asked for, so nothing falls between the two; `RunKeys` drops what it knows
already. After any trouble everything is read again: a state, not a history, is what decisions need. A hub never gives
up: what is wrong is in its sessions' views, and it tries again with a growing wait, or at once when nudged. A stream
that breaks and comes back at once is nobody's concern.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
import random
from collections.abc import Callable

from elasticjob_runtime.contract import DEFAULT_PREFIX
from elasticjob_runtime.etcd import Denied, Event, KeyRange, Operation, StoreError, Unavailable

from elasticjob_operator.etcd.client import Store
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.responses import for_log
from elasticjob_operator.etcd.run_watch import RunWatch
from elasticjob_operator.tasks import Supervisor

log = logging.getLogger(__name__)

FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
"""Between two attempts, s: a job's own etcd is up within seconds, and its pod's readiness nudges."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner was not worth having: the next attempt waits."""
TRAINING_PATIENCE, RESTING_PATIENCE = 10.0, 60.0
"""After so much silence of a watch, s, its etcd is asked a question: while a run of its trains, and else. A training
that reports its progress is never silent for that long, so asks nothing. With a thousand resting etcds it is about 1 %
of a core."""
READS = 16
"""States that are read at once, from one etcd."""

ROOT = f"{DEFAULT_PREFIX}/"
Written = tuple[Operation, Callable[[int], None]]


class SharedWatch:
    """Use `close` to end it. `open_store` raises ValueError where the endpoint is no address.

    What goes wrong here, foreseen or not, is trouble of the sessions that it concerns, and of nobody else.
    """

    def __init__(self, endpoint: str, open_store: Callable[[str, TimeBudget], Store], supervisor: Supervisor) -> None:
        self.endpoint = endpoint
        self._open_store = open_store
        self._supervisor = supervisor
        self._budget = TimeBudget(lambda: len(self._sessions))
        self._sessions: dict[str, RunWatch] = {}
        """By run id."""
        self._store: Store | None = None
        """None: not connected."""
        self._connected_at = math.inf
        self._answered_at: float | None = None
        """Monotonic time of the last answer, s."""
        self._nudged = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)
        self._reading: dict[RunWatch, asyncio.Task[None]] = {}
        self._task = supervisor.start(self._run(), f"hub of etcd {endpoint}")
        self._pump: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def answered_at(self) -> datetime.datetime | None:
        """When the etcd last answered anything; None: never yet."""
        if self._answered_at is None:
            return None
        age = datetime.timedelta(seconds=asyncio.get_running_loop().time() - self._answered_at)
        return datetime.datetime.now(datetime.timezone.utc) - age

    def add(self, session: RunWatch) -> None:
        self._sessions[session.target.run_id] = session
        if self._store is not None:
            self._read(self._store, session)

    def remove(self, session: RunWatch) -> None:
        self._sessions.pop(session.target.run_id, None)
        session.close()
        if reading := self._reading.pop(session, None):
            reading.cancel()

    def nudge(self, *, replaced: bool) -> None:
        """The etcd has come up: try now. `replaced`: a stream that still stands is its predecessor's."""
        self._nudged.set()
        if replaced and self._pump is not None:
            self._pump.cancel()

    async def close(self) -> None:
        """Nothing is called after this returns."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        tasks = [*self._reading.values(), *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await self._supervisor.stop(self._task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self, session: RunWatch, written: Written) -> None:
        """Raises StoreError; the session is told, and whoever asked is woken when it is worth another try."""
        operation, done = written
        store = self._store
        if store is None:
            session.on_failed_write()
            raise Unavailable(f"not connected to {self.endpoint} yet")
        try:
            result = await store.txn([operation])
        except StoreError as error:
            session.on_failed_write()
            session.on_trouble(error)
            if self._store is store and self._sessions.get(session.target.run_id) is session:
                self._read(store, session)
            raise
        self._on_answer()
        if self._sessions.get(session.target.run_id) is session:
            session.failed_writes = 0
            done(result.revision)

    async def _run(self) -> None:
        failures = 0
        while True:
            self._connected_at = math.inf
            error = await self._connected_once()
            self._store = None
            if asyncio.get_running_loop().time() - self._connected_at > SHORT_SECONDS:
                failures = 0
                log.info("etcd at %s: %s", self.endpoint, for_log(error))
                continue  # at once; nobody is told unless that fails
            for each in list(self._sessions.values()):
                each.on_trouble(error)
            # An etcd whose pod has just come up may still be refused by its service for a moment: from now on it is
            # tried often again.
            failures = 0 if await self._nudged_within(_delay(failures)) else failures + 1

    async def _connected_once(self) -> StoreError:
        """Connects and follows. Returns what ended it; `_store` is set if it had been connected."""
        self._pump = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({self._pump})
        finally:
            self._pump.cancel()
            for reading in self._reading.values():
                reading.cancel()
            self._reading.clear()
        if self._pump.cancelled():
            return Unavailable("connecting again: the etcd has been replaced")
        problem = self._pump.exception()
        match problem:
            case StoreError():
                return problem
            case ValueError():
                return Denied(str(problem))
            case None:
                return Unavailable("the watch ended")
            case _:
                log.error("following etcd at %s", self.endpoint, exc_info=problem)
                return _unforeseen()

    async def _follow(self) -> None:
        store = self._open_store(self.endpoint, self._budget)
        try:
            start = await store.revision(ROOT) + 1
            self._on_answer()
            async with contextlib.aclosing(store.watch(KeyRange.prefix(ROOT), start, self._patience)) as stream:
                async for events in stream:
                    self._on_answer()
                    if self._store is None:
                        self._store = store
                        self._connected_at = asyncio.get_running_loop().time()
                        for each in self._sessions.values():
                            self._read(store, each)
                    self._hand_out(events)
        finally:
            store.close()

    def _hand_out(self, events: tuple[Event, ...]) -> None:
        for event in events:
            session = self._sessions.get(event.key[len(ROOT) :].partition("/")[0])
            if session is not None:
                try:
                    session.on_events((event,))
                except Exception:
                    log.exception("news of %s", session.target.run_id)
                    session.on_trouble(_unforeseen())

    def _read(self, store: Store, session: RunWatch) -> None:
        """Reads the run's state, in the background."""
        if session in self._reading:
            return
        task = asyncio.create_task(self._read_until_done(store, session))
        self._reading[session] = task
        task.add_done_callback(
            lambda done: self._reading.pop(session, None) if self._reading.get(session) is done else None
        )

    async def _read_until_done(self, store: Store, session: RunWatch) -> None:
        """Of one run only: what refuses it may serve the others."""
        failures = session.failed_writes
        while True:
            if failures:
                await asyncio.sleep(_delay(failures - 1))
            try:
                async with self._reads:
                    session.begin_reading()
                    found = await store.txn(session.reads)
                self._on_answer()
                session.on_state((kv for kvs in found.reads for kv in kvs), found.revision)
            except StoreError as error:
                failures += 1
                session.on_trouble(error)
                continue
            except Exception:
                log.exception("reading the state of %s", session.target.run_id)
                failures += 1
                session.on_trouble(_unforeseen())
                continue
            return

    def _on_answer(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()

    def _patience(self) -> float:
        """For how long the watch may be silent before the etcd is asked whether it still lives, s: where training may
        stand still because of it, status must not say for long that all is well."""
        trains = any(each.view.plan is not None and each.view.outcome is None for each in self._sessions.values())
        return TRAINING_PATIENCE if trains else RESTING_PATIENCE

    async def _nudged_within(self, seconds: float) -> bool:
        nudged = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                nudged = await self._nudged.wait()
        self._nudged.clear()
        return nudged


def _unforeseen() -> StoreError:
    return StoreError("a fault of the operator's own, which its log tells of")


def _delay(failures: int) -> float:
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures, 10)) * random.uniform(0.75, 1.25)  # noqa: S311 spreads load
