"""The interface to the coordination store: the few operations of etcd v3 that the rendezvous needs, and its errors.

`EtcdClient` (client.py) talks to a real etcd, `SoloStore` (solo.py) serves a job with a single member, and the
`MemoryStore` of the tests (hack/embedded_etcd) behaves as etcd does: the same contract tests (tests/contract) run on it
and on real etcds. The interface is narrow on purpose, because each addition needs all of them.

Every call returns or raises by its deadline, and may be made from any thread.

Errors (all derive from StoreError; library errors are chained):

    StoreError
      Unavailable        no endpoint answered within the deadline; worth trying again
      Denied             credentials refused, or no permission on the key; not worth trying again with the same ones
      NotEtcd            the endpoint is not a supported etcd (another service, version < 3.4); says what it is
      LeaseLost          the lease is expired or revoked
      Full               the store accepts no writes until an administrator makes room

A plain StoreError means that the store rejects the request itself (too large, malformed).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol


class StoreError(Exception):
    """The store could not execute the call."""


class Unavailable(StoreError):
    """No endpoint answered within the deadline. Try again."""


class Denied(StoreError):
    """Credentials refused, or no permission for the key."""


class NotEtcd(StoreError):
    """The endpoint answers, but is not an etcd >= 3.4."""


class LeaseLost(StoreError):
    """The lease is expired or revoked."""


class Full(StoreError):
    """The store accepts no writes until an administrator makes room."""


def is_final(error: StoreError) -> bool:
    """Whether repeating the call is useless until a person changes something."""
    return isinstance(error, Denied | NotEtcd | Full) or type(error) is StoreError


@dataclasses.dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: str
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class KeyRange:
    """A single key (`end` empty) or the half-open range [key, end)."""

    key: str
    end: str = ""

    @staticmethod
    def prefix(prefix: str) -> KeyRange:
        """All keys that start with `prefix` (not empty, ASCII)."""
        return KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))

    def __contains__(self, key: str) -> bool:
        return self.key <= key < self.end if self.end else key == self.key


@dataclasses.dataclass(frozen=True, slots=True)
class Compare:
    """A guard of a transaction: all given revisions must match the key's. Revision 0 means that the key does not
    exist."""

    key: str
    create_revision: int | None = None
    mod_revision: int | None = None
    exists: bool = False
    """The key must exist, at any revision."""


@dataclasses.dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: str
    lease: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Delete:
    range: KeyRange


@dataclasses.dataclass(frozen=True, slots=True)
class Get:
    """A read. Sorted by key; with `by_creation`, by create revision. `limit` 0: all.

    `max_create_revision` 0: no bound. Revisions are filtered first, then sorted, then cut to `limit`.
    """

    range: KeyRange
    limit: int = 0
    by_creation: bool = False
    descending: bool = False
    max_create_revision: int = 0
    keys_only: bool = False


Operation = Put | Delete | Get


@dataclasses.dataclass(frozen=True, slots=True)
class TxnResult:
    succeeded: bool
    revision: int
    """Store revision after the transaction."""
    reads: tuple[tuple[KeyValue, ...], ...]
    """Results of the Get operations that ran, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class RangeResult:
    kvs: tuple[KeyValue, ...]
    revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A change of one key. If the key was deleted (or its lease ended), `value` is None and `create_revision` is 0."""

    key: str
    value: str | None
    mod_revision: int
    create_revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class WatchUpdate:
    """What a watch delivers: changes of one range in revision order, each once. `revision` is that of the last change.

    `snapshot` is set if the watch had to start over (history compacted): it holds *all* keys of the watched ranges at
    `revision`, and replaces everything the receiver knew. `events` is then empty.
    """

    revision: int
    events: tuple[Event, ...] = ()
    snapshot: tuple[KeyValue, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WatchFailure:
    """The watch is interrupted (`Unavailable`: for information only, the watch retries by itself) or has ended
    (`Denied`, `NotEtcd`)."""

    error: StoreError


WatchCallback = Callable[[WatchUpdate | WatchFailure], None]
"""Called on the watch's own thread; must return quickly (for example, put the item on a queue)."""


class Watch(Protocol):
    def cancel(self) -> None:
        """Stops the watch; no callback starts after this returns. Idempotent. May be called from any thread, including
        the callback's."""


class LeaseKeepAlive(Protocol):
    """A lease that a dedicated thread keeps alive."""

    @property
    def id(self) -> int: ...

    @property
    def expires_at(self) -> float:
        """The time.monotonic() until which the store certainly holds the lease: start of the last successful renewal
        plus TTL."""

    def revoke(self) -> None:
        """Stops renewing and immediately ends the lease and deletes its keys; best effort if the store is unreachable.
        Idempotent."""

    def stop(self) -> None:
        """Stops renewing and lets the lease expire. Idempotent."""


class Store(Protocol):
    """A coordination store with etcd v3's semantics."""

    def get(self, key: str, *, timeout: float | None = None) -> KeyValue | None:
        kvs = self.range(Get(KeyRange(key)), timeout=timeout).kvs
        return kvs[0] if kvs else None

    def range(self, get: Get, *, timeout: float | None = None) -> RangeResult:
        result = self.txn((), (get,), timeout=timeout)
        return RangeResult(result.reads[0], result.revision)

    def put(self, key: str, value: str, *, lease: int = 0, timeout: float | None = None) -> int:
        """Returns the store's revision. Raises LeaseLost if `lease` is gone."""
        return self.txn((), (Put(key, value, lease),), timeout=timeout).revision

    def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        """Runs a transaction, with at most 100 operations on each side. A call whose answer was lost is *not* sent
        again, because it may have taken effect: it raises Unavailable, and the caller must read before it decides."""

    def lease(self, ttl: float, on_lost: Callable[[str], None]) -> LeaseKeepAlive:
        """Grants a lease of `ttl` seconds (etcd: whole seconds, at least 2) and renews it every ttl/3 on its own
        thread, with its own connection.

        `on_lost(reason)` is called once, from the thread that renews it, when the store reports that the lease is gone.
        If the store is unreachable, nothing is called: `expires_at` stops increasing, and the owner decides what to do
        (self-fencing is a decision, not I/O).
        """

    def watch(self, ranges: Sequence[KeyRange], start_revision: int, callback: WatchCallback) -> Watch:
        """Delivers every change of the ranges from `start_revision` on, over one connection, across reconnects and
        endpoint changes.

        `start_revision` is at most one past the last revision that the store returned. If the store has not reached it,
        the store has lost its data since, and the watch begins with a snapshot. Changes of one range come in order.
        Changes of different ranges may not, right after a connection is made; to get the changes of several keys in
        order, watch them in one range (see cursor.py).
        """

    def close(self) -> None:
        """Ends all watches and renewals of leases, and lets the leases expire. Idempotent."""
