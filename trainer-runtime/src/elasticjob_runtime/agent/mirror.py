"""A local copy of the keys that this agent watches, and the StoreView made from it. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from elasticjob_runtime.contract import (
    FailureValue,
    Keys,
    MemberValue,
    OutcomeValue,
    PlanValue,
    RankValue,
    SpecValue,
)
from elasticjob_runtime.etcd.port import KeyRange, KeyValue, WatchUpdate
from elasticjob_runtime.membership.model import Member, Plan, Role, StoreView

T = TypeVar("T")


def watched_ranges(keys: Keys, role: Role, me: str, predecessor: str) -> list[KeyRange]:
    """What an agent in `role` watches."""
    common = [KeyRange(keys.plan), KeyRange(keys.outcome), KeyRange(keys.spec)]
    if role is Role.PLANNER:
        return [*common, KeyRange.prefix(keys.members), KeyRange.prefix(keys.failures)]
    names = [me, predecessor] if predecessor else [me]
    return [*common, *(KeyRange(keys.member(name)) for name in names)]


class Mirror:
    """Keys and values at one revision, moved on by watch updates."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._kvs: dict[str, KeyValue] = {}
        self._seen: dict[tuple[str, int], float] = {}
        self.revision = 0

    def replace(self, kvs: Iterable[KeyValue], revision: int) -> None:
        self._kvs = {kv.key: kv for kv in kvs}
        self.revision = revision

    def apply(self, update: WatchUpdate) -> None:
        if update.snapshot is not None:
            self.replace(update.snapshot, update.revision)
            return
        for event in update.events:
            if event.value is None:
                self._kvs.pop(event.key, None)
            else:
                self._kvs[event.key] = KeyValue(event.key, event.value, event.create_revision, event.mod_revision, 0)
        self.revision = max(self.revision, update.revision)

    @property
    def plan_revision(self) -> int:
        """mod_revision of the plan; 0: there is none."""
        kv = self._kvs.get(self._keys.plan)
        return kv.mod_revision if kv else 0

    @property
    def plan_value(self) -> PlanValue | None:
        kv = self._kvs.get(self._keys.plan)
        return PlanValue.from_json(kv.value) if kv else None

    def view(
        self,
        *,
        me: str,
        incarnation: str,
        role: Role | None,
        predecessor: str,
        ranks: Mapping[str, RankValue],
        now: float,
    ) -> StoreView:
        """`ranks`: those of the current plan that were read; my own, or all where this agent plans."""
        members = self._members(now)
        mine = members.get(me)
        other = mine.value.incarnation if mine and mine.value.incarnation != incarnation else ""
        plan = self._plan(me, incarnation, role, ranks)
        return StoreView(
            registered=mine is not None and not other,
            replaced_by=other,
            role=role,
            predecessor=predecessor,
            spec=self._value(self._keys.spec, SpecValue.from_json),
            plan=plan,
            outcome=self._value(self._keys.outcome, OutcomeValue.from_json),
            members=members,
            failures=self._failures(plan.epoch) if plan else (),
        )

    def _value(self, key: str, parse: Callable[[str], T]) -> T | None:
        kv = self._kvs.get(key)
        return parse(kv.value) if kv else None

    def _plan(self, me: str, incarnation: str, role: Role | None, ranks: Mapping[str, RankValue]) -> Plan | None:
        value = self.plan_value
        if value is None:
            return None
        mine = ranks.get(me)
        return Plan(
            value=value,
            mod_revision=self.plan_revision,
            rank=mine if mine and mine.incarnation == incarnation else None,
            ranks=ranks if role is Role.PLANNER else None,
        )

    def _members(self, now: float) -> dict[str, Member]:
        members: dict[str, Member] = {}
        seen: dict[tuple[str, int], float] = {}
        for key, kv in self._kvs.items():
            if key.startswith(self._keys.members):
                name = key[len(self._keys.members) :]
                identity = (name, kv.create_revision)
                seen[identity] = self._seen.get(identity, now)
                members[name] = Member(
                    name=name,
                    create_revision=kv.create_revision,
                    value=MemberValue.from_json(kv.value),
                    seen_at=seen[identity],
                )
        self._seen = seen
        return members

    def _failures(self, epoch: int) -> tuple[FailureValue, ...]:
        start = self._keys.failure(epoch, "")
        found = sorted((kv.mod_revision, kv.value) for key, kv in self._kvs.items() if key.startswith(start))
        return tuple(FailureValue.from_json(value) for _, value in found)
