"""The in-memory store: etcd's semantics for the threads of one process, for tests and the embedded server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.callbacks import Delivery
from elasticjob_runtime.etcd.cursor import merge
from elasticjob_runtime.etcd.interface import (
    Compare,
    Event,
    Get,
    KeyRange,
    KeyValue,
    Operation,
    Store,
    TxnResult,
    Unavailable,
    WatchCallback,
    WatchFailure,
    WatchUpdate,
)
from elasticjob_runtime.etcd.lease import KeptLease, new_lease_id

from hack.embedded_etcd.memory_state import (
    HISTORY,
    Compact,
    Compacted,
    Grant,
    KeepAlive,
    Revoke,
    State,
    StateOperation,
    Txn,
)

log = logging.getLogger(__name__)


class MemoryStore(Store):
    """Any number of clients in a process may share one store.

    `clock` (seconds) decides when leases expire; a test that passes its own clock calls `tick` after advancing it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, history: int = HISTORY) -> None:
        self._clock = clock
        self._state = State(history)
        self._changed = threading.Condition()
        self._closed = False
        self._watches: set[MemoryWatch] = set()
        self._leases: set[KeptLease] = set()
        self._reaper: threading.Thread | None = None

    # interface.Store

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,  # noqa: ARG002 - nothing here waits
    ) -> TxnResult:
        protocol.check_txn(success, failure, guards=compare)
        return self.apply(Txn(compare, success, failure))

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> KeptLease:
        number = new_lease_id()
        started = self._clock()
        self.apply(Grant(number, ttl))

        def renew() -> float:
            self.apply(KeepAlive(number))
            return ttl

        def revoke() -> None:
            self.apply(Revoke(number))

        lease = KeptLease(
            number,
            ttl,
            started,
            renew,
            revoke,
            on_lost,
            interrupt=lambda: None,
            on_end=self._leases.discard,
            clock=self._clock,
        )
        self._leases.add(lease)
        return lease

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> MemoryWatch:
        protocol.check_revision(start_revision)
        watch = MemoryWatch(self, merge(ranges), start_revision, Delivery(callback), self._watches.discard)
        self._watches.add(watch)
        return watch

    def close(self) -> None:
        for lease in list(self._leases):
            lease.stop()
        for watch in list(self._watches):
            watch.cancel()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the embedded server and tests

    def apply(self, operation: StateOperation) -> TxnResult:
        """Applies one operation to the state machine. Raises StoreError."""
        with self._changed:
            if self._closed:
                raise Unavailable("the store was closed")
            before = self._state.revision
            try:
                return self._state.apply(operation, self._clock())
            finally:
                if self._state.revision != before or isinstance(operation, Grant | Compact):
                    self._changed.notify_all()
                if isinstance(operation, Grant):
                    self._start_reaper()

    def tick(self) -> None:
        """Ends the leases that have expired."""
        with self._changed:
            self._state.expire(self._clock())
            self._changed.notify_all()

    def compact(self, revision: int) -> None:
        """Forgets the changes before `revision`, as etcd's compaction does."""
        self.apply(Compact(revision))

    def ttl(self, lease: int) -> float:
        """The granted TTL of a lease in seconds. Raises LeaseLost."""
        with self._changed:
            return self._state.ttl(lease)

    @property
    def compacted(self) -> int:
        """Changes before this revision are forgotten."""
        with self._changed:
            return self._state.compacted

    @property
    def revision(self) -> int:
        with self._changed:
            return self._state.revision

    def wait_changes(
        self, ranges: Sequence[KeyRange], revision: int, cancelled: Callable[[], bool], timeout: float | None = None
    ) -> tuple[list[Event], int]:
        """Waits until the store has reached `revision`; returns the ranges' changes (possibly none) and the revision up
        to which they are complete.

        Returns no changes after `timeout` seconds or when `cancelled`. Raises Compacted, or Unavailable once the store
        is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or cancelled() or self._state.revision != revision - 1, timeout)
            if self._closed:
                raise Unavailable("the store was closed")
            if cancelled():
                return [], revision - 1
            if revision > self._state.revision + 1:
                raise Compacted(f"the store is only at revision {self._state.revision}")
            return self._state.changes_since(ranges, revision), self._state.revision

    def wake(self) -> None:
        """Makes `wait_changes` check `cancelled`."""
        with self._changed:
            self._changed.notify_all()

    def read_all(self, ranges: Sequence[KeyRange]) -> tuple[tuple[KeyValue, ...], int]:
        result = self.apply(Txn(success=[Get(span) for span in ranges]))
        return tuple(sorted((kv for kvs in result.reads for kv in kvs), key=lambda kv: kv.key)), result.revision

    def _start_reaper(self) -> None:
        if self._reaper is None:
            self._reaper = threading.Thread(target=self._reap, name="memory-leases", daemon=True)
            self._reaper.start()

    def _reap(self) -> None:
        """Ends leases when they expire, even if no call is made."""
        with self._changed:
            while not self._closed:
                due = self._state.next_expiry()
                self._changed.wait(None if due is None else max(0.0, due - self._clock()))
                before = self._state.revision
                self._state.expire(self._clock())
                if self._state.revision != before:
                    self._changed.notify_all()


class MemoryWatch:
    """Implements interface.Watch."""

    def __init__(
        self,
        store: MemoryStore,
        ranges: list[KeyRange],
        start_revision: int,
        deliver: Delivery,
        on_end: Callable[[MemoryWatch], None],
    ) -> None:
        self._store = store
        self._ranges = ranges
        self._next = start_revision
        self._deliver = deliver
        self._on_end = on_end
        self._cancelled = False
        threading.Thread(target=self._run, name="memory-watch", daemon=True).start()

    def cancel(self) -> None:
        self._cancelled = True
        self._deliver.stop()
        self._store.wake()

    def _run(self) -> None:
        try:
            while not self._cancelled:
                self._step()
        except Unavailable as error:
            self._deliver(WatchFailure(error))
        finally:
            self._on_end(self)

    def _step(self) -> None:
        try:
            events, revision = self._store.wait_changes(self._ranges, self._next, lambda: self._cancelled)
        except Compacted as error:
            log.warning("watch starts over: %s", error)
            kvs, revision = self._store.read_all(self._ranges)
            self._deliver(WatchUpdate(revision, snapshot=kvs))
        else:
            if events:
                self._deliver(WatchUpdate(events[-1].mod_revision, tuple(events)))
        self._next = revision + 1
