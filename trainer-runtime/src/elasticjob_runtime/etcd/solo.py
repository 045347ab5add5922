"""The store of a job with a single member (`--standalone`, `--nnodes=1`), inside its agent.

No other process reads or writes it. So leases do not expire, and no changes are kept for watches that begin late: they
begin with a snapshot.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Sequence

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.callbacks import Delivery
from elasticjob_runtime.etcd.cursor import merge
from elasticjob_runtime.etcd.interface import (
    Compare,
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    LeaseLost,
    Operation,
    Put,
    Store,
    TxnResult,
    WatchCallback,
    WatchUpdate,
)
from elasticjob_runtime.etcd.lease import new_lease_id


class SoloStore(Store):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = 1
        self._keys: dict[str, KeyValue] = {}
        self._leases: set[int] = set()
        self._watches: list[_Watch] = []

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,  # noqa: ARG002 - nothing here waits
    ) -> TxnResult:
        protocol.check_txn(success, failure, guards=compare)
        with self._lock:
            succeeded = all(holds(one, self._keys.get(one.key)) for one in compare)
            operations = success if succeeded else failure
            if any(isinstance(op, Put) and op.lease and op.lease not in self._leases for op in operations):
                raise LeaseLost("requested lease not found")
            reads: list[tuple[KeyValue, ...]] = []
            changes: list[Event] = []
            for op in operations:
                if isinstance(op, Get):
                    reads.append(self._read(op))
                else:
                    changes += self._change(op, self._revision + 1)
            self._revision += bool(changes)
            for watch in list(self._watches):
                watch.report(changes)
            return TxnResult(succeeded, self._revision, tuple(reads))

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> _Lease:  # noqa: ARG002 - it does not expire
        number = new_lease_id()
        self._leases.add(number)
        return _Lease(number, lambda: self._revoke(number))

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> _Watch:
        """`callback` is called on the thread that makes a change, and must not call the store."""
        protocol.check_revision(start_revision)
        watch = _Watch(merge(ranges), Delivery(callback), self._watches)
        with self._lock:
            self._watches.append(watch)
            if start_revision <= self._revision:
                kvs = [kv for span in watch.ranges for kv in self._read(Get(span))]
                watch.deliver(WatchUpdate(self._revision, snapshot=tuple(kvs)))
        return watch

    def close(self) -> None:
        for watch in list(self._watches):
            watch.cancel()

    def _read(self, get: Get) -> tuple[KeyValue, ...]:
        return selected(get, (self._keys[key] for key in sorted(self._keys) if key in get.range))

    def _change(self, op: Put | Delete, revision: int) -> list[Event]:
        if isinstance(op, Delete):
            deleted = [key for key in sorted(self._keys) if key in op.range]
            for key in deleted:
                del self._keys[key]
            return [Event(key, None, revision, 0) for key in deleted]
        old = self._keys.get(op.key)
        created, version = (old.create_revision, old.version + 1) if old else (revision, 1)
        self._keys[op.key] = KeyValue(op.key, op.value, created, revision, version, op.lease)
        return [Event(op.key, op.value, revision, created)]

    def _revoke(self, lease: int) -> None:
        self._leases.discard(lease)
        self.txn((), [Delete(KeyRange(kv.key)) for kv in list(self._keys.values()) if kv.lease == lease])


class _Lease:
    """Implements interface.LeaseKeepAlive."""

    expires_at = math.inf

    def __init__(self, number: int, on_revoke: Callable[[], None]) -> None:
        self.id = number
        self._on_revoke = on_revoke

    def stop(self) -> None:
        """Nothing renews it."""

    def revoke(self) -> None:
        self._on_revoke()


class _Watch:
    """Implements interface.Watch."""

    def __init__(self, ranges: Sequence[KeyRange], deliver: Delivery, watches: list[_Watch]) -> None:
        self.ranges = ranges
        self.deliver = deliver
        self._watches = watches

    def report(self, changes: Iterable[Event]) -> None:
        events = tuple(event for event in changes if any(event.key in span for span in self.ranges))
        if events:
            self.deliver(WatchUpdate(events[-1].mod_revision, events))

    def cancel(self) -> None:
        self.deliver.stop()
        if self in self._watches:
            self._watches.remove(self)


def holds(compare: Compare, kv: KeyValue | None) -> bool:
    """`kv`: the key's value; None: there is no such key."""
    created, modified = (kv.create_revision, kv.mod_revision) if kv else (0, 0)
    matches = compare.create_revision in {None, created} and compare.mod_revision in {None, modified}
    return matches and (kv is not None or not compare.exists)


def selected(get: Get, kvs: Iterable[KeyValue]) -> tuple[KeyValue, ...]:
    """What `get` returns of `kvs`, the keys of its range in order."""
    if get.max_create_revision:
        kvs = (kv for kv in kvs if kv.create_revision <= get.max_create_revision)
    found = sorted(kvs, key=lambda kv: kv.create_revision) if get.by_creation else list(kvs)
    if get.descending:
        found.reverse()
    if get.limit:
        found = found[: get.limit]
    return tuple(dataclasses.replace(kv, value="") for kv in found) if get.keys_only else tuple(found)
