"""What one member watches in the store: the cache of these keys, and the views that are made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from elasticjob_runtime.contract import Keys, MemberValue, PlanValue
from elasticjob_runtime.etcd.interface import (
    Get,
    KeyRange,
    KeyValue,
    Store,
    StoreError,
    Unavailable,
    Watch,
    WatchFailure,
    WatchUpdate,
    is_final,
)
from elasticjob_runtime.membership.view import Role, StoreView
from elasticjob_runtime.rendezvous.cache import StoreCache, watched_ranges
from elasticjob_runtime.rendezvous.plan_writer import PlanWriter
from elasticjob_runtime.rendezvous.rank_reader import RankReader
from elasticjob_runtime.rendezvous.registration import JoinResult, Registration

RETRY = 0.2
"""s between attempts to read keys that `on_view` needs."""

RETRY_REFUSED = 5.0
"""s between these attempts if the store answers with a permanent error (`is_final`)."""


def _kind(member: MemberValue) -> tuple[int, int, int]:
    """The same for members that are compatible."""
    return member.nproc, member.replica_size, member.contract


class Subscription:
    """Keeps the cache current with one watch over the keys that the member's role requires. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        me: str,
        registration: Registration,
        plans: PlanWriter,
        *,
        on_view: Callable[[StoreView], None],
        on_trouble: Callable[[StoreError | None], None],
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
    ) -> None:
        """For the callbacks see core.Callbacks."""
        self._store = store
        self._keys = keys
        self._me = me
        self._registration = registration
        self._ranks = RankReader(store, keys, me, plans)
        self._on_view = on_view
        self._on_trouble = on_trouble
        self._post = post
        self._clock = clock
        self.cache = StoreCache(keys)
        self.retry_at: float | None = None
        """When to call `refresh` again, after a read failed; None: not before something changes."""
        self._first_member: MemberValue | None = None
        self._joined: JoinResult | None = None
        """Set while the cache holds exactly what registering read, and nothing is watched yet."""
        self._watch: Watch | None = None
        self._watches = 0
        self._role: Role | None = None
        self._predecessor = ""
        self._changed = False
        """The cache holds a change that `on_view` has not reported yet."""
        self._stale = False
        """The cache must be read again: its watch has ended, or it is known to lag."""

    @property
    def is_watching(self) -> bool:
        return self._watch is not None

    def as_last_read(self, plan: PlanValue) -> PlanValue:
        """Also if the store has lost it since."""
        return self._ranks.as_last_read(plan)

    def mark_stale(self) -> None:
        self._stale = True

    def cancel(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def refresh(self) -> bool:
        """Reads again what is stale, and reports changes. False: not now, since a read failed; see `retry_at`."""
        if self.retry_at is not None and self._clock() < self.retry_at:
            return False
        try:
            if self._stale:
                self._read_again()
            if self._changed:
                self._publish()
        except StoreError as error:
            self.retry_at = self._clock() + (RETRY_REFUSED if is_final(error) else RETRY)
            self._on_trouble(error)
            return False
        self.retry_at = None
        return True

    def reload(self) -> None:
        """Reads all watched keys and reports them. Raises StoreError."""
        self._read_again()
        self._publish()

    def start_from(self, joined: JoinResult) -> None:
        """Takes what registering read as the content of the cache."""
        self._joined = joined
        self.cache.replace(joined.kvs, joined.revision, self._clock(), self._ranges(None, ""))
        self._stale, self._changed = self._role is not None, True

    def resume(self) -> None:
        """Watches again in the role of before this registration, if there was one. Raises StoreError."""
        if self._role is not None:
            self.subscribe(self._role, self._predecessor)

    def subscribe(self, role: Role, predecessor: str) -> None:
        joined = self._joined
        if role is Role.FOLLOWER and not predecessor and not self.cache.plan_revision:
            predecessor = self._find_predecessor()
        elif joined is not None and role is Role.FOLLOWER and predecessor:
            self._cache_member(predecessor)
        self._role, self._predecessor = role, predecessor
        if joined is None or joined is not self._joined or role is not Role.FOLLOWER:
            self._stale = True
            self._read_again()
            return
        self._joined, self._stale, self._changed = None, False, True
        before = joined.before_key
        since = before.mod_revision if before is not None and predecessor == joined.before else joined.revision
        self._watch_from(since + 1, self._ranges(role, predecessor))

    def _ranges(self, role: Role | None, predecessor: str) -> list[KeyRange]:
        replicas = self._registration.member.replica_size > 0
        return watched_ranges(self._keys, role, self._me, predecessor, replicas=replicas)

    def _find_predecessor(self) -> str:
        """Returns the member that registered just before this one. As long as each member is compatible with the one
        before it, all are compatible with the very first; if that is in doubt, also reads the first member."""
        if self._joined is not None:
            before, mine = self._joined.before, self._registration.member
            if not before:
                return ""
            other = self._cache_member(before) if before != self._me else None
            if other is not None and _kind(other) == _kind(mine):
                return before
        self._joined = None
        before, first = self._registration.neighbours()
        self._first_member = self.cache.parse(first, MemberValue) if first else None
        return before

    def _cache_member(self, name: str) -> MemberValue | None:
        """Adds one member's key to the cache: as it was read while registering, or else with a read of its own."""
        joined = self._joined
        known = joined.before_key if joined is not None and name == joined.before else None
        kv = known or self._store.get(self._keys.member(name))
        if kv is None:
            return None
        self.cache.add(kv, self._clock())
        return self.cache.parse(kv, MemberValue)

    def _read_again(self) -> None:
        """Reads all watched keys at one revision and watches from there. Without a role it does not watch yet."""
        self._joined = None
        ranges = self._ranges(self._role, self._predecessor)
        result = self._store.txn([], [Get(wanted) for wanted in ranges])
        kvs: list[KeyValue] = [kv for read in result.reads for kv in read]
        self.cache.replace(kvs, result.revision, self._clock(), ranges)
        self._stale, self._changed, self.retry_at = False, True, None
        if self._role is not None:
            self._watch_from(result.revision + 1, ranges)

    def _watch_from(self, revision: int, ranges: list[KeyRange]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watches += 1
        number = self._watches
        self._watch = self._store.watch(
            ranges, revision, lambda update: self._post(lambda: self._on_watch(number, update))
        )

    def _on_watch(self, watch: int, update: WatchUpdate | WatchFailure) -> None:
        if watch != self._watches:
            return
        if isinstance(update, WatchFailure):
            self._on_trouble(update.error)
            if not isinstance(update.error, Unavailable):  # this watch will not recover by itself
                self._stale = True
                self.retry_at = self._clock() + RETRY_REFUSED
            return
        self.cache.apply(update, self._clock())
        self._changed = True
        self._on_trouble(None)

    def _publish(self) -> None:
        self._ranks.load(self.cache, self._registration.member.incarnation, everybody=self._role is Role.PLANNER)
        view = self.cache.view(
            me=self._me,
            incarnation=self._registration.member.incarnation,
            role=self._role,
            predecessor=self._predecessor,
            ranks=self._ranks.known,
            first_member=self._first_member,
        )
        self._on_view(dataclasses.replace(view, registered=view.registered and self._registration.complete))
        self._changed = False
