"""The agent's side of the store: one thread that executes store actions and keeps the mirror.

The agent's loop must never wait for a network, so all store calls happen here, one after the other. What the store says goes to the loop as
`StoreView`s, the end of each action as (action, error). An action is over only when the mirror shows its effect: so a decision never
sees the world before its own last deed.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable

from elasticjob_runtime.agent.mirror import Mirror, watched_ranges
from elasticjob_runtime.contract import (
    Keys,
    MemberState,
    MemberValue,
    PlanValue,
    ProgressValue,
    RankValue,
)
from elasticjob_runtime.etcd.port import (
    Compare,
    Delete,
    Get,
    KeyRange,
    KeyValue,
    LeaseKeeper,
    LeaseLost,
    Operation,
    Put,
    Store,
    StoreError,
    Unavailable,
    Watch,
    WatchFailure,
    WatchUpdate,
)
from elasticjob_runtime.membership.model import (
    Member,
    ProposePlan,
    PublishFailure,
    PublishOutcome,
    PublishState,
    Register,
    RestorePlan,
    Role,
    StoreAction,
    StoreView,
    Subscribe,
)

logger = logging.getLogger(__name__)

BATCH = 96
"""Ranks written in one transaction: etcd allows 128 operations."""

CATCH_UP = 2.0
"""s for the watch to show an action's effect before everything is read again."""


class PlanOutdatedError(StoreError):
    """Another plan came first, or a planned member has gone: look again. No fault."""


class Rendezvous:
    """Start it with `start()`, give it actions with `submit()`, end it with `close()`."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        me: str,
        member: MemberValue,
        *,
        lease_ttl: float,
        on_view: Callable[[StoreView], None],
        on_done: Callable[[StoreAction, StoreError | None], None],
        on_trouble: Callable[[StoreError | None], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._me = me
        self._member = member
        self._ttl = lease_ttl
        self._on_view = on_view
        self._on_done = on_done
        self._on_trouble = on_trouble
        self._inbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self._mirror = Mirror(keys)
        self._lease: LeaseKeeper | None = None
        self._watch: Watch | None = None
        self._generation = 0
        self._role: Role | None = None
        self._predecessor = ""
        self._ranks: tuple[int, bool, dict[str, RankValue]] = (0, False, {})
        self._known: tuple[str, dict[str, RankValue]] = ("", {})
        """All ranks of the last plan whose ranks this agent knew, by its attempt: to put back what the store lost."""
        self._awaited: tuple[int, float, StoreAction] | None = None
        self._progress: ProgressValue | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, action: StoreAction) -> None:
        """Executes `action`; `on_done` follows, from this thread. One at a time."""
        self._inbox.put(lambda: self._execute(action))

    def publish_progress(self, progress: ProgressValue) -> None:
        """Best effort; while the store is away, only the last one is kept."""
        waiting, self._progress = self._progress, progress
        if waiting is None:
            self._inbox.put(self._put_progress)

    @property
    def lease_expires_at(self) -> float | None:
        lease = self._lease
        return lease.expires_at if lease else None

    def close(self, timeout: float = 2.0) -> None:
        """Gives the lease back, so that the others need not wait for its end. Takes at most `timeout` seconds."""
        self._inbox.put(self._leave)
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closed:
            try:
                work = self._inbox.get(timeout=self._patience())
            except queue.Empty:
                work = self._catch_up
            try:
                work()
            except StoreError as error:
                logger.debug("rendezvous: %s", error)
                self._on_trouble(error)

    def _patience(self) -> float | None:
        return max(0.0, self._awaited[1] - time.monotonic()) if self._awaited else None

    def _execute(self, action: StoreAction) -> None:
        try:
            revision = self._do(action)
        except LeaseLost as error:
            self._forget_lease()
            self._publish()
            self._on_done(action, error)
        except StoreError as error:
            self._on_done(action, error)
        else:
            self._awaited = (revision, time.monotonic() + CATCH_UP, action)
            self._settle()

    def _do(self, action: StoreAction) -> int:
        """Returns the revision that shows the effect; 0: no watched key shows it."""
        match action:
            case Register():
                return self._register(action.state, action.epoch)
            case Subscribe():
                return self._subscribe(action.role, action.predecessor)
            case PublishState():
                return self._write_member(action.state, action.epoch)
            case PublishFailure():
                failure = action.failure
                self._store.put(self._keys.failure(failure.epoch, failure.member), failure.to_json())
                return 0
            case PublishOutcome():
                return self._publish_outcome(action)
            case RestorePlan():
                return self._restore(action)
            case ProposePlan():
                return self._propose(action)

    # -- membership

    def _register(self, state: MemberState, epoch: int) -> int:
        """A new lease and a new key: its create revision is this registration's identity."""
        self._forget_lease()
        lease = self._store.lease(self._ttl, lambda reason: self._inbox.put(lambda: self._lost(reason)))
        self._lease = lease
        key = self._keys.member(self._me)
        self._member = dataclasses.replace(self._member, state=state, epoch=epoch)
        if not epoch:
            self._clear_earlier_run()
        self._store.txn([], [Delete(KeyRange(key))])
        result = self._store.txn([Compare(key, create_revision=0)], [Put(key, self._member.to_json(), lease.id)])
        if not result.succeeded:
            raise Unavailable(f"another agent registered as {self._me} at the same moment")
        return self._subscribe(self._role, self._predecessor) if self._role else self._read_own(key, result.revision)

    def _clear_earlier_run(self) -> None:
        """A run id used again by hand, after its job ended and all agents left: start anew. With an operator (spec), the outcome stands."""
        reads = [Get(KeyRange(self._keys.outcome)), Get(KeyRange(self._keys.spec)), Get(KeyRange.prefix(self._keys.members), limit=1)]
        outcome, spec, members = self._store.txn([], reads).reads
        if outcome and not spec and not members:
            guard = Compare(self._keys.outcome, mod_revision=outcome[0].mod_revision)
            self._store.txn([guard], [Delete(KeyRange.prefix(self._keys.root))])

    def _read_own(self, key: str, revision: int) -> int:
        found = self._store.get(key)
        self._mirror.replace([found] if found else [], revision)
        self._publish()
        return revision

    def _write_member(self, state: MemberState, epoch: int) -> int:
        lease = self._lease
        if lease is None:
            raise LeaseLost("not registered")
        self._member = dataclasses.replace(self._member, state=state, epoch=epoch)
        return self._store.put(self._keys.member(self._me), self._member.to_json(), lease=lease.id)

    def _lost(self, reason: str) -> None:
        logger.warning("the store ended this member's lease: %s", reason)
        self._forget_lease()
        if self._role is not None:
            self._read_again()
        else:
            self._mirror.replace([], self._mirror.revision)
        self._publish()

    def _forget_lease(self) -> None:
        if self._lease is not None:
            self._lease.stop()
            self._lease = None

    def _leave(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        if self._lease is not None:
            self._lease.revoke()
        self._store.close()

    # -- watching

    def _subscribe(self, role: Role, predecessor: str) -> int:
        if role is Role.FOLLOWER and not predecessor and not self._mirror.plan_revision:
            predecessor = self._who_came_before()
        self._role, self._predecessor = role, predecessor
        return self._read_again()

    def _who_came_before(self) -> str:
        own = self._store.get(self._keys.member(self._me))
        if own is None:
            raise LeaseLost("not registered")
        before = Get(
            KeyRange.prefix(self._keys.members),
            limit=1,
            by_creation=True,
            descending=True,
            max_create_revision=own.create_revision - 1,
            keys_only=True,
        )
        found = self._store.range(before).kvs
        return found[0].key[len(self._keys.members) :] if found else ""

    def _read_again(self) -> int:
        """Reads all watched keys at one revision and watches from there."""
        assert self._role is not None
        ranges = watched_ranges(self._keys, self._role, self._me, self._predecessor)
        result = self._store.txn([], [Get(wanted) for wanted in ranges])
        kvs: list[KeyValue] = [kv for read in result.reads for kv in read]
        self._mirror.replace(kvs, result.revision)
        if self._watch is not None:
            self._watch.cancel()
        self._generation += 1
        generation = self._generation
        self._watch = self._store.watch(
            ranges, result.revision + 1, lambda update: self._inbox.put(lambda: self._watched(generation, update))
        )
        self._publish()
        return result.revision

    def _watched(self, generation: int, update: WatchUpdate | WatchFailure) -> None:
        if generation != self._generation:
            return
        if isinstance(update, WatchFailure):
            self._on_trouble(update.error)
            return
        self._mirror.apply(update)
        self._on_trouble(None)
        self._publish()
        self._settle()

    def _settle(self) -> None:
        """Reports the awaited action's end once the mirror has caught up."""
        if self._awaited is not None and self._mirror.revision >= self._awaited[0]:
            action = self._awaited[2]
            self._awaited = None
            self._on_done(action, None)

    def _catch_up(self) -> None:
        """The watch is late: read instead of waiting."""
        if self._awaited is None:
            return
        action = self._awaited[2]
        try:
            self._read_again()
        except StoreError as error:
            self._awaited = None
            self._on_done(action, error)
        else:
            self._settle()

    def _publish(self) -> None:
        self._load_ranks()
        self._on_view(
            self._mirror.view(
                me=self._me,
                incarnation=self._member.incarnation,
                role=self._role,
                predecessor=self._predecessor,
                ranks=self._ranks[2],
                now=time.monotonic(),
            )
        )

    def _load_ranks(self) -> None:
        """The ranks of the current plan, read once per plan: my own, or all where this agent plans."""
        plan, revision = self._mirror.plan_value, self._mirror.plan_revision
        everybody = self._role is Role.PLANNER
        if plan is None or (self._ranks[0] == revision and (self._ranks[1] or not everybody)):
            return
        start = self._keys.rank(plan.attempt, "")
        wanted = KeyRange.prefix(start) if everybody else KeyRange(start + self._me)
        kvs = self._store.range(Get(wanted)).kvs
        ranks = {kv.key[len(start) :]: RankValue.from_json(kv.value) for kv in kvs}
        self._ranks = (revision, everybody, ranks)
        if everybody and ranks:
            self._known = (plan.attempt, ranks)

    # -- planning

    def _propose(self, action: ProposePlan) -> int:
        """Ranks in batches, each guarded by the registrations it names; then the head, guarded by the plan before it."""
        plan = self._plan_of(action)
        guard = Compare(self._keys.plan, mod_revision=action.expected_mod_revision)
        older = KeyRange(self._keys.ranks, self._keys.rank(self._keys.attempt(max(0, action.epoch - 1), ""), ""))
        head: list[Operation] = [Put(self._keys.plan, plan.to_json()), Delete(older)]
        ranks = {
            member.name: RankValue(
                group_rank=rank,
                incarnation=member.value.incarnation,
                predecessor=action.members[rank - 1].name if rank else "",
            )
            for rank, member in enumerate(action.members)
        }
        revision = 0
        for start in range(0, len(action.members), BATCH):
            batch = action.members[start : start + BATCH]
            guards = [guard, *(Compare(self._keys.member(m.name), create_revision=m.create_revision) for m in batch)]
            puts: list[Operation] = [self._put_rank(plan, member.name, ranks[member.name]) for member in batch]
            last = start + BATCH >= len(action.members)
            result = self._store.txn(guards, [*puts, *head] if last else puts)
            if not result.succeeded:
                self._read_again()
                raise PlanOutdatedError(f"plan {action.epoch} is outdated: another came first, or a member has gone")
            revision = result.revision
        self._known = (plan.attempt, ranks)
        return revision

    def _put_rank(self, plan: PlanValue, name: str, rank: RankValue) -> Put:
        return Put(self._keys.rank(plan.attempt, name), rank.to_json())

    def _plan_of(self, action: ProposePlan) -> PlanValue:
        leader: Member = action.members[0]
        ports = leader.value.ports
        nproc = self._member.nproc
        return PlanValue(
            epoch=action.epoch,
            attempt=self._keys.attempt(action.epoch, self._me),
            size=len(action.members),
            world_size=len(action.members) * nproc,
            master_addr=leader.value.address,
            master_port=ports[action.epoch % len(ports)],
            leader=leader.name,
            nproc=nproc,
            restart_count=action.restart_count,
            reason=action.plan_reason,
            message=action.message,
            created_at=time.time(),
        )

    def _restore(self, action: RestorePlan) -> int:
        """Puts back the head and the ranks that this agent knows; the others keep running meanwhile."""
        value = action.plan.value
        attempt, ranks = self._known
        if attempt != value.attempt:
            ranks = {self._me: action.plan.rank} if action.plan.rank else {}
        guard = Compare(self._keys.plan, create_revision=0)
        names = list(ranks)
        for start in range(0, len(names), BATCH):
            self._store.txn([guard], [self._put_rank(value, name, ranks[name]) for name in names[start : start + BATCH]])
        result = self._store.txn([guard], [Put(self._keys.plan, value.to_json())])
        if not result.succeeded:
            raise PlanOutdatedError("the plan is there again")
        return result.revision

    def _publish_outcome(self, action: PublishOutcome) -> int:
        key = self._keys.outcome
        guards = [Compare(key, create_revision=0), Compare(self._keys.plan, mod_revision=action.expected_mod_revision)]
        result = self._store.txn(guards, [Put(key, action.outcome.to_json())])
        if not result.succeeded:
            self._read_again()
            raise PlanOutdatedError("the outcome is outdated: another came first, or a newer plan")
        return result.revision

    def _put_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            self._store.put(self._keys.progress, progress.to_json())
