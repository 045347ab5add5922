"""A job's session with its etcd: reads the run's keys, watches them, and writes what the plan asks for.

The store's calls block, so they run on threads; its watch has a thread of its own, whose news are handed to the event loop. All state lives
on the loop. A session never gives up: what went wrong is in its view, and it tries again with a growing wait, or at once when nudged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, SpecValue
from elasticjob_runtime.etcd import (
    Delete,
    Denied,
    KeyRange,
    NotEtcd,
    Store,
    StoreError,
    Unavailable,
    Watch,
    WatchFailure,
    WatchUpdate,
)

from elasticjob_operator.planning import Target
from elasticjob_operator.rendezvous.keys import RunKeys
from elasticjob_operator.world import Reach, RendezvousView

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
"""Between two attempts, s: a job's own etcd is up within seconds, and an attempt costs one refused connection."""


class Session:
    """Use `close` to end it. `changed` is called on the loop whenever `view` differs."""

    def __init__(self, target: Target, open_store: Callable[[str], Store], executor: Executor, changed: Callable[[], None]) -> None:
        self.target = target
        self._keys = Keys(DEFAULT_PREFIX, target.run_id)
        self._run_keys = RunKeys(self._keys)
        self._open_store = open_store
        self._executor = executor
        self._changed = changed
        self._store: Store | None = None
        self._loop = asyncio.get_running_loop()
        self._nudged = asyncio.Event()
        self._trouble: asyncio.Future[StoreError] = self._loop.create_future()
        self._generation = 0
        """Of the watch: news of an older one are late and wrong."""
        self.view = RendezvousView()
        self._task = asyncio.create_task(self._run(), name=f"rendezvous {target.run_id}")

    def nudge(self, target: Target) -> None:
        """`target` has the same endpoint and run: try now, if waiting to try again."""
        self.target = target
        self._nudged.set()

    async def close(self) -> None:
        """Nothing is called after this returns."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._generation += 1
        if self._store is not None:
            self._loop.run_in_executor(self._executor, self._store.close)

    async def publish(self, spec: SpecValue) -> None:
        """Raises StoreError."""
        text = spec.to_json()
        await self._write(lambda store: store.put(self._keys.spec, text))
        self._run_keys.set(self._keys.spec, text)
        self._set_view(self._run_keys.view(Reach.REACHABLE))

    async def evict(self, member: str) -> None:
        """Raises StoreError."""
        await self._write(lambda store: store.txn((), [Delete(KeyRange(self._keys.member(member)))]))

    async def clear(self) -> None:
        """Deletes all keys of the run. Raises StoreError."""
        await self._write(lambda store: store.txn((), [Delete(KeyRange.prefix(self._keys.root))]))
        self._run_keys.replace(())
        self._set_view(self._run_keys.view(Reach.REACHABLE))

    async def _write(self, call: Callable[[Store], object]) -> None:
        if self._store is None:
            raise Unavailable(f"not connected to {self.target.endpoint} yet")
        try:
            await self._call(call, self._store)
        except StoreError as error:
            self._on_trouble(self._generation, error)
            raise

    async def _run(self) -> None:
        failures = 0
        while True:
            watch = None
            try:
                watch = await self._follow()
                failures = 0
                error = await self._trouble
            except StoreError as problem:
                error = problem
            except ValueError as problem:
                error = Denied(str(problem))
            finally:
                if watch is not None:
                    self._generation += 1
                    watch.cancel()
            self._say_unreachable(error)
            await self._wait(failures)
            failures += 1

    async def _follow(self) -> Watch:
        """Reads everything and watches from there. Raises StoreError, or ValueError where the endpoint is no address."""
        if self._store is None:
            self._store = self._open_store(self.target.endpoint)
        store = self._store
        self._trouble = self._loop.create_future()
        found = await self._call(lambda each: each.txn((), self._run_keys.reads), store)
        self._run_keys.replace(kv for kvs in found.reads for kv in kvs)
        self._set_view(self._run_keys.view(Reach.REACHABLE))
        generation = self._generation

        def on_news(news: WatchUpdate | WatchFailure) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the operator ends
                self._loop.call_soon_threadsafe(self._on_news, generation, news)

        return store.watch(self._run_keys.ranges, found.revision + 1, on_news)

    def _on_news(self, generation: int, news: WatchUpdate | WatchFailure) -> None:
        if generation != self._generation:
            return
        if isinstance(news, WatchFailure):
            self._on_trouble(generation, news.error)
            return
        self._run_keys.update(news)
        self._set_view(self._run_keys.view(Reach.REACHABLE))

    def _on_trouble(self, generation: int, error: StoreError) -> None:
        if generation == self._generation and not self._trouble.done():
            self._trouble.set_result(error)

    def _say_unreachable(self, error: StoreError) -> None:
        reach = Reach.DENIED if isinstance(error, Denied | NotEtcd) else Reach.UNREACHABLE
        if self.view.reach is not reach:
            log.warning("rendezvous %s at %s: %s", self.target.run_id, self.target.endpoint, error)
        self._set_view(self._run_keys.view(reach, str(error)))

    async def _wait(self, failures: int) -> None:
        delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures, 10))
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nudged.wait(), delay * random.uniform(0.75, 1.25))  # noqa: S311 spreads load

    async def _call(self, call: Callable[[Store], T], store: Store) -> T:
        return await self._loop.run_in_executor(self._executor, call, store)

    def _set_view(self, view: RendezvousView) -> None:
        if view != self.view:
            self.view = view
            self._changed()
