"""Writes plans (the ranks in batches, then the head in one compare-and-swap) and the outcome.

Every batch is guarded by the registrations and replicas that it names and by the previous plan, so no rank is given to
a dead registration or to a replica that is no more, and two planners never both succeed. What ends after its batch and
before the head, in a plan of several batches, is left to the next plan. A planner that dies between a batch and the
head leaves ranks that no head refers to.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.contract import PEER_LOST, FailureValue, Keys, PlanReason, PlanValue, RankValue, ReplicaValue
from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.interface import Compare, Delete, KeyRange, Operation, Put, Store, StoreError
from elasticjob_runtime.membership.actions import AmendPlan, AssignReplicas, ProposePlan, ProposeStop, PublishOutcome
from elasticjob_runtime.membership.crash_loop import TRAINED_SECONDS
from elasticjob_runtime.membership.ranks import assign_rank, changed
from elasticjob_runtime.membership.view import Member, Stop

HEAD = 6
"""Operations besides ranks, at most, in the transaction that writes the head of a plan."""
BATCH = protocol.MAX_OPERATIONS - HEAD
"""Ranks written in one transaction."""
REPLICA_BATCH = (protocol.MAX_COMPARISONS - 2) // 2
"""The same with replicas: each rank is guarded by two keys, beside the plan and the outcome."""
KnownReplica = Callable[[str], tuple[ReplicaValue | None, int]]
"""Of a member, what it was told, and the revision of that key; 0: there is none."""

CONSEQUENCE_BYTES = 600
"""The maximum size of the traceback in a failure that only follows from another one. In a group of thousands, nearly
all failures do."""


def for_the_store(failure: FailureValue) -> FailureValue:
    """Returns `failure` as it is published. Every member writes one in each failed round, so one that only follows from
    a lost peer is cut to a few hundred bytes."""
    if failure.reason != PEER_LOST or len(failure.traceback) <= CONSEQUENCE_BYTES:
        return failure
    return dataclasses.replace(failure, traceback="..." + failure.traceback[3 - CONSEQUENCE_BYTES :])


class PlanOutdatedError(StoreError):
    """Another plan or the outcome came first, or a planned member has gone. Not a fault: read the state again and
    decide again."""


class PlanWriter:
    """Every call may raise StoreError; PlanOutdatedError if the store has changed since the decision."""

    def __init__(
        self, store: Store, keys: Keys, planner: str, *, batch: int = BATCH, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`planner`: a string that is unique to each start of an agent, so that ranks of two planners never mix.
        `wall_clock`: Unix time, s."""
        self._wall_clock = wall_clock
        self._store = store
        self._keys = keys
        self._planner = planner
        self._batch = batch
        self._tries = 0
        self._known: tuple[str, Mapping[str, RankValue]] = ("", {})

    def remember(self, attempt: str, ranks: Mapping[str, RankValue]) -> None:
        """Keeps all ranks of the plan of `attempt`, so that `restore` can write back what the store lost."""
        self._known = (attempt, ranks)

    def known(self, attempt: str) -> Mapping[str, RankValue] | None:
        """Returns all ranks of the plan of `attempt`; None: they are not kept. They never change."""
        return self._known[1] if self._known[0] == attempt else None

    def propose(
        self,
        action: ProposePlan,
        nproc: int,
        known: KnownReplica,
        before: PlanValue | None = None,
        kept_failure: str = "",
    ) -> int:
        """Returns the revision of the new plan. `before`: the previous plan, if it is known. `kept_failure`: the key of
        the one failure that the plan keeps when it deletes those of earlier rounds, so that the operator can still read
        what failed last; empty: it keeps none."""
        self._tries += 1  # ranks of an earlier attempt that failed half-way must not count for this one
        plan = self._plan_of(action, nproc, before)
        joined = action.joined or (action.round,) * len(action.members)
        ranks = {
            member.name: assign_rank(action.members, rank, joined[rank]) for rank, member in enumerate(action.members)
        }
        guards = [
            Compare(self._keys.plan, mod_revision=action.expected_mod_revision),
            Compare(self._keys.outcome, create_revision=0),
        ]
        older = KeyRange(self._keys.ranks, self._keys.rank(self._keys.attempt(max(0, action.round - 1), ""), ""))
        suspicions = KeyRange(self._keys.suspects, self._keys.suspicion(action.round, "", ""))
        head: list[Operation] = [
            Put(self._keys.plan, plan.to_json()), Delete(older), Delete(suspicions), Delete(KeyRange(self._keys.stop)),
            *(Delete(span) for span in self._failures_before(action.round, kept_failure)),
        ]  # fmt: skip
        revision, size = 0, min(self._batch, REPLICA_BATCH) if action.replica_size else self._batch
        for start in range(0, len(action.members), size):
            batch = action.members[start : start + size]
            there = [Compare(self._keys.member(m.name), create_revision=m.create_revision) for m in batch]
            if action.replica_size:
                there += [self._still_told(member.name, action.replicas, known) for member in batch]
            puts: list[Operation] = [self._put_rank(plan.attempt, member.name, ranks[member.name]) for member in batch]
            last = start + size >= len(action.members)
            revision = self._write(
                [*guards, *there],
                [*puts, *head] if last else puts,
                f"plan {action.round} is outdated: another came first, or a member has gone",
            )
        self.remember(plan.attempt, ranks)
        return revision

    def propose_stop(self, action: ProposeStop, known: Stop | None, known_revision: int) -> int:
        """Returns the revision of `stop`. `known`: the newest one, of whichever plan. Of several members that leave at
        once only the first chooses who saves: that member may have begun."""
        if known is not None and known.value.saver and known.value.attempt == action.stop.attempt:
            raise PlanOutdatedError(f"the planned change is outdated: {known.value.saver} saves already")
        guards = [
            Compare(self._keys.stop, mod_revision=known_revision),
            Compare(self._keys.plan, mod_revision=action.expected_mod_revision),
            Compare(self._keys.outcome, create_revision=0),
        ]
        put = Put(self._keys.stop, action.stop.to_json())
        return self._write(
            guards, [put], "the planned change is outdated: another change or plan came first, or the job is over"
        )

    def restore(self, value: PlanValue, me: str, rank: RankValue) -> int:
        """Writes back the head and the ranks that this agent knows, at least its own, and returns the head's revision.
        The others keep running meanwhile."""
        ranks = self.known(value.attempt) or {me: rank}
        guard = Compare(self._keys.plan, create_revision=0)
        names = list(ranks)
        for start in range(0, len(names), self._batch):
            batch = names[start : start + self._batch]
            self._store.txn([guard], [self._put_rank(value.attempt, name, ranks[name]) for name in batch])
        return self._write([guard], [Put(self._keys.plan, value.to_json())], "the plan is there again")

    def assign(self, action: AssignReplicas, known: KnownReplica) -> tuple[str, int]:
        """Returns the last key that was written and its revision. A replica is written as a whole."""
        key, revision = "", 0
        changed_replicas = "the replicas have changed: another plan came first, or a member has gone"
        unchanged = [
            Compare(self._keys.plan, mod_revision=action.expected_mod_revision),
            Compare(self._keys.outcome, create_revision=0),
        ]
        if action.gone:  # apart: the largest replica fills a transaction
            left = [Compare(self._keys.member(name), create_revision=0) for name in action.gone]
            deletions = [Delete(KeyRange(self._keys.replica(name))) for name in action.gone]
            self._write([*unchanged, *left], deletions, changed_replicas)
        per_batch = max(1, self._batch // 2 // max(len(members) for members, _ in action.parts))
        for start in range(0, len(action.parts), per_batch):
            guards = unchanged.copy()
            puts: list[Operation] = []
            for members, orders in action.parts[start : start + per_batch]:
                for member, order in zip(members, orders, strict=True):
                    key = self._keys.replica(member.name)
                    guards.append(Compare(self._keys.member(member.name), create_revision=member.create_revision))
                    guards.append(self._still_told(member.name, action.known, known))
                    puts.append(Put(key, order.to_json()))
            revision = self._write(guards, puts, changed_replicas)
        return key, revision

    def _still_told(self, name: str, decided: Mapping[str, ReplicaValue], known: KnownReplica) -> Compare:
        """That no planner has put this member into another replica since the decision."""
        told, revision = known(name)
        if told != decided.get(name):
            raise PlanOutdatedError(f"another planner has put {name} into a replica")
        return Compare(self._keys.replica(name), mod_revision=revision)

    def _write(self, guards: Sequence[Compare], operations: Sequence[Operation], outdated: str) -> int:
        """Returns the revision. `outdated`: what a guard that does not hold means."""
        result = self._store.txn(guards, operations)
        if not result.succeeded:
            raise PlanOutdatedError(outdated)
        return result.revision

    def amend(self, action: AmendPlan) -> int:
        """Returns the revision of the plan that is marked as continuing in place."""
        value = dataclasses.replace(action.plan.value, in_place=True)
        unchanged = [Compare(self._keys.plan, mod_revision=action.plan.mod_revision)]
        return self._write(unchanged, [Put(self._keys.plan, value.to_json())], "another plan came first")

    def publish_outcome(self, action: PublishOutcome) -> int:
        key = self._keys.outcome
        guards = [Compare(key, create_revision=0), Compare(self._keys.plan, mod_revision=action.expected_mod_revision)]
        put = Put(key, action.outcome.to_json())
        return self._write(guards, [put], "the outcome is outdated: another came first, or a newer plan")

    def _failures_before(self, round_number: int, kept: str) -> list[KeyRange]:
        start, end = self._keys.failures, self._keys.failure(round_number, "")
        if not start <= kept < end:
            return [KeyRange(start, end)]
        return [KeyRange(start, kept), KeyRange(kept + "\0", end)]

    def _put_rank(self, attempt: str, name: str, rank: RankValue) -> Put:
        return Put(self._keys.rank(attempt, name), rank.to_json())

    def _plan_of(self, action: ProposePlan, nproc: int, before: PlanValue | None) -> PlanValue:
        now, follows = self._wall_clock(), before.attempt if before is not None else ""
        crashes = action.crashes
        if before is not None and action.plan_reason is not PlanReason.WORKER_FAILED:
            ran = now - before.created_at
            crashes = dataclasses.replace(crashes, trained=crashes.trained or ran >= TRAINED_SECONDS)
        change = changed(self.known(follows) or {}, action.members)
        leader: Member = action.members[0]
        ports = leader.value.ports
        return PlanValue(
            round=action.round,
            attempt=self._keys.attempt(action.round, f"{self._planner}.{self._tries}"),
            size=len(action.members),
            world_size=len(action.members) * nproc,
            master_addr=leader.value.address,
            master_port=ports[action.round % len(ports)],
            leader=leader.name,
            nproc=nproc,
            replica_size=action.replica_size,
            agent_store=leader.value.stores,
            in_place=action.in_place,
            broken=action.broken,
            suspects=action.suspects,
            left_out=action.left_out,
            oldest=min(action.joined, default=action.round),
            reports_steps=action.reports_steps,
            restart_count=action.restart_count,
            reason=action.plan_reason,
            message=action.message,
            follows=follows if change else "",
            gone=change[0] if change else (),
            stayed=change[1] if change else 0,
            finished=action.finished,
            created_at=now,
            caused_at=action.caused_at,
            store_generation=action.store_generation,
            run_began=action.run_began or max(1, int(now)),
            **dataclasses.asdict(crashes),
        )
