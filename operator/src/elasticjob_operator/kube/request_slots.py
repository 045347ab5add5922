"""Concurrency limits for requests: in total and per owner, with owners taking turns."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Hashable


class FairSlots:
    """At most `limit` slots are held at once, at most `each` by one owner. Waiting requests are served round-robin by
    owner.

    So an owner that needs a thousand slots delays others by its running requests, not by its waiting ones; and one
    whose requests hang holds `each` slots and no more.
    """

    def __init__(self, limit: int, each: int) -> None:
        self._free = limit
        self._each = each
        self._held: collections.Counter[Hashable] = collections.Counter()
        self._waiting: dict[Hashable, collections.deque[asyncio.Future[None]]] = {}
        """By owner, the next to be served first."""

    @contextlib.asynccontextmanager
    async def hold(self, owner: Hashable) -> AsyncIterator[None]:
        await self._take(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    async def _take(self, owner: Hashable) -> None:
        if self._free > 0 and self._held[owner] < self._each and owner not in self._waiting:
            self._free -= 1
            self._held[owner] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, collections.deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(owner)  # it was served at the same moment
            else:
                self._leave(owner, turn)
            raise

    def _give_back(self, owner: Hashable) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while self._free > 0 and (served := self._next()) is not None:
            self._free -= 1
            self._held[served] += 1

    def _next(self) -> Hashable | None:
        """Serves the next owner that may have one more; None: there is none."""
        for owner, queue in self._waiting.items():
            if self._held[owner] < self._each:
                turn = queue.popleft()
                del self._waiting[owner]
                if queue:
                    self._waiting[owner] = queue  # behind the others
                turn.set_result(None)
                return owner
        return None

    def _leave(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is not None:
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]
