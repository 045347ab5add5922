"""Reads the ranks of the current plan that this agent needs: its own, or all of them if it is the planner."""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob_runtime.contract import Keys, PlanValue, RankValue
from elasticjob_runtime.etcd.interface import Get, KeyRange, Store
from elasticjob_runtime.membership.ranks import carry_over_rank
from elasticjob_runtime.rendezvous.cache import StoreCache
from elasticjob_runtime.rendezvous.plan_writer import PlanWriter


class RankReader:
    """Ranks never change once written, so they are read at most once per plan; most members derive theirs from the
    previous plan and read nothing."""

    def __init__(self, store: Store, keys: Keys, me: str, plans: PlanWriter) -> None:
        """`plans`: keeps all ranks of the last plan that this agent wrote or read."""
        self._store = store
        self._keys = keys
        self._me = me
        self._plans = plans
        self._read: tuple[PlanValue | None, int] = (None, 0)
        """The plan that `known` was read for, and its revision. A store that was restored may have another plan at the
        same revision; two plans never have the same `created_at`."""
        self._everybody = False
        self._lost = False
        """The store has lost the plan. One that is restored may lack ranks, and all members must see the same ones:
        they tell who plans."""
        self.known: Mapping[str, RankValue] = {}

    def load(self, cache: StoreCache, incarnation: str, *, everybody: bool) -> None:
        """Updates `known` to the plan in the cache. Raises StoreError."""
        plan = cache.plan
        if plan is None:
            self._lost = self._read[0] is not None
            return
        wanted = (plan, cache.plan_revision)
        if self._read == wanted and (self._everybody or not everybody):
            return
        ranks = None if self._lost else self._plans.known(plan.attempt)
        if ranks is None and not everybody:
            ranks = self._carried_over(plan, incarnation)
        if ranks is None:
            ranks = self._fetch(plan, cache, everybody=everybody)
        self._read, self._everybody, self.known, self._lost = wanted, everybody, ranks, False
        if len(ranks) == plan.size and everybody:
            self._plans.remember(plan.attempt, ranks)

    def as_last_read(self, plan: PlanValue) -> PlanValue:
        """The plan that workers were started for may have been marked since then."""
        last = self._read[0]
        return last if last is not None and last.attempt == plan.attempt else plan

    def _carried_over(self, plan: PlanValue, incarnation: str) -> Mapping[str, RankValue] | None:
        mine, before = self.known.get(self._me), self._read[0]
        if before is None or plan.follows != before.attempt or mine is None or mine.incarnation != incarnation:
            return None
        rank = carry_over_rank(mine, plan)
        return {self._me: rank} if rank is not None else None

    def _fetch(self, plan: PlanValue, cache: StoreCache, *, everybody: bool) -> Mapping[str, RankValue]:
        start = self._keys.rank(plan.attempt, "")
        wanted = KeyRange.prefix(start) if everybody else KeyRange(start + self._me)
        found = ((kv.key[len(start) :], cache.parse(kv, RankValue)) for kv in self._store.range(Get(wanted)).kvs)
        return {name: rank for name, rank in found if rank is not None}
