"""This member's own key and lease: being there, as the others see it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from elasticjob_runtime.contract import Keys, MemberState, MemberValue
from elasticjob_runtime.etcd.port import Compare, Delete, Get, KeyRange, KeyValue, LeaseKeeper, LeaseLost, Put, Store, Unavailable

logger = logging.getLogger(__name__)


class Registration:
    """Methods that use the store raise StoreError; LeaseLost where this member is not registered."""

    def __init__(self, store: Store, keys: Keys, me: str, member: MemberValue, ttl: float) -> None:
        self._store = store
        self._keys = keys
        self._key = keys.member(me)
        self._me = me
        self._ttl = ttl
        self._lease: LeaseKeeper | None = None
        self._count = 0
        self._was_there = False
        self.member = member
        """What the others know of this one."""

    @property
    def expires_at(self) -> float | None:
        return self._lease.expires_at if self._lease else None

    def register(self, state: MemberState, epoch: int, stores: bool, on_lost: Callable[[int, str], None]) -> int:
        """A new lease and a new key, whose create revision is this registration's identity. Returns the revision.

        `on_lost(number, reason)` is called from the lease keeper's thread; see `is_current`.
        """
        self.forget()
        self._count += 1
        number = self._count
        self._lease = self._store.lease(self._ttl, lambda reason: on_lost(number, reason))
        self.member = self._changed(state, epoch, stores)
        if not self._was_there:
            self._clear_earlier_run()
        self._store.txn([], [Delete(KeyRange(self._key))])
        put = Put(self._key, self.member.to_json(), self._lease.id)
        result = self._store.txn([Compare(self._key, create_revision=0)], [put])
        if not result.succeeded:
            raise Unavailable(f"another agent registered as {self._me} at the same moment")
        self._was_there = True
        return result.revision

    def is_current(self, number: int) -> bool:
        """Whether news of registration `number` still matter."""
        return number == self._count and self._lease is not None

    def write(self, state: MemberState, epoch: int, stores: bool) -> int:
        """Returns the revision."""
        if self._lease is None:
            raise LeaseLost("not registered")
        member = self._changed(state, epoch, stores)
        revision = self._store.put(self._key, member.to_json(), lease=self._lease.id)
        self.member = member
        return revision

    def _changed(self, state: MemberState, epoch: int, stores: bool) -> MemberValue:
        since = self.member.changed_at if state is self.member.state and self.member.changed_at else time.time()
        return dataclasses.replace(self.member, state=state, epoch=epoch, stores=stores, changed_at=since)

    def neighbours(self) -> tuple[str, KeyValue | None]:
        """(the member that registered just before this one, or empty; the key of the very first, where that is another)."""
        own = self._store.get(self._key)
        if own is None:
            raise LeaseLost("not registered")
        earlier = own.create_revision - 1
        members = KeyRange.prefix(self._keys.members)
        before = Get(members, limit=1, by_creation=True, descending=True, max_create_revision=earlier, keys_only=True)
        first = Get(members, limit=1, by_creation=True, max_create_revision=earlier)
        befores, firsts = self._store.txn([], [before, first]).reads
        return befores[0].key[len(self._keys.members) :] if befores else "", firsts[0] if firsts else None

    def forget(self) -> None:
        """Leaves the lease, if there is one, to expire."""
        if self._lease is not None:
            self._lease.stop()
            self._lease = None

    def revoke(self) -> None:
        """Ends the lease at once. Best effort."""
        if self._lease is not None:
            self._lease.revoke()

    def _clear_earlier_run(self) -> None:
        """A run id used again by hand, after its job ended and all agents left: start anew. With an operator (spec), the outcome stands."""
        reads = [Get(KeyRange(self._keys.outcome)), Get(KeyRange(self._keys.spec)), Get(KeyRange.prefix(self._keys.members), limit=1)]
        outcome, spec, members = self._store.txn([], reads).reads
        if outcome and not spec and not members:
            guard = Compare(self._keys.outcome, mod_revision=outcome[0].mod_revision)
            self._store.txn([guard], [Delete(KeyRange.prefix(self._keys.root))])
