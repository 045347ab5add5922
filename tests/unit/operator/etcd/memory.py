"""The operator's Store over the store in memory, with faults at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from elasticjob_runtime.etcd import (
    Event,
    Get,
    KeyRange,
    Operation,
    StoreError,
    TxnResult,
    Unavailable,
    WatchFailure,
    WatchUpdate,
)

from hack.embedded_etcd.memory import MemoryStore


class Memory:
    """`fault`: what every call raises while it is set. `cut()`: ends the watches."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.fault: StoreError | None = None
        self.write_error: StoreError | None = None
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.watches = 0
        """Opened so far."""
        self._cut = asyncio.Event()

    def cut(self) -> None:
        self._cut.set()
        self._cut = asyncio.Event()

    def close(self) -> None:
        pass

    async def call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Records calls about users; all succeed."""
        self._maybe_fail()
        self.calls.append((path, request))
        return {}

    async def revision(self, key: str) -> int:
        assert key
        self._maybe_fail()
        return self.store.revision

    async def txn(self, operations: Sequence[Operation]) -> TxnResult:
        self._maybe_fail()
        if self.write_error is not None and not all(isinstance(operation, Get) for operation in operations):
            raise self.write_error
        return self.store.txn((), operations)

    async def watch(
        self, keys: KeyRange, start: int, probe_after: Callable[[], float]
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        assert probe_after() > 0
        self._maybe_fail()
        self.watches += 1
        cut, loop = self._cut, asyncio.get_running_loop()
        news: asyncio.Queue[WatchUpdate | WatchFailure] = asyncio.Queue()

        def on_news(each: WatchUpdate | WatchFailure) -> None:
            loop.call_soon_threadsafe(news.put_nowait, each)

        watch = self.store.watch([keys], start, on_news)
        try:
            yield ()
            while True:
                ended, update = asyncio.ensure_future(cut.wait()), asyncio.ensure_future(news.get())
                await asyncio.wait((ended, update), return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if not update.done():
                    update.cancel()
                    raise Unavailable("cut")
                item = update.result()
                assert isinstance(item, WatchUpdate)
                yield item.events
        finally:
            watch.cancel()

    def _maybe_fail(self) -> None:
        if self.fault is not None:
            raise self.fault
