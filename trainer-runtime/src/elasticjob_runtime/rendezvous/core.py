"""Everything that one member does with the store, step by step. It has no thread, so a simulation can drive it.

The owner (session.py) calls one method at a time: `execute` for an action, each call that was passed to `post`, `tick`
at `due`, and `flush` when there is nothing else to do. Callbacks report each change in the store as a `StoreView` and
the end of each action as (action, error). An action ends only when the cache shows its effect, so a decision always
sees the result of the previous one.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from elasticjob_runtime.contract import ImportsValue, Keys, MemberValue, ProgressValue
from elasticjob_runtime.etcd.interface import (
    Delete,
    Get,
    KeyRange,
    KeyValue,
    LeaseLost,
    Put,
    Store,
    StoreError,
    Unavailable,
    Watch,
    WatchFailure,
    WatchUpdate,
    is_final,
)
from elasticjob_runtime.membership.actions import (
    ProposePlan,
    ProposeStop,
    PublishFailure,
    PublishOutcome,
    PublishState,
    PublishSuspicion,
    Register,
    RestorePlan,
    StoreAction,
    Subscribe,
)
from elasticjob_runtime.membership.view import (
    Role,
    StoreView,
)
from elasticjob_runtime.rendezvous.cache import StoreCache, watched_ranges
from elasticjob_runtime.rendezvous.plan_writer import BATCH, PlanOutdatedError, PlanWriter, for_the_store
from elasticjob_runtime.rendezvous.rank_reader import RankReader
from elasticjob_runtime.rendezvous.registration import JoinResult, Registration

logger = logging.getLogger(__name__)

CATCH_UP = 2.0
"""s to wait for the watch to show an action's effect before all keys are read again."""

RETRY = 0.2
"""s between attempts to read keys that `on_view` needs."""

RETRY_REFUSED = 5.0
"""s between these attempts if the store answers with a permanent error (`is_final`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Callbacks:
    """Called by the core on the thread that drives it."""

    on_view: Callable[[StoreView], None]
    on_done: Callable[[StoreAction, StoreError | None], None]
    on_trouble: Callable[[StoreError | None], None]
    """The store is unreachable or refuses a request; None: it works again."""
    on_imports: Callable[[ImportsValue | None, bool], None] = lambda _imports, _runs: None
    """Called at each registration with what the run's worker processes import (None: not known), and whether the run
    already has a plan."""
    post: Callable[[Callable[[], None]], None]
    """Queues a call from the watch's or the lease keeper's thread; the owner then makes it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Awaited:
    """An action that the store has executed and the cache does not show yet."""

    action: StoreAction
    key: str
    """The key that it wrote; empty: none that is watched."""
    revision: int
    until: float


class RendezvousCore:
    """One member's session with the store. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        me: str,
        member: MemberValue,
        callbacks: Callbacks,
        *,
        lease_ttl: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        batch: int = BATCH,
    ) -> None:
        self._store = store
        self._keys = keys
        self._me = me
        self._callbacks = callbacks
        self._clock = clock
        self._cache = StoreCache(keys)
        self._registration = Registration(store, keys, me, member, lease_ttl)
        self._plans = PlanWriter(store, keys, f"{me}.{member.incarnation}", batch=batch, wall_clock=wall_clock)
        self._first_member: MemberValue | None = None
        self._joined: JoinResult | None = None
        """Set while the cache holds exactly what registering read, and nothing is watched yet."""
        self._watch: Watch | None = None
        self._watches = 0
        self._role: Role | None = None
        self._predecessor = ""
        self._ranks = RankReader(store, keys, me, self._plans)
        self._awaited: _Awaited | None = None
        self._changed = False
        """The cache holds a change that `on_view` has not reported yet."""
        self._stale = False
        """The cache must be read again: its watch has ended, or it is known to lag."""
        self._retry_at: float | None = None
        self._refused = False
        """The store refused a write and none has succeeded since. Watch updates do not reset this."""

    @property
    def lease_expires_at(self) -> float | None:
        return self._registration.expires_at

    @property
    def due(self) -> float | None:
        """When to call `tick` (by `clock`); None: not until another method has been called."""
        times = (self._awaited.until if self._awaited else None, self._retry_at)
        return min((at for at in times if at is not None), default=None)

    def execute(self, action: StoreAction) -> None:
        """Executes one action at a time. `on_done` always follows, now or later."""
        try:
            key, revision = self._do(action)
        except StoreError as error:
            if isinstance(error, LeaseLost):
                self._registration.forget()
            if isinstance(error, LeaseLost | PlanOutdatedError):
                self._stale = True  # the decision was based on an older state of the store
            self._refused = self._refused or is_final(error)
            self.flush()
            self._callbacks.on_done(action, error)
        else:
            self._write_succeeded()
            self._awaited = _Awaited(action, key, revision, self._clock() + CATCH_UP)
            self._stale = self._stale or (bool(key) and self._watch is None)  # no watch would show it
            self.flush()

    def flush(self) -> None:
        """Reports changes to the agent. If that needs a read and the read fails, `tick` tries again."""
        if self._retry_at is not None and self._clock() < self._retry_at:
            return
        try:
            if self._stale:
                self._read_again()
            if self._changed:
                self._publish()
        except StoreError as error:
            self._retry_at = self._clock() + (RETRY_REFUSED if is_final(error) else RETRY)
            self._callbacks.on_trouble(error)
            return
        self._retry_at = None
        if self._awaited is not None and self._cache.shows(self._awaited.key, self._awaited.revision):
            self._finish_awaited(None)

    def tick(self) -> None:
        now = self._clock()
        if self._retry_at is not None and now >= self._retry_at:
            self.flush()
        if self._awaited is not None and now >= self._awaited.until:
            self._catch_up()

    def put_progress(self, progress: ProgressValue) -> None:
        """Best effort."""
        try:
            self._store.put(self._keys.progress, progress.to_json())
        except StoreError as error:
            self._refused = self._refused or is_final(error)
            self._callbacks.on_trouble(error)
        else:
            self._write_succeeded()

    def _write_succeeded(self) -> None:
        """A write succeeded."""
        if self._refused:
            self._refused = False
            self._callbacks.on_trouble(None)

    def put_imports(self, imports: ImportsValue) -> None:
        """Best effort."""
        try:
            self._store.put(self._keys.imports, imports.to_json())
        except StoreError as error:
            self._callbacks.on_trouble(error)

    def leave(self) -> None:
        """Revokes the lease, so that the others need not wait until it expires."""
        if self._watch is not None:
            self._watch.cancel()
        self._registration.revoke()

    def _do(self, action: StoreAction) -> tuple[str, int]:
        """Returns the written key and its revision, by which the cache shows the effect."""
        keys = self._keys
        match action:
            case Register():
                self._register(action)
                return "", 0
            case Subscribe():
                self._subscribe(action.role, action.predecessor)
                return "", 0
            case PublishState():
                written = self._registration.write(
                    action.state, action.round, action.stores, action.saves, action.saved
                )
                return keys.member(self._me), written
            case PublishFailure():
                key = keys.failure(action.failure.round, action.failure.member)
                return key, self._store.put(key, for_the_store(action.failure).to_json())
            case PublishSuspicion():
                return self._publish_suspicion(action)
            case PublishOutcome():
                return keys.outcome, self._plans.publish_outcome(action)
            case RestorePlan():
                assert action.plan.rank is not None
                return keys.plan, self._plans.restore(action.plan.value, self._me, action.plan.rank)
            case ProposeStop() | ProposePlan():
                return self._propose(action)

    def _propose(self, action: ProposeStop | ProposePlan) -> tuple[str, int]:
        if isinstance(action, ProposeStop):
            return self._keys.stop, self._plans.propose_stop(action)
        known = self._cache.plan if self._cache.plan_revision == action.expected_mod_revision else None
        nproc, kept = self._registration.member.nproc, self._cache.last_failure
        return self._keys.plan, self._plans.propose(action, nproc, known.attempt if known else "", kept)

    def _publish_suspicion(self, action: PublishSuspicion) -> tuple[str, int]:
        suspicion = dataclasses.replace(action.suspicion, time=time.time())
        key = self._keys.suspicion(suspicion.round, suspicion.suspect, suspicion.by)
        operation = Delete(KeyRange(key)) if action.retract else Put(key, suspicion.to_json())
        return key, self._store.txn([], [operation]).revision

    def _finish_awaited(self, error: StoreError | None) -> None:
        assert self._awaited is not None
        action = self._awaited.action
        self._awaited = None
        self._callbacks.on_done(action, error)

    def _catch_up(self) -> None:
        """Reads all keys instead of waiting: the watch lags, or the store was replaced and counts revisions from the
        start."""
        outcome: StoreError | None = None
        try:
            self._read_again()
            self._publish()
        except StoreError as error:
            outcome = error
        self._finish_awaited(outcome)

    # -- membership

    def _register(self, action: Register) -> None:
        def on_lost(number: int, reason: str) -> None:
            self._callbacks.post(lambda: self._lost(number, reason))

        self._joined = joined = self._registration.register(action.state, action.round, action.stores, on_lost)
        self._cache.replace(joined.kvs, joined.revision, self._clock(), watched_ranges(self._keys, None, self._me, ""))
        self._stale, self._changed = self._role is not None, True
        imports = self._cache.parse(joined.imports, ImportsValue) if joined.imports is not None else None
        self._callbacks.on_imports(imports, self._cache.plan is not None)
        if self._role is not None:
            self._subscribe(self._role, self._predecessor)

    def _lost(self, registration: int, reason: str) -> None:
        if self._registration.is_current(registration):
            logger.warning("the store ended this member's lease: %s", reason)
            self._registration.forget()
            self._stale = True

    # -- watching

    def _subscribe(self, role: Role, predecessor: str) -> None:
        joined = self._joined
        if role is Role.FOLLOWER and not predecessor and not self._cache.plan_revision:
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
        self._watch_from(since + 1, watched_ranges(self._keys, role, self._me, predecessor))

    def _find_predecessor(self) -> str:
        """Returns the member that registered just before this one. As long as each member is compatible with the one
        before it, all are compatible with the very first; if that is in doubt, also reads the first member."""
        if self._joined is not None:
            before, mine = self._joined.before, self._registration.member
            if not before:
                return ""
            other = self._cache_member(before) if before != self._me else None
            if other is not None and (other.nproc, other.contract) == (mine.nproc, mine.contract):
                return before
        self._joined = None
        before, first = self._registration.neighbours()
        self._first_member = self._cache.parse(first, MemberValue) if first else None
        return before

    def _cache_member(self, name: str) -> MemberValue | None:
        """Adds one member's key to the cache: as it was read while registering, or else with a read of its own."""
        joined = self._joined
        known = joined.before_key if joined is not None and name == joined.before else None
        kv = known or self._store.get(self._keys.member(name))
        if kv is None:
            return None
        self._cache.add(kv, self._clock())
        return self._cache.parse(kv, MemberValue)

    def _read_again(self) -> None:
        """Reads all watched keys at one revision and watches from there. Without a role it does not watch yet."""
        self._joined = None
        ranges = watched_ranges(self._keys, self._role, self._me, self._predecessor)
        result = self._store.txn([], [Get(wanted) for wanted in ranges])
        kvs: list[KeyValue] = [kv for read in result.reads for kv in read]
        self._cache.replace(kvs, result.revision, self._clock(), ranges)
        self._stale, self._changed, self._retry_at = False, True, None
        if self._role is not None:
            self._watch_from(result.revision + 1, ranges)

    def _watch_from(self, revision: int, ranges: list[KeyRange]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watches += 1
        number = self._watches
        self._watch = self._store.watch(
            ranges, revision, lambda update: self._callbacks.post(lambda: self._on_watch(number, update))
        )

    def _on_watch(self, watch: int, update: WatchUpdate | WatchFailure) -> None:
        if watch != self._watches:
            return
        if isinstance(update, WatchFailure):
            self._callbacks.on_trouble(update.error)
            if not isinstance(update.error, Unavailable):  # this watch will not recover by itself
                self._stale = True
                self._retry_at = self._clock() + RETRY_REFUSED
            return
        self._cache.apply(update, self._clock())
        self._changed = True
        if not self._refused:
            self._callbacks.on_trouble(None)

    def _publish(self) -> None:
        self._ranks.load(self._cache, self._registration.member.incarnation, everybody=self._role is Role.PLANNER)
        self._callbacks.on_view(
            self._cache.view(
                me=self._me,
                incarnation=self._registration.member.incarnation,
                role=self._role,
                predecessor=self._predecessor,
                ranks=self._ranks.known,
                first_member=self._first_member,
            )
        )
        self._changed = False
