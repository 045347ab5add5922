"""The messages of one watch, bounded in memory and time, and a question to the server whenever it is silent for
long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from elasticjob_runtime.etcd import Event, StoreError, Unavailable, protocol

from elasticjob_operator.etcd import responses
from elasticjob_operator.etcd.connection import Connection
from elasticjob_operator.etcd.limits import PER_BYTE, PER_EVENT, PER_READ, TimeBudget

Json = dict[str, Any]

OPEN_SECONDS = 3.0
"""Opening a watch may take so long."""
STALL_SECONDS = 1.0
"""What the server knows of must come within that time."""
LINE_SECONDS = 10.0
"""A message that was begun must be complete within that time."""


class HistoryGone(Unavailable):
    """Changes from the asked revision on cannot be had any more: read everything again."""


class Stream:
    """`ask(revision)`: whether the server knows of changes since then; raises StoreError where it does not answer."""

    def __init__(
        self,
        connection: Connection,
        start: int,
        patience: Callable[[], float],
        ask: Callable[[int], Awaitable[bool]],
        budget: TimeBudget,
    ) -> None:
        self._connection = connection
        self._next = start
        self._patience = patience
        self._ask = ask
        self._budget = budget
        self._rest = bytearray()
        self._begun_at = 0.0
        """Since when `_rest` has something, monotonic, s."""
        self._stands = False
        self._opened = time.monotonic()

    async def next(self) -> list[tuple[Event, ...]]:
        """What comes next; `()` is an answer without news. Raises StoreError where the stream has ended or is dead,
        TooMuch."""
        messages = await self._read(self._patience() * random.uniform(0.8, 1.2) if self._stands else OPEN_SECONDS)  # noqa: S311 spreads load
        if messages is None and self._stands:
            messages = await self._probe()
            if not messages:
                return [()]
        events = [self._events(message) for message in messages or ()]
        if not self._stands and time.monotonic() - self._opened > OPEN_SECONDS:
            raise Unavailable(f"no watch within {OPEN_SECONDS:g} s")
        await self._pause(PER_EVENT * (len(events) + sum(map(len, events))))
        return events

    async def _read(self, seconds: float) -> list[Json] | None:
        """What comes next; None: nothing within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                piece = await self._connection.read_piece()
        except TimeoutError:
            self._check_line()
            return None
        if not piece:
            raise Unavailable("the watch stream ended")
        await self._pause(PER_READ + PER_BYTE * len(piece))
        if not self._rest:
            self._begun_at = time.monotonic()
        before = len(self._rest)
        self._rest += piece
        end = self._rest.rfind(b"\n", before)
        if end < 0:
            self._check_line()
            self._connection.hold(len(self._rest))
            return []
        lines = bytes(self._rest[:end]).split(b"\n")
        del self._rest[: end + 1]
        self._begun_at = time.monotonic()
        self._connection.hold(len(self._rest))
        return [responses.answer_of(200, line) for line in lines if line.strip()]

    def _check_line(self) -> None:
        if self._rest and time.monotonic() - self._begun_at > LINE_SECONDS:
            raise Unavailable(f"a message was not complete within {LINE_SECONDS:g} s")

    async def _probe(self) -> list[Json]:
        """Raises Unavailable where the server does not answer, or knows of changes that the stream does not bring."""
        if not await self._ask(self._next):
            return []
        messages = await self._read(STALL_SECONDS)
        if not messages:
            raise Unavailable("the watch does not bring what was written")
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
            self._stands = self._stands or bool(message.get("created"))
            events = tuple(protocol.event(item) for item in message.get("events", ()))
        except StoreError:
            raise
        except Exception as error:
            raise responses.garbled(error) from error
        if events:
            self._next = events[-1].mod_revision + 1
        return events
