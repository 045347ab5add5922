"""Everything that one member does with the store, step by step: executes actions (here) and watches keys
(subscription.py). It has no thread, so a simulation can drive it.

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
from typing import TypeVar

from elasticjob_runtime.contract import (
    EvidenceValue,
    HangValue,
    ImportsValue,
    Keys,
    MemberValue,
    PaceValue,
    PreflightValue,
    ProgressValue,
    SecretValue,
    StragglersValue,
    TransitionValue,
    Value,
)
from elasticjob_runtime.etcd.interface import Delete, Get, KeyRange, LeaseLost, Put, Store, StoreError, is_final
from elasticjob_runtime.membership.actions import (
    AmendPlan,
    AssignReplicas,
    ProposePlan,
    ProposeStop,
    PublishFailure,
    PublishOutcome,
    PublishState,
    PublishSuspicion,
    PublishUnready,
    Register,
    RestorePlan,
    StoreAction,
    Subscribe,
)
from elasticjob_runtime.membership.stragglers import with_preflight
from elasticjob_runtime.membership.view import StoreView
from elasticjob_runtime.rendezvous.plan_writer import BATCH, PlanOutdatedError, PlanWriter, for_the_store
from elasticjob_runtime.rendezvous.registration import Registration
from elasticjob_runtime.rendezvous.subscription import Subscription

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Value)
Told = TypeVar("Told", PaceValue, EvidenceValue)
"""What members tell each other."""

HANG_RETRY = 5.0
"""s between two attempts to write or delete what is known of a hang."""
CATCH_UP = 2.0
"""s to wait for the watch to show an action's effect before all keys are read again."""


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
    on_secret: Callable[[SecretValue], None] = lambda _secret: None
    """Called at each registration, before its view, with the run's secret."""
    post: Callable[[Callable[[], None]], None] = lambda call: call()
    """Queues a call from the watch's or the lease's thread; the owner then makes it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Awaited:
    """An action that the store has executed and the cache does not show yet."""

    action: StoreAction
    key: str
    """The key that it wrote; empty: none that is watched."""
    revision: int
    until: float


class RendezvousCore:
    """One member's session with the store: executes one action after the other. Not thread-safe."""

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
        self._registration = Registration(store, keys, me, member, lease_ttl)
        self._plans = PlanWriter(store, keys, f"{me}.{member.incarnation}", batch=batch, wall_clock=wall_clock)
        self._subscription = Subscription(
            store,
            keys,
            me,
            self._registration,
            self._plans,
            on_view=callbacks.on_view,
            on_trouble=self._report_subscription,
            post=callbacks.post,
            clock=clock,
        )
        self._awaited: _Awaited | None = None
        self._hang: HangValue | None = None
        self._write_hang_at: float | None = None
        """`_hang` is not in the store yet."""
        self._refused = False
        """The store refused a write and none has succeeded since. Watch updates do not reset this."""

    @property
    def lease_expires_at(self) -> float | None:
        return self._registration.expires_at

    @property
    def due(self) -> float | None:
        """When to call `tick` (by `clock`); None: not until another method has been called."""
        times = (self._awaited.until if self._awaited else None, self._subscription.retry_at, self._write_hang_at)
        return min((at for at in times if at is not None), default=None)

    def execute(self, action: StoreAction) -> None:
        """Executes one action at a time. `on_done` always follows, now or later."""
        try:
            key, revision = self._do(action)
        except StoreError as error:
            if isinstance(error, LeaseLost):
                self._registration.forget()
            if isinstance(error, LeaseLost | PlanOutdatedError):
                self._subscription.mark_stale()  # the decision was based on an older state of the store
            self._refused = self._refused or is_final(error)
            self.flush()
            self._callbacks.on_done(action, error)
        else:
            self._write_succeeded()
            self._awaited = _Awaited(action, key, revision, self._clock() + CATCH_UP)
            if key and not self._subscription.is_watching:
                self._subscription.mark_stale()  # no watch would show it
            self.flush()

    def flush(self) -> None:
        """Reports changes to the agent. If that needs a read and the read fails, `tick` tries again."""
        if not self._subscription.refresh() or self._awaited is None:
            return
        if self._subscription.cache.shows(self._awaited.key, self._awaited.revision):
            self._finish_awaited(None)

    def tick(self) -> None:
        now = self._clock()
        if self._subscription.retry_at is not None and now >= self._subscription.retry_at:
            self.flush()
        if self._awaited is not None and now >= self._awaited.until:
            self._catch_up()
        if self._write_hang_at is not None and now >= self._write_hang_at:
            self.put_hang(self._hang)

    def put_hang(self, hang: HangValue | None) -> None:
        """None: deletes it. Tried again until it succeeds, because a hang that is over must not be shown."""
        self._hang, self._write_hang_at = hang, None
        key = self._keys.hang(self._me)
        try:
            self._store.txn([], [Delete(KeyRange(key)) if hang is None else Put(key, hang.to_json())])
        except StoreError as error:
            self._write_hang_at = self._clock() + HANG_RETRY
            self._callbacks.on_trouble(error)

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
        """Reports that the store accepts writes again, if it refused one before."""
        if self._refused:
            self._refused = False
            self._callbacks.on_trouble(None)

    def put_report(self, report: ImportsValue | TransitionValue | StragglersValue) -> None:
        """Best effort."""
        match report:
            case ImportsValue():
                self._put(self._keys.imports, report)
            case TransitionValue():
                self._put(self._keys.transition, report)
            case StragglersValue():
                reports = self._read_all(self._keys.preflights, PreflightValue) if report.stragglers else {}
                found = with_preflight(report.stragglers, reports)
                self._put(self._keys.stragglers, dataclasses.replace(report, stragglers=found))

    def exchange(self, told: Told, on_all: Callable[[dict[str, Told]], None] | None) -> None:
        """Best effort. `on_all`: see session.py."""
        keys, me = self._keys, self._me
        is_pace = isinstance(told, PaceValue)
        self._put(keys.pace(me) if is_pace else keys.evidence(me), told)
        if on_all is not None:
            on_all(self._read_all(keys.paces if is_pace else keys.evidence_folder, type(told)))

    def _read_all(self, folder: str, kind: type[T]) -> dict[str, T]:
        """The values of a folder that can be read, by the rest of their keys. Best effort."""
        try:
            kvs = self._store.range(Get(KeyRange.prefix(folder))).kvs
        except StoreError as error:
            self._callbacks.on_trouble(error)
            return {}
        cache = self._subscription.cache
        return {kv.key.removeprefix(folder): value for kv in kvs if (value := cache.parse(kv, kind)) is not None}

    def _put(self, key: str, value: Value) -> None:
        try:
            self._store.put(key, value.to_json())
        except StoreError as error:
            self._callbacks.on_trouble(error)

    def leave(self) -> None:
        """Revokes the lease, so that the others need not wait until it expires."""
        self._subscription.cancel()
        self._registration.revoke()

    def _do(self, action: StoreAction) -> tuple[str, int]:
        """Returns the written key and its revision, by which the cache shows the effect."""
        keys = self._keys
        match action:
            case Register():
                self._register(action)
                return "", 0
            case Subscribe():
                self._subscription.subscribe(action.role, action.predecessor)
                return "", 0
            case PublishState():
                return keys.member(self._me), self._registration.write(action)
            case PublishFailure():
                key = keys.failure(action.failure.round, action.failure.member)
                return key, self._store.put(key, for_the_store(action.failure).to_json())
            case PublishSuspicion() | PublishUnready():
                return self._publish_or_withdraw(action)
            case PublishOutcome():
                return keys.outcome, self._plans.publish_outcome(action)
            case RestorePlan():
                assert action.plan.rank is not None
                return keys.plan, self._plans.restore(
                    self._subscription.as_last_read(action.plan.value), self._me, action.plan.rank
                )
            case ProposeStop() | ProposePlan() | AssignReplicas() | AmendPlan():
                return self._propose(action)

    def _propose(self, action: ProposeStop | ProposePlan | AssignReplicas | AmendPlan) -> tuple[str, int]:
        cache = self._subscription.cache
        if isinstance(action, ProposeStop):
            return self._keys.stop, self._plans.propose_stop(action, cache.stop, cache.stop_revision)
        if isinstance(action, AmendPlan):
            return self._keys.plan, self._plans.amend(action)
        if isinstance(action, AssignReplicas):
            return self._plans.assign(action, cache.replica)
        known = cache.plan if cache.plan_revision == action.expected_mod_revision else None
        nproc, kept = self._registration.member.nproc, cache.last_failure
        return self._keys.plan, self._plans.propose(action, nproc, cache.replica, known, kept)

    def _publish_or_withdraw(self, action: PublishSuspicion | PublishUnready) -> tuple[str, int]:
        value: Value | None
        if isinstance(action, PublishUnready):
            key, value = self._keys.unready, action.unready
        else:
            suspicion = dataclasses.replace(action.suspicion, time=time.time())
            key = self._keys.suspicion(suspicion.round, suspicion.suspect, suspicion.by)
            value = None if action.retract else suspicion
        operation = Delete(KeyRange(key)) if value is None else Put(key, value.to_json())
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
            self._subscription.reload()
        except StoreError as error:
            outcome = error
        self._finish_awaited(outcome)

    # -- membership

    def _register(self, action: Register) -> None:
        def on_lost(number: int, reason: str) -> None:
            self._callbacks.post(lambda: self._lost(number, reason))

        joined = self._registration.register(action, on_lost)
        cache = self._subscription.cache
        if joined.secret is not None:
            self._callbacks.on_secret(joined.secret)
        self._subscription.start_from(joined)
        imports = cache.parse(joined.imports, ImportsValue) if joined.imports is not None else None
        self._callbacks.on_imports(imports, cache.plan is not None)
        self._subscription.resume()

    def _lost(self, registration: int, reason: str) -> None:
        if self._registration.is_current(registration):
            logger.warning("the store ended this member's lease: %s", reason)
            self._registration.forget()
            self._subscription.mark_stale()

    def _report_subscription(self, error: StoreError | None) -> None:
        """`error` None: an update arrived, which proves nothing if the store refuses writes."""
        if error is not None or not self._refused:
            self._callbacks.on_trouble(error)
