"""The store of the simulation: etcd's semantics (etcd/memory_state.py), and watches over a network that delays and
cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.etcd.cursor import merge
from elasticjob_runtime.etcd.interface import Get, KeyRange, KeyValue, TxnResult, WatchCallback, WatchUpdate

from hack.embedded_etcd.memory_state import Compact, Compacted, Grant, State, StateOperation
from tests.unit.runtime.simulation.clock import Clock

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent


class Server:
    """One etcd. `on_change` is called after every change."""

    def __init__(self, clock: Clock, on_change: Callable[[Server], None]) -> None:
        self.clock = clock
        self.state = State(history=200)
        self.lifetime = 0
        """Grows whenever the data is lost or replaced."""
        self.up = True
        self.full = False
        """It has no space left: it rejects writes and grants no lease."""
        self.watches: list[Watch] = []
        self._on_change = on_change

    def apply(self, operation: StateOperation) -> TxnResult:
        before = self.state.revision
        try:
            return self.state.apply(operation, self.clock.now)
        finally:
            if isinstance(operation, Grant):
                self._expire_later()
            if self.state.revision != before:
                self._changed()

    def read(self, key: str) -> KeyValue | None:
        found = self.state.read(Get(KeyRange(key)))
        return found[0] if found else None

    def keys(self, prefix: str) -> list[KeyValue]:
        return list(self.state.read(Get(KeyRange.prefix(prefix))))

    def stop(self) -> None:
        self.up = False

    def start(self, data: State | None = None) -> None:
        """Starts with the data that it had, or with `data` as another lifetime."""
        self.up = True
        if data is not None:
            self.lifetime += 1
            self.state = data
            self._on_change(self)
        for lease in self.state._leases.values():  # a new etcd leader gives every lease its whole TTL again
            lease.expires_at = self.clock.now + lease.ttl
        self._expire_later()
        self.wake_watches()

    def compact(self, *, keep: int) -> None:
        """Drops all changes but those of the last `keep` revisions."""
        revision = self.state.revision - keep
        if revision > self.state.compacted:
            self.state.apply(Compact(revision), self.clock.now)

    def wake_watches(self) -> None:
        self.watches = [watch for watch in self.watches if not watch.ended]
        for watch in self.watches:
            watch.wake()

    def _changed(self) -> None:
        self._on_change(self)
        self.wake_watches()

    def _expire_later(self) -> None:
        due = self.state.next_expiry()
        if due is not None:
            self.clock.later(due - self.clock.now + 0.001, self._expire)

    def _expire(self) -> None:
        if not self.up:
            return
        before = self.state.revision
        self.state.expire(self.clock.now)
        if self.state.revision != before:
            self._changed()
        self._expire_later()


class Watch:
    """interface.Watch: a stream for each range, because etcd guarantees no order between them."""

    def __init__(
        self, server: Server, owner: Agent, ranges: Sequence[KeyRange], start: int, callback: WatchCallback
    ) -> None:
        self._server = server
        self._ranges = merge(ranges)
        self._callback = callback
        self._streams = [Stream(server, owner, span, start, callback, self._start_over) for span in self._ranges]

    @property
    def ended(self) -> bool:
        return all(stream.ended for stream in self._streams)

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    def wake(self) -> None:
        for stream in self._streams:
            stream.wake()

    def _start_over(self) -> None:
        server = self._server
        kvs = [kv for span in self._ranges for kv in server.state.read(Get(span))]
        for stream in self._streams:
            stream.resume()
        self._callback(WatchUpdate(server.state.revision, snapshot=tuple(sorted(kvs, key=lambda kv: kv.key))))


class Stream:
    """Wakes up after every change and delivers what is new."""

    def __init__(
        self,
        server: Server,
        owner: Agent,
        span: KeyRange,
        start: int,
        callback: WatchCallback,
        start_over: Callable[[], None],
    ) -> None:
        self._server = server
        self._owner = owner
        self._span = span
        self._start_over = start_over
        self._next = start
        self._lifetime = server.lifetime
        self._callback = callback
        self._scheduled = False
        self._cancelled = False

    @property
    def ended(self) -> bool:
        return self._cancelled or self._owner.dead

    def cancel(self) -> None:
        self._cancelled = True

    def wake(self) -> None:
        if not self._scheduled and not self.ended:
            self._scheduled = True
            self._server.clock.later(self._server.clock.latency(), self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        server = self._server
        if self.ended or self._owner.frozen or self._owner.cut_off or not server.up:
            return  # woken again afterwards
        try:
            if self._lifetime != server.lifetime:
                raise Compacted("another store")
            events = server.state.changes_since([self._span], self._next)
        except Compacted:
            self._start_over()
        else:
            self._next = server.state.revision + 1
            if events:
                self._callback(WatchUpdate(events[-1].mod_revision, tuple(events)))

    def resume(self) -> None:
        """Continues from the store's current revision."""
        self._lifetime, self._next = self._server.lifetime, self._server.state.revision + 1
