"""The store of the simulation: etcd's semantics (etcd/memory_state.py) behind a network that loses, delays and cuts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from elasticjob_runtime.etcd.cursor import merge
from elasticjob_runtime.etcd.interface import (
    Compare,
    Get,
    KeyRange,
    KeyValue,
    LeaseLost,
    Operation,
    Put,
    RangeResult,
    StoreError,
    TxnResult,
    Unavailable,
    WatchCallback,
    WatchUpdate,
)
from elasticjob_runtime.etcd.memory_state import (
    Compact,
    Compacted,
    Grant,
    KeepAlive,
    Revoke,
    State,
    StateOperation,
    Txn,
)

from tests.unit.runtime.simulation.clock import Clock, Killed

CALL_TIMEOUT = 1.0
"""s for which a call waits for a store that is out of reach."""


class Owner(Protocol):
    """The agent at the other end of a connection."""

    name: str
    dead: bool
    frozen: bool
    cut_off: bool
    """Does not reach the store."""
    lossy: bool
    """Answers of the store may get lost."""

    @property
    def now(self) -> float:
        """By its own monotonic clock."""


class Server:
    """One etcd. `checks` sees every change: (before, after) of the keys it asks for."""

    def __init__(self, clock: Clock, on_change: Callable[[Server], None]) -> None:
        self.clock = clock
        self.state = State(history=200)
        self.lifetime = 0
        """Grows whenever the data is lost."""
        self.up = True
        self.full = False
        """It has no space left: nothing is written, and no lease granted."""
        self.calls = 0
        """Calls of all agents."""
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
        """With the data that it had; or with `data`, as another lifetime."""
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
        """Forgets all changes but those of the last `keep` revisions."""
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


def _writes(operation: StateOperation) -> bool:
    if isinstance(operation, Txn):
        return any(isinstance(one, Put) for one in (*operation.success, *operation.failure))
    return isinstance(operation, Grant)


class Watch:
    """port.Watch: a stream for each range, as etcd gives no order between them."""

    def __init__(
        self, server: Server, owner: Owner, ranges: Sequence[KeyRange], start: int, callback: WatchCallback
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
            stream.goes_on()
        self._callback(WatchUpdate(server.state.revision, snapshot=tuple(sorted(kvs, key=lambda kv: kv.key))))


class Stream:
    """Wakes up after every change, delivers what is new."""

    def __init__(
        self,
        server: Server,
        owner: Owner,
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
            return  # woken again when that is over
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

    def goes_on(self) -> None:
        """From what the store holds now."""
        self._lifetime, self._next = self._server.lifetime, self._server.state.revision + 1


class Lease:
    """port.LeaseKeeper: renewed every third of its TTL while its owner is able to."""

    def __init__(self, server: Server, owner: Owner, number: int, ttl: float, on_lost: Callable[[str], None]) -> None:
        self.id = number
        self.expires_at = owner.now + ttl
        self._server = server
        self._owner = owner
        self._ttl = ttl
        self._on_lost = on_lost
        self._stopped = False
        server.clock.later(ttl / 3, self._renew)

    def stop(self) -> None:
        self._stopped = True

    def revoke(self) -> None:
        self._stopped = True
        if self._server.up and not self._owner.cut_off:
            with contextlib.suppress(LeaseLost):
                self._server.apply(Revoke(self.id))

    def _renew(self) -> None:
        if self._stopped or self._owner.dead:
            return
        pause = self._ttl / 3
        if self._owner.frozen or self._owner.cut_off or not self._server.up:
            pause = self._ttl / 20
        else:
            try:
                self._server.apply(KeepAlive(self.id))
                self.expires_at = self._owner.now + self._ttl
            except LeaseLost as error:
                self._stopped = True
                self._on_lost(str(error))
                return
        self._server.clock.later(pause, self._renew)


class Connection:
    """port.Store of one agent. Every call takes time, in which everybody else goes on."""

    def __init__(self, server: Server, owner: Owner, on_txn: Callable[[Sequence[Operation]], None]) -> None:
        self._server = server
        self._owner = owner
        self._on_txn = on_txn

    def get(self, key: str, *, timeout: float | None = None) -> KeyValue | None:
        kvs = self.range(Get(KeyRange(key)), timeout=timeout).kvs
        return kvs[0] if kvs else None

    def range(self, get: Get, *, timeout: float | None = None) -> RangeResult:
        result = self.txn((), (get,), timeout=timeout)
        return RangeResult(result.reads[0], result.revision)

    def put(self, key: str, value: str, *, lease: int = 0, timeout: float | None = None) -> int:
        return self.txn((), (Put(key, value, lease),), timeout=timeout).revision

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        result = self._call(Txn(compare, success, failure), CALL_TIMEOUT if timeout is None else timeout)
        if result.succeeded:
            self._on_txn(success)
            self._check_alive()
        return result

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> Lease:
        number = self._server.clock.random.getrandbits(40) + 1
        self._call(Grant(number, ttl), CALL_TIMEOUT)
        return Lease(self._server, self._owner, number, ttl, on_lost)

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> Watch:
        watch = Watch(self._server, self._owner, ranges, start_revision, callback)
        self._server.watches.append(watch)
        watch.wake()
        return watch

    def close(self) -> None:
        """Nothing to close."""

    def _call(self, operation: StateOperation, timeout: float) -> TxnResult:
        clock = self._server.clock
        self._travel()
        end = clock.now + timeout
        while self._owner.cut_off or not self._server.up:
            if clock.now >= end:
                raise Unavailable("no endpoint answered")
            before = clock.now
            clock.let_pass(0.1)
            if clock.now == before:
                raise Unavailable("no endpoint answered")
            self._check_alive()
        self._server.calls += 1
        try:
            if self._server.full and _writes(operation):
                raise StoreError("etcdserver: mvcc: database space exceeded")
            result: TxnResult | StoreError = self._server.apply(operation)
        except StoreError as error:
            result = error
        self._travel()
        if self._owner.cut_off or (self._owner.lossy and clock.random.random() < 0.5):
            raise Unavailable("the answer was lost")
        if isinstance(result, StoreError):
            raise result
        return result

    def _travel(self) -> None:
        self._server.clock.let_pass(self._server.clock.latency())
        self._check_alive()

    def _check_alive(self) -> None:
        while self._owner.frozen and not self._owner.dead:
            before = self._server.clock.now
            self._server.clock.let_pass(0.05)
            if self._server.clock.now == before:
                break
        if self._owner.dead:
            raise Killed
