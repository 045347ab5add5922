"""A local copy of the keys that this agent watches, and the StoreView made from it. Pure: no I/O."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from elasticjob_runtime.contract import (
    FailureValue,
    Keys,
    LocationsValue,
    MemberState,
    MemberValue,
    OutcomeValue,
    PlanValue,
    RankValue,
    ReplicaValue,
    SpecValue,
    StopValue,
    SuspicionValue,
    UnreadyValue,
    Value,
    first_failure,
)
from elasticjob_runtime.etcd.interface import KeyRange, KeyValue, WatchUpdate
from elasticjob_runtime.membership import plan_rate
from elasticjob_runtime.membership.replicas import newest_replica
from elasticjob_runtime.membership.view import Member, Plan, Role, Stop, StoreView, Suspicion

T = TypeVar("T", bound=Value)

logger = logging.getLogger(__name__)


def common_range(keys: Keys) -> KeyRange:
    """What every agent watches: outcome, plan, spec, stop and suspects. It is a single range, since each range costs
    the store; no other key sorts between these names."""
    return KeyRange(keys.outcome, KeyRange.prefix(keys.suspects).end)


def watched_ranges(
    keys: Keys, role: Role | None, me: str, predecessor: str, *, replicas: bool = False
) -> list[KeyRange]:
    """What an agent in `role` watches. `replicas`: its member belongs to one."""
    common = common_range(keys)
    if role is Role.PLANNER:  # one range with failures and members: no plan is seen before the members that it names
        return [KeyRange(keys.failures, common.end)]
    names = [me, predecessor] if predecessor else [me]
    own = [KeyRange(keys.replica(me))] if replicas else []
    return [common, *(KeyRange(keys.member(name)) for name in names), *own]


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    revision: int
    value: FailureValue
    seen_at: float


class StoreCache:
    """Keys and values at one revision, kept up to date by watch updates. Every value is parsed only once: a planner may
    see a thousand members join."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._kvs: dict[str, KeyValue] = {}
        self._members: dict[str, Member] = {}
        self._failures: dict[str, _Failure] = {}
        self._suspicions: dict[str, Suspicion] = {}
        self._replicas: dict[str, ReplicaValue] = {}
        self._once: dict[str, Any] = {}
        """Key -> value, of the keys of `_kinds`, which exist once per run."""
        kinds = (SpecValue, UnreadyValue, LocationsValue, OutcomeValue)
        self._kinds = dict(zip((keys.spec, keys.unready, keys.locations, keys.outcome), kinds, strict=True))
        self.stop: Stop | None = None
        self._refused: set[tuple[str, int]] = set()
        self._last_round = 0
        self._plans_at: tuple[float, ...] = ()
        self.plan: PlanValue | None = None
        self._seen: dict[KeyRange, int] = {}
        """Watched range -> revision up to which it is known; ranges advance independently."""

    @property
    def plan_revision(self) -> int:
        """mod_revision of the plan; 0: there is none."""
        return self._revision(self._keys.plan)

    @property
    def stop_revision(self) -> int:
        """mod_revision of the last `stop`, of whichever plan; 0: there is none."""
        return self._revision(self._keys.stop)

    def _revision(self, key: str) -> int:
        kv = self._kvs.get(key)
        return kv.mod_revision if kv else 0

    @property
    def last_failure(self) -> str:
        """Key of the first failure in the latest round that has one; empty: there are no failures."""
        last = max((failure.value.round for failure in self._failures.values()), default=0)
        keys = {key: failure.value for key, failure in self._failures.items() if failure.value.round == last}
        first = first_failure(keys.values()) if keys else None
        return next((key for key, value in keys.items() if first and value.member == first.member), "")

    def replace(self, kvs: Iterable[KeyValue], revision: int, now: float, ranges: Sequence[KeyRange] = ()) -> None:
        """Replaces the content by `kvs`, all keys of `ranges` (empty: the same ranges as before) at `revision`. `now`
        (monotonic, s) is when new values count as first seen."""
        fresh = {kv.key: kv for kv in kvs}
        for key in self._kvs.keys() - fresh.keys():
            self._remove(key)
        for kv in fresh.values():
            self._set(kv, now)
        self._seen = dict.fromkeys(ranges or self._seen, revision)

    def shows(self, key: str, revision: int) -> bool:
        """Whether the cache has reached a write to `key` at `revision`. Always true for a key that is not watched."""
        return all(seen >= revision for span, seen in self._seen.items() if key in span)

    def add(self, kv: KeyValue, now: float) -> None:
        """Adds one key that was read a moment after the others."""
        self._set(kv, now)

    def apply(self, update: WatchUpdate, now: float) -> None:
        if update.snapshot is not None:
            self.replace(update.snapshot, update.revision, now)
            return
        for event in update.events:
            known = self._kvs.get(event.key)
            if known is not None and known.mod_revision > event.mod_revision:
                continue  # read later than the rest: see `add`
            if any(event.mod_revision <= seen and event.key in span for span, seen in self._seen.items()):
                continue  # already read: the watch starts earlier, for another key
            if event.value is None:
                self._remove(event.key)
            else:
                self._set(KeyValue(event.key, event.value, event.create_revision, event.mod_revision, 0), now)
        last = {span: event.mod_revision for event in update.events for span in self._seen if event.key in span}
        self._seen.update((span, max(self._seen[span], revision)) for span, revision in last.items())

    def view(
        self,
        *,
        me: str,
        incarnation: str,
        role: Role | None,
        predecessor: str,
        ranks: Mapping[str, RankValue],
        first_member: MemberValue | None = None,
    ) -> StoreView:
        """`ranks`: the ranks of the current plan that were read: this member's own, or all of them if it is the
        planner."""
        mine = self._members.get(me)
        locations: LocationsValue | None = self._once.get(self._keys.locations)
        failures = self._failures_of(self.plan.round) if self.plan else []
        other = mine.value.incarnation if mine and mine.value.incarnation != incarnation else ""
        return StoreView(
            registered=mine is not None and not other,
            replaced_by=other,
            role=role,
            predecessor=predecessor,
            first_member=first_member,
            spec=self._once.get(self._keys.spec),
            plan=self._plan(me, incarnation, role, ranks),
            stop=self.stop,
            last_round=self._last_round,
            outcome=self._once.get(self._keys.outcome),
            members=dict(self._members),
            failures=tuple(failure.value for failure in failures),
            failed_at=min((failure.seen_at for failure in failures), default=0.0),
            suspicions=self._suspicions_of(self.plan.round) if self.plan else (),
            plans_at=self._plans_at,
            unready=self._once.get(self._keys.unready),
            locations=locations.locations if locations is not None else {},
            replicas=dict(self._replicas),
        )

    def replica(self, name: str) -> tuple[ReplicaValue | None, int]:
        """What the member was told of its replica, and the mod_revision of that key; 0: there is none."""
        return self._replicas.get(name), self._revision(self._keys.replica(name))

    def parse(self, kv: KeyValue, kind: type[T]) -> T | None:
        """Returns None and logs a warning (once per value) if a value cannot be parsed: one member's bad value must not
        break the others."""
        try:
            return kind.from_json(kv.value)
        except ValueError as error:
            if (kv.key, kv.mod_revision) not in self._refused:
                self._refused.add((kv.key, kv.mod_revision))
                logger.warning("%s cannot be read and is ignored: %s", kv.key, error)
            return None

    def _set(self, kv: KeyValue, now: float) -> None:
        before = self._kvs.get(kv.key)
        if before is not None and (before.mod_revision, before.value) == (kv.mod_revision, kv.value):
            return
        self._kvs[kv.key] = kv
        keys = self._keys
        if kv.key.startswith(keys.members):
            self._set_member(kv, now)
        elif kv.key.startswith(keys.failures):
            failure = self.parse(kv, FailureValue)
            if failure is not None:
                self._failures[kv.key] = _Failure(kv.mod_revision, failure, now)
        elif kv.key.startswith(keys.suspects):
            suspicion = self.parse(kv, SuspicionValue)
            if suspicion is not None:
                self._suspicions[kv.key] = Suspicion(value=suspicion, seen_at=now)
        elif kv.key.startswith(keys.replicas):
            replica = self.parse(kv, ReplicaValue)
            if replica is not None:
                self._replicas[kv.key[len(keys.replicas) :]] = replica
        else:
            self._set_single(kv, now)

    def _set_single(self, kv: KeyValue, now: float) -> None:
        """Sets a key that exists once per run."""
        keys = self._keys
        if kv.key == keys.plan:
            before, self.plan = self.plan, self.parse(kv, PlanValue)
            if self.plan is not None and (before is None or before.round != self.plan.round):
                self._plans_at = (*self._plans_at, now)[-plan_rate.AT_ONCE :]
            self._last_round = max(self._last_round, self.plan.round if self.plan else 0)
        elif kv.key == keys.stop:
            stop = self.parse(kv, StopValue)
            self.stop = Stop(value=stop, seen_at=now) if stop is not None else None
        elif kv.key in self._kinds:
            self._once[kv.key] = self.parse(kv, self._kinds[kv.key])

    def _set_member(self, kv: KeyValue, now: float) -> None:
        name = kv.key[len(self._keys.members) :]
        value = self.parse(kv, MemberValue)
        known = self._members.pop(name, None)
        if value is not None:
            same = (
                known is not None
                and known.create_revision == kv.create_revision
                and known.value.incarnation == value.incarnation
            )
            seen_at = known.seen_at if known is not None and same else now
            ready_at = known.ready_at if known is not None and same else 0.0
            if not ready_at and value.state is MemberState.READY:
                ready_at = now
            self._members[name] = Member(
                name=name, create_revision=kv.create_revision, value=value, seen_at=seen_at, ready_at=ready_at
            )

    def _remove(self, key: str) -> None:
        for by_key in (self._kvs, self._failures, self._suspicions, self._once):
            by_key.pop(key, None)
        keys = self._keys
        if key.startswith(keys.members):
            self._members.pop(key[len(keys.members) :], None)
        elif key.startswith(keys.replicas):
            self._replicas.pop(key[len(keys.replicas) :], None)
        elif key == keys.plan:
            self.plan = None
        elif key == keys.stop:
            self.stop = None

    def _plan(self, me: str, incarnation: str, role: Role | None, ranks: Mapping[str, RankValue]) -> Plan | None:
        if self.plan is None:
            return None
        mine = ranks.get(me)
        return Plan(
            value=self.plan,
            mod_revision=self.plan_revision,
            rank=mine if mine and mine.incarnation == incarnation else None,
            ranks=ranks if role is Role.PLANNER else None,
            replica=newest_replica(self._replicas.get(me), self._members.get(me)),
        )

    def _failures_of(self, round_number: int) -> list[_Failure]:
        start = self._keys.failure(round_number, "")
        found = (failure for key, failure in self._failures.items() if key.startswith(start))
        return sorted(found, key=lambda failure: failure.revision)

    def _suspicions_of(self, round_number: int) -> tuple[Suspicion, ...]:
        return tuple(suspicion for suspicion in self._suspicions.values() if suspicion.value.round == round_number)
