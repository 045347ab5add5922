"""This member's own key and lease, by which the others know that it is there."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Sequence

from elasticjob_runtime.contract import SECRET_BYTES, Keys, LastJoinedValue, MemberState, MemberValue, SecretValue
from elasticjob_runtime.etcd.interface import (
    Compare,
    Delete,
    Get,
    KeyRange,
    KeyValue,
    LeaseKeepAlive,
    LeaseLost,
    Operation,
    Put,
    Store,
    StoreError,
    TxnResult,
    Unavailable,
)
from elasticjob_runtime.membership.actions import PublishState, Register
from elasticjob_runtime.rendezvous.cache import common_range

logger = logging.getLogger(__name__)

_OPTIONAL = (
    "saves", "saved", "in_place", "broken", "failed", "failed_at", "failure", "replica", "world_over", "cut_from",
)  # fmt: skip
"""Fields of PublishState that are None if they do not change."""

RECENT = 100
"""How many revisions back a watch may start to see what happened to the predecessor since it registered. Reading the
predecessor's key instead costs one call; starting further back costs the store a look at every revision."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinResult:
    """What the transaction that registered this member read and wrote."""

    revision: int
    kvs: tuple[KeyValue, ...]
    """The member's own key and all keys of `common_range`. If there is an outcome, the job is over and the member did
    not register."""
    before: str
    """The member that registered just before; empty: this is the first."""
    before_key: KeyValue | None = None
    """The key of `before` as it registered; watch from that revision on for what has happened to it since. None: not
    known, or it registered more than RECENT revisions ago."""
    imports: KeyValue | None = None
    """What the run's worker processes import; None: not known yet."""
    secret: SecretValue | None = None
    """The run's secret; None: the job is over."""


_ATTEMPTS = 4
"""Another member may register first, or an earlier registration of this name may still exist."""


def _secret_of(kv: KeyValue) -> SecretValue:
    """Raises StoreError."""
    try:
        return SecretValue.from_json(kv.value)
    except ValueError as error:
        raise StoreError(f"{kv.key} is damaged ({error}): delete it, and start the job's agents again") from None


class Registration:
    """Methods that use the store raise StoreError; LeaseLost if this member is not registered."""

    def __init__(self, store: Store, keys: Keys, me: str, member: MemberValue, ttl: float) -> None:
        self._store = store
        self._keys = keys
        self._key = keys.member(me)
        self._me = me
        self._ttl = ttl
        self._lease: LeaseKeepAlive | None = None
        self._count = 0
        self._created = 0
        """The create revision of the key that this member has registered."""
        self._secret: SecretValue | None = None
        """Of the last registration; kept for a store that loses its data."""
        self.complete = False
        """The current registration has been answered. If the answer is lost, this member's key exists, but what the
        answer says, such as the run's secret, is not known."""
        self.member = member
        """The value of this member's key, which the others read."""

    @property
    def expires_at(self) -> float | None:
        return self._lease.expires_at if self._lease else None

    def register(self, action: Register, on_lost: Callable[[int, str], None]) -> JoinResult:
        """Takes a new lease and writes a new key, whose create revision identifies this registration: two calls.

        `on_lost(number, reason)` is called on the lease's thread; see `is_current`.
        """
        self.forget()
        self._count += 1
        number = self._count
        self._lease = self._store.lease(self._ttl, lambda reason: on_lost(number, reason))
        member = self._changed(action.state, action.round, action.stores)
        world_over = max(member.world_over, action.world_over)
        self.member = dataclasses.replace(member, replica=action.replica, world_over=world_over)
        plan = action.plan
        rank: list[Operation] = []
        if plan is not None and plan.rank is not None:
            rank = [Put(self._keys.rank(plan.value.attempt, self._me), plan.rank.to_json())]
        joined = self._join(self._lease.id, rank)
        self.complete = any(kv.key == self._key for kv in joined.kvs)
        self._created = joined.revision
        if not self.complete:
            self.revoke()
            self._lease = None
        return joined

    def _join(self, lease: int, rank: Sequence[Operation]) -> JoinResult:
        """One call if the run has a secret and no other agent has this name. `rank`: writes this member's rank in the
        plan of its last worker processes."""
        first = False
        for _ in range(_ATTEMPTS):
            joined = self._try_to_join(lease, rank, first)
            if isinstance(joined, JoinResult):
                return joined
            first = joined
        raise Unavailable(f"another agent registered as {self._me} at the same moment")

    def _try_to_join(self, lease: int, rank: Sequence[Operation], first: bool) -> JoinResult | bool:
        """`first`: writes the run's secret, because no member has registered yet, or the store has lost its data.
        Returns whether to do so in another attempt if the store was not as assumed. If an earlier registration's key
        still existed, it has been deleted."""
        keys = self._keys
        value, known = self.member.to_json(), Get(common_range(keys))
        secret, last_joined = Get(KeyRange(keys.secret)), Get(KeyRange(keys.last_joined))
        has_secret = Compare(keys.secret, create_revision=0) if first else Compare(keys.secret, exists=True)
        guards = [Compare(self._key, create_revision=0), Compare(keys.outcome, create_revision=0), has_secret]
        writes: list[Operation] = [
            Put(self._key, value, lease),
            Put(keys.last_joined, LastJoinedValue(member=self._me, value=value).to_json()),
            *rank,
        ]
        new = self._secret or SecretValue(secret=secrets.token_hex(SECRET_BYTES))
        if first:
            writes.append(Put(keys.secret, new.to_json()))
        reads = [last_joined, known, Get(KeyRange(keys.imports)), secret]
        result = self._store.txn(guards, [*reads, *writes], [Get(KeyRange(self._key)), known, last_joined, secret])
        if not result.succeeded:
            return self._try_again(result)
        last, kvs, imports, secret_kvs = (tuple(read) for read in result.reads)
        self._secret = new if first else _secret_of(secret_kvs[0])
        own = KeyValue(self._key, value, result.revision, result.revision, 1, lease)
        joined = self._join_result(result.revision, (*kvs, own), last)
        return dataclasses.replace(joined, imports=next(iter(imports), None), secret=self._secret)

    def _try_again(self, result: TxnResult) -> JoinResult | bool:
        own, kvs, _, secret = (tuple(read) for read in result.reads)
        if any(kv.key == self._keys.outcome for kv in kvs):
            return JoinResult(result.revision, kvs, "")
        if own:
            unchanged = [Compare(self._key, mod_revision=kv.mod_revision) for kv in own]
            self._store.txn(unchanged, [Delete(KeyRange(self._key))])
        return not secret

    def _join_result(self, revision: int, kvs: tuple[KeyValue, ...], last_joined: Sequence[KeyValue]) -> JoinResult:
        try:
            last = LastJoinedValue.from_json(last_joined[0].value) if last_joined else None
        except ValueError:
            last = None
        if last is None:
            return JoinResult(revision, kvs, "")
        at = last_joined[0].mod_revision
        recent = last.value and revision - at <= RECENT
        before = KeyValue(self._keys.member(last.member), last.value, at, at, 1) if recent else None
        return JoinResult(revision, kvs, last.member, before)

    def is_current(self, number: int) -> bool:
        """Whether registration `number` is the current one; events of earlier ones no longer matter."""
        return number == self._count and self._lease is not None

    def write(self, action: PublishState) -> int:
        """Returns the revision."""
        if self._lease is None:
            raise LeaseLost("not registered")
        changes = {name: value for name in _OPTIONAL if (value := getattr(action, name)) is not None}
        if action.in_place is not None:
            changes["changed_at"] = time.time()
        member = dataclasses.replace(self._changed(action.state, action.round, action.stores), **changes)
        own = Compare(self._key, create_revision=self._created)
        put = Put(self._key, member.to_json(), self._lease.id)
        result = self._store.txn([own], [put], [Get(KeyRange(self._key))])
        if not result.succeeded and result.reads[0]:
            raise Unavailable(f"another agent has registered as {self._me}")
        if not result.succeeded:
            raise LeaseLost("etcd has lost this member")
        self.member = member
        return result.revision

    def _changed(self, state: MemberState, round_number: int, stores: bool) -> MemberValue:
        since = self.member.changed_at if state is self.member.state and self.member.changed_at else time.time()
        return dataclasses.replace(self.member, state=state, round=round_number, stores=stores, changed_at=since)

    def neighbours(self) -> tuple[str, KeyValue | None]:
        """Returns (the member that registered just before this one and is still there, or empty; the key of the very
        first member, or None if that is this one).

        The store has to sort all members, so call it only if the JoinResult may be outdated.
        """
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
        """Stops renewing the lease, if there is one, and lets it expire."""
        self.complete = False
        if self._lease is not None:
            self._lease.stop()
            self._lease = None

    def revoke(self) -> None:
        """Revokes the lease. Best effort."""
        if self._lease is not None:
            self._lease.revoke()
