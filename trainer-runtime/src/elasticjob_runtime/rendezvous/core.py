"""Everything one member does with the store, step by step. It has no thread, so that a simulation can drive it.

The owner (session.py) calls one method at a time: `execute` for an action, each call that `post` was given, `tick` at
`due`, and `flush` when there is nothing else to do. Callbacks report each change of the store as a `StoreView` and the
end of each action as (action, error). An action ends only when the cache shows its effect, so a decision always sees
the result of the previous one.
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
"""s for the watch to show an action's effect before everything is read again."""

RETRY = 0.2
"""s between tries to read what has to be read before the agent can be told."""

RETRY_REFUSED = 5.0
"""The same where the store answers, and refuses."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Callbacks:
    """Called by the core, on the thread that drives it."""

    on_view: Callable[[StoreView], None]
    on_done: Callable[[StoreAction, StoreError | None], None]
    on_trouble: Callable[[StoreError | None], None]
    """The store cannot be reached, or refuses; None: it answers again."""
    on_imports: Callable[[ImportsValue | None, bool], None] = lambda _imports, _runs: None
    """Told with each registration: what the run's workers import, where that is known; and whether the run has a plan
    already."""
    post: Callable[[Callable[[], None]], None]
    """Takes calls from the threads of watch and lease keeper, to be made by the owner."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Awaited:
    """An action that is done, but not yet seen."""

    action: StoreAction
    key: str
    """What it wrote; empty: nothing that is watched."""
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
        self._tell = callbacks
        self._clock = clock
        self._cache = StoreCache(keys)
        self._registration = Registration(store, keys, me, member, lease_ttl)
        self._plans = PlanWriter(store, keys, f"{me}.{member.incarnation}", batch=batch, wall_clock=wall_clock)
        self._first_member: MemberValue | None = None
        self._arrival: JoinResult | None = None
        """What the cache holds is what was read as this member registered, and nothing is watched yet."""
        self._watch: Watch | None = None
        self._watches = 0
        self._role: Role | None = None
        self._predecessor = ""
        self._ranks = RankReader(store, keys, me, self._plans)
        self._awaited: _Awaited | None = None
        self._changed = False
        """The cache holds something that `on_view` has not reported."""
        self._stale = False
        """The cache is to be read again: its watch is over, or it is known to be late."""
        self._retry_at: float | None = None
        self._refused = False
        """The store has refused a write, and none has succeeded since. That it still brings changes does not count."""

    @property
    def lease_expires_at(self) -> float | None:
        return self._registration.expires_at

    @property
    def due(self) -> float | None:
        """When to call `tick`; None: not before something else is called."""
        times = (self._awaited.until if self._awaited else None, self._retry_at)
        return min((at for at in times if at is not None), default=None)

    def execute(self, action: StoreAction) -> None:
        """`on_done` follows in any case, now or later. One action at a time."""
        try:
            key, revision = self._do(action)
        except StoreError as error:
            if isinstance(error, LeaseLost):
                self._registration.forget()
            if isinstance(error, LeaseLost | PlanOutdatedError):
                self._stale = True  # the store is not in the state that the decision was based on
            self._refused = self._refused or is_final(error)
            self.flush()
            self._tell.on_done(action, error)
        else:
            self._taken()
            self._awaited = _Awaited(action, key, revision, self._clock() + CATCH_UP)
            self._stale = self._stale or (bool(key) and self._watch is None)  # no watch would show it
            self.flush()

    def flush(self) -> None:
        """Tells the agent what is new. What needs an answer of the store first, and does not get it, is tried again by
        `tick`."""
        if self._retry_at is not None and self._clock() < self._retry_at:
            return
        try:
            if self._stale:
                self._read_again()
            if self._changed:
                self._publish()
        except StoreError as error:
            self._retry_at = self._clock() + (RETRY_REFUSED if is_final(error) else RETRY)
            self._tell.on_trouble(error)
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
            self._tell.on_trouble(error)
        else:
            self._taken()

    def _taken(self) -> None:
        """The store has taken a write."""
        if self._refused:
            self._refused = False
            self._tell.on_trouble(None)

    def put_imports(self, imports: ImportsValue) -> None:
        """Best effort."""
        try:
            self._store.put(self._keys.imports, imports.to_json())
        except StoreError as error:
            self._tell.on_trouble(error)

    def leave(self) -> None:
        """Gives the lease back, so that the others need not wait for its end."""
        if self._watch is not None:
            self._watch.cancel()
        self._registration.revoke()

    def _do(self, action: StoreAction) -> tuple[str, int]:
        """Returns the key that was written and its revision: what shows the effect."""
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
        said = dataclasses.replace(action.suspicion, time=time.time())
        key = self._keys.suspicion(said.round, said.suspect, said.by)
        operation = Delete(KeyRange(key)) if action.retract else Put(key, said.to_json())
        return key, self._store.txn([], [operation]).revision

    def _finish_awaited(self, error: StoreError | None) -> None:
        assert self._awaited is not None
        action = self._awaited.action
        self._awaited = None
        self._tell.on_done(action, error)

    def _catch_up(self) -> None:
        """The watch is late, or the store started over with small revisions: read instead of waiting."""
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
            self._tell.post(lambda: self._lost(number, reason))

        self._arrival = arrival = self._registration.register(action.state, action.round, action.stores, on_lost)
        self._cache.replace(
            arrival.kvs, arrival.revision, self._clock(), watched_ranges(self._keys, None, self._me, "")
        )
        self._stale, self._changed = self._role is not None, True
        imports = self._cache.parse(arrival.imports, ImportsValue) if arrival.imports is not None else None
        self._tell.on_imports(imports, self._cache.plan is not None)
        if self._role is not None:
            self._subscribe(self._role, self._predecessor)

    def _lost(self, registration: int, reason: str) -> None:
        if self._registration.is_current(registration):
            logger.warning("the store ended this member's lease: %s", reason)
            self._registration.forget()
            self._stale = True

    # -- watching

    def _subscribe(self, role: Role, predecessor: str) -> None:
        arrival = self._arrival
        if role is Role.FOLLOWER and not predecessor and not self._cache.plan_revision:
            predecessor = self._who_came_before()
        elif arrival is not None and role is Role.FOLLOWER and predecessor:
            self._meet(predecessor)
        self._role, self._predecessor = role, predecessor
        if arrival is None or arrival is not self._arrival or role is not Role.FOLLOWER:
            self._stale = True
            self._read_again()
            return
        self._arrival, self._stale, self._changed = None, False, True
        before = arrival.before_key
        since = before.mod_revision if before is not None and predecessor == arrival.before else arrival.revision
        self._watch_from(since + 1, watched_ranges(self._keys, role, self._me, predecessor))

    def _who_came_before(self) -> str:
        """The member that registered just before this one. Notes the very first, to which all others have to fit, where
        that is in doubt: while each fits the one before, all fit the first."""
        if self._arrival is not None:
            before, mine = self._arrival.before, self._registration.member
            if not before:
                return ""
            other = self._meet(before) if before != self._me else None
            if other is not None and (other.nproc, other.contract) == (mine.nproc, mine.contract):
                return before
        self._arrival = None
        before, first = self._registration.neighbours()
        self._first_member = self._cache.parse(first, MemberValue) if first else None
        return before

    def _meet(self, name: str) -> MemberValue | None:
        """One member's key beside what the cache holds: as the tail told it, else read."""
        arrival = self._arrival
        told = arrival.before_key if arrival is not None and name == arrival.before else None
        kv = told or self._store.get(self._keys.member(name))
        if kv is None:
            return None
        self._cache.add(kv, self._clock())
        return self._cache.parse(kv, MemberValue)

    def _read_again(self) -> None:
        """Reads all watched keys at one revision and watches from there; does not watch before there is a role."""
        self._arrival = None
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
            ranges, revision, lambda update: self._tell.post(lambda: self._take(number, update))
        )

    def _take(self, watch: int, update: WatchUpdate | WatchFailure) -> None:
        if watch != self._watches:
            return
        if isinstance(update, WatchFailure):
            self._tell.on_trouble(update.error)
            if not isinstance(update.error, Unavailable):  # this watch will not come back by itself
                self._stale = True
                self._retry_at = self._clock() + RETRY_REFUSED
            return
        self._cache.apply(update, self._clock())
        self._changed = True
        if not self._refused:
            self._tell.on_trouble(None)

    def _publish(self) -> None:
        self._ranks.load(self._cache, self._registration.member.incarnation, everybody=self._role is Role.PLANNER)
        self._tell.on_view(
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
