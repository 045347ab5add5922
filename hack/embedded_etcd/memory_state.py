"""etcd's key-value semantics as a state machine: revisions, leases, history. Pure: the result depends only on the given
operations and times.

`State.apply(operation, now)` applies one operation; `changes_since` then returns its changes. Not thread-safe:
MemoryStore adds the lock.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

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
    StoreError,
    TxnResult,
)
from elasticjob_runtime.etcd.responses import Exists
from elasticjob_runtime.etcd.solo import holds, selected

HISTORY = 100_000
"""Number of changes kept for watches that resume; older ones are compacted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Txn:
    compare: Sequence[Compare] = ()
    success: Sequence[Operation] = ()
    failure: Sequence[Operation] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """Grants a lease of `ttl` seconds. Raises StoreError if the ID is taken."""

    lease: int
    ttl: float


@dataclasses.dataclass(frozen=True, slots=True)
class KeepAlive:
    """Renews the lease. Raises LeaseLost if it is gone."""

    lease: int


@dataclasses.dataclass(frozen=True, slots=True)
class Revoke:
    """Ends the lease and deletes its keys. Raises LeaseLost if it is gone."""

    lease: int


@dataclasses.dataclass(frozen=True, slots=True)
class Compact:
    """Forgets the changes before `revision`."""

    revision: int


StateOperation = Txn | Grant | KeepAlive | Revoke | Compact


class Compacted(StoreError):
    """The requested changes have been compacted."""


@dataclasses.dataclass(slots=True)
class _Lease:
    ttl: float
    expires_at: float
    keys: set[str] = dataclasses.field(default_factory=set)


class State:
    """Starts empty at revision 1, like etcd."""

    def __init__(self, history: int = HISTORY) -> None:
        self.revision = 1
        self.compacted = 0
        """Changes before this revision are forgotten."""
        self._keys: dict[str, KeyValue] = {}
        self._sorted: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._history: list[Event] = []
        self._limit = history

    def apply(self, operation: StateOperation, now: float) -> TxnResult:
        """Ends the leases that have expired by `now` (seconds, of any clock that does not go back), then applies the
        operation.

        Raises StoreError if the operation is not applied. Unless it is a transaction, the result contains only the
        revision.
        """
        self.expire(now)
        match operation:
            case Txn():
                return self._txn(operation)
            case Grant():
                if operation.lease in self._leases:
                    raise Exists("lease already exists")
                self._leases[operation.lease] = _Lease(operation.ttl, now + operation.ttl)
            case KeepAlive():
                lease = self._lease(operation.lease)
                lease.expires_at = now + lease.ttl
            case Revoke():
                self._lease(operation.lease)
                self._end_lease(operation.lease)
            case Compact():
                self._compact(operation.revision)
        return TxnResult(True, self.revision, ())

    def ttl(self, lease: int) -> float:
        """The granted TTL of a lease in seconds. Raises LeaseLost."""
        return self._lease(lease).ttl

    def expire(self, now: float) -> None:
        due = [(lease.expires_at, number) for number, lease in self._leases.items() if lease.expires_at <= now]
        for _, number in sorted(due):
            self._end_lease(number)

    def next_expiry(self) -> float | None:
        return min((lease.expires_at for lease in self._leases.values()), default=None)

    def changes_since(self, ranges: Sequence[KeyRange], revision: int) -> list[Event]:
        """Changes of the ranges at or after `revision`, in order. Raises Compacted."""
        if revision < self.compacted:
            raise Compacted(f"compacted up to revision {self.compacted}")
        first = bisect.bisect_left(self._history, revision, key=lambda e: e.mod_revision)
        return [e for e in self._history[first:] if any(e.key in span for span in ranges)]

    def read(self, get: Get) -> tuple[KeyValue, ...]:
        return selected(get, (self._keys[key] for key in self._select(get.range)))

    def _select(self, span: KeyRange) -> list[str]:
        if not span.end:
            return [span.key] if span.key in self._keys else []
        low = bisect.bisect_left(self._sorted, span.key)
        return self._sorted[low : bisect.bisect_left(self._sorted, span.end, low)]

    def _txn(self, txn: Txn) -> TxnResult:
        succeeded = all(holds(compare, self._keys.get(compare.key)) for compare in txn.compare)
        for side in (txn.success, txn.failure):
            _check_distinct(side)
        operations = txn.success if succeeded else txn.failure
        for op in operations:
            if isinstance(op, Put) and op.lease:
                self._lease(op.lease)
        revision = self.revision + 1
        changes: list[Event] = []
        reads = []
        for op in operations:
            match op:
                case Put():
                    changes.append(self._put(op, revision))
                case Delete():
                    changes += [self._delete(key, revision) for key in self._select(op.range)]
                case Get():
                    reads.append(self.read(op))
        self._record(changes)
        return TxnResult(succeeded, self.revision, tuple(reads))

    def _put(self, put: Put, revision: int) -> Event:
        old = self._keys.get(put.key)
        if old is None:
            bisect.insort(self._sorted, put.key)
        elif old.lease in self._leases:
            self._leases[old.lease].keys.discard(put.key)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        created, version = (old.create_revision, old.version + 1) if old else (revision, 1)
        self._keys[put.key] = KeyValue(put.key, put.value, created, revision, version, put.lease)
        return Event(put.key, put.value, revision, created)

    def _delete(self, key: str, revision: int) -> Event:
        old = self._keys.pop(key)
        del self._sorted[bisect.bisect_left(self._sorted, key)]
        if old.lease in self._leases:
            self._leases[old.lease].keys.discard(key)
        return Event(key, None, revision, 0)

    def _record(self, changes: list[Event]) -> None:
        if not changes:
            return
        self.revision += 1
        self._history += changes
        if len(self._history) > self._limit:
            self._compact(self._history[len(self._history) // 2].mod_revision)

    def _compact(self, revision: int) -> None:
        if revision > self.revision:
            raise StoreError("mvcc: required revision is a future revision")
        if revision <= self.compacted:
            raise Compacted(f"compacted up to revision {self.compacted} already")
        self.compacted = revision
        first = bisect.bisect_left(self._history, revision, key=lambda e: e.mod_revision)
        del self._history[:first]

    def _lease(self, number: int) -> _Lease:
        try:
            return self._leases[number]
        except KeyError:
            raise LeaseLost("requested lease not found") from None

    def _end_lease(self, number: int) -> None:
        lease = self._leases.pop(number)
        self._record([self._delete(key, self.revision + 1) for key in sorted(lease.keys)])


def _check_distinct(operations: Sequence[Operation]) -> None:
    """Raises StoreError if a transaction changes a key twice, which etcd rejects."""
    puts = [op.key for op in operations if isinstance(op, Put)]
    deletes = [op.range for op in operations if isinstance(op, Delete)]
    if len(set(puts)) < len(puts) or any(key in span for key in puts for span in deletes):
        raise StoreError("duplicate key given in txn request")
