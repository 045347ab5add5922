"""The messages of one watch, bounded in memory and time, with a probe whenever the server is silent for long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from elasticjob_runtime.etcd import Event, StoreError, Unavailable, protocol

from elasticjob_operator.etcd import responses
from elasticjob_operator.etcd.connection import HttpConnection
from elasticjob_operator.etcd.limits import PER_BYTE, PER_EVENT, PER_READ, TimeBudget

Json = dict[str, Any]

OPEN_SECONDS = 3.0
"""Timeout for opening a watch, s."""
STALL_SECONDS = 1.0
"""Changes that the server knows of must arrive within this time, s."""
LINE_SECONDS = 10.0
"""A message must be complete within this time after its first byte, s."""


class HistoryGone(Unavailable):
    """Changes from the requested revision on were compacted: read everything again."""


class WatchStream:
    """`has_changes(revision)`: whether the server has changes since then; raises StoreError where it is unreachable."""

    def __init__(
        self,
        connection: HttpConnection,
        start: int,
        probe_after: Callable[[], float],
        has_changes: Callable[[int], Awaitable[bool]],
        budget: TimeBudget,
    ) -> None:
        self._connection = connection
        self._next = start
        self._probe_after = probe_after
        self._has_changes = has_changes
        self._budget = budget
        self._partial = bytearray()
        self._partial_since = 0.0
        """Since when `_partial` has something, monotonic, s."""
        self._created = False
        self._opened = time.monotonic()

    async def next(self) -> list[tuple[Event, ...]]:
        """The next events; `()`: the server responded without any. Raises StoreError where the stream has ended or is
        dead, LimitExceeded."""
        messages = await self._read(self._probe_after() * random.uniform(0.8, 1.2) if self._created else OPEN_SECONDS)  # noqa: S311 spreads load
        if messages is None and self._created:
            messages = await self._probe()
            if not messages:
                return [()]
        events = [self._events(message) for message in messages or ()]
        if not self._created and time.monotonic() - self._opened > OPEN_SECONDS:
            raise Unavailable(f"no watch within {OPEN_SECONDS:g} s")
        await self._pause(PER_EVENT * (len(events) + sum(map(len, events))))
        return events

    async def _read(self, seconds: float) -> list[Json] | None:
        """The next messages; None: none within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                piece = await self._connection.read_piece()
        except TimeoutError:
            self._check_line()
            return None
        if not piece:
            raise Unavailable("the watch stream ended")
        await self._pause(PER_READ + PER_BYTE * len(piece))
        if not self._partial:
            self._partial_since = time.monotonic()
        before = len(self._partial)
        self._partial += piece
        end = self._partial.rfind(b"\n", before)
        if end < 0:
            self._check_line()
            self._connection.hold(len(self._partial))
            return []
        lines = bytes(self._partial[:end]).split(b"\n")
        del self._partial[: end + 1]
        self._partial_since = time.monotonic()
        self._connection.hold(len(self._partial))
        return [responses.answer_of(200, line) for line in lines if line.strip()]

    def _check_line(self) -> None:
        if self._partial and time.monotonic() - self._partial_since > LINE_SECONDS:
            raise Unavailable(f"a message was not complete within {LINE_SECONDS:g} s")

    async def _probe(self) -> list[Json]:
        """Raises Unavailable where the server does not respond, or has changes that the stream does not deliver."""
        if not await self._has_changes(self._next):
            return []
        messages = await self._read(STALL_SECONDS)
        if not messages:
            raise Unavailable("the watch does not deliver changes")
        return messages

    async def _pause(self, seconds: float) -> None:
        wait = self._budget.spend(seconds, time.monotonic())
        if wait is not None:
            await asyncio.sleep(wait)

    def _events(self, message: Json) -> tuple[Event, ...]:
        """Raises StoreError."""
        try:
            if message.get("canceled"):
                raise (
                    HistoryGone("compacted")
                    if message.get("compact_revision")
                    else responses.cancelled(message.get("cancel_reason"))
                )
            self._created = self._created or bool(message.get("created"))
            events = tuple(protocol.event(item) for item in message.get("events", ()))
        except StoreError:
            raise
        except Exception as error:
            raise responses.malformed(error) from error
        if events:
            self._next = events[-1].mod_revision + 1
        return events
