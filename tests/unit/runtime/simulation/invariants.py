"""What must always hold. Checked at every change of the store and every start of worker processes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import (
    CONSISTENT,
    PARTITION_GRACE,
    Keys,
    MemberState,
    MemberValue,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
    ReplicaValue,
    SpecValue,
)
from elasticjob_runtime.membership.actions import Action, ProposePlan, StopWorkers
from elasticjob_runtime.membership.fencing import fence
from elasticjob_runtime.membership.in_place import leave_world_of_replica
from elasticjob_runtime.membership.planned_changes import PLANNED
from elasticjob_runtime.membership.replicas import newest_replica, whole_replicas
from elasticjob_runtime.membership.sizes import group_size, limit
from elasticjob_runtime.membership.view import Member, Plan, View, WorkersState
from elasticjob_runtime.workers.environment import ARRIVE_TIMEOUT

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent
    from tests.unit.runtime.simulation.process import Process
    from tests.unit.runtime.simulation.server import Server


LEASE = 5.0
MOST_PLANS = 100
"""In one walk."""
SLACK = 8.0
"""s for responses that never arrive, and until the next check."""


class Broken(AssertionError):
    """An invariant does not hold."""


def require(holds: object, message: str) -> None:
    if not holds:
        raise Broken(message)


def fits(spec: SpecValue, size: int) -> bool:
    whole = size % (spec.replica_size or 1) == 0
    return spec.min <= size <= limit(spec) and whole and (not spec.allowed or size in spec.allowed)


def survives(plan: Plan, member: Member) -> bool:
    """Whether the plan has a rank for the same agent of that member."""
    rank = (plan.ranks or {}).get(member.name)
    return rank is not None and rank.incarnation == member.value.incarnation


class Invariants:
    """`crashes`: worker processes that the walk crashed. `certain`: nothing has happened yet after which a loss can
    look like a failure."""

    def __init__(self, keys: Keys) -> None:
        self._plan_key = keys.plan
        self._outcome_key = keys.outcome
        self._ranks = keys.ranks
        self._members = keys.members
        self._replicas = keys.replicas
        self._plan: PlanValue | None = None
        self._lifetime = 0
        self._outcome: tuple[int, str] | None = None
        self._attempts: dict[tuple[int, int], str] = {}
        self._known: dict[str, int] = {}
        """Attempt -> lifetime of the store in which it was planned."""
        self._started: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """Incarnation -> the round, and the world of the replica, in which it last started worker processes."""
        self._replica_then: dict[tuple[str, str], ReplicaValue | None] = {}
        """(attempt, member) -> its replica when it got its rank."""
        self._placed: dict[tuple[str, int], str] = {}
        self.leaders: dict[str, str] = {}
        """Attempt -> incarnation of its leader."""
        self.specs: list[SpecValue] = []
        """All that were in force, the last one now."""
        self.max_restarts = 0
        self.crashes = 0
        self.certain = True
        self.counted = 0
        self.plans = 0

    # -- the store

    def changed(self, server: Server) -> None:
        if server.lifetime != self._lifetime:
            self._lifetime, self._plan, self._outcome = server.lifetime, None, None
        self._check_outcome(server)
        self._check_named(server)
        self._check_plan(server)

    def _check_named(self, server: Server) -> None:
        """Ranks are given to members that are registered at that moment, and a part of their replica then."""
        for kv in server.keys(self._ranks):
            attempt, _, name = kv.key[len(self._ranks) :].partition("/")
            if kv.mod_revision == server.state.revision and attempt not in self._known:
                member = server.read(self._members + name)
                incarnation = MemberValue.from_json(member.value).incarnation if member else "no member"
                planned = RankValue.from_json(kv.value).incarnation
                require(
                    incarnation == planned,
                    f"{attempt} gives {name}/{planned} a rank, but {incarnation} is registered as {name}",
                )
                self._replica_then[attempt, name] = self._replica(server, name)

    def _check_plan(self, server: Server) -> None:
        kv = server.read(self._plan_key)
        plan = PlanValue.from_json(kv.value) if kv else None
        if plan == self._plan or plan is None:
            self._plan = plan
            return
        before, self._plan = self._plan, plan
        if before is not None and plan == dataclasses.replace(before, in_place=True):
            return
        self.plans += 1
        require(self.plans <= MOST_PLANS, f"{self.plans} plans were made, the last one because {plan.message}")
        require(self._outcome is None, f"plan {plan.round} was made after the outcome")
        attempt = self._attempts.setdefault((server.lifetime, plan.round), plan.attempt)
        require(attempt == plan.attempt, f"two plans of round {plan.round}: {attempt} and {plan.attempt}")
        if plan.attempt in self._known:
            require(before is None, f"plan {plan.round} was restored over another")
            return
        self._known[plan.attempt] = server.lifetime
        require(
            before is None or plan.round > before.round,
            f"plan {plan.round} came after plan {before.round if before else 0}",
        )
        require(any(fits(spec, plan.size) for spec in self.specs), f"{plan.size} members are not in {self.specs}")
        self._check_ranks(server, plan)
        self._check_restarts(before, plan)

    def _check_ranks(self, server: Server, plan: PlanValue) -> None:
        start = f"{self._ranks}{plan.attempt}/"
        ranks = {kv.key[len(start) :]: RankValue.from_json(kv.value) for kv in server.keys(start)}
        places = sorted(rank.group_rank for rank in ranks.values())
        require(places == list(range(plan.size)), f"plan {plan.round} of {plan.size} has ranks {places}")
        first = next(name for name, rank in ranks.items() if rank.group_rank == 0)
        self.leaders[plan.attempt] = ranks[first].incarnation
        require(plan.leader == first, f"plan {plan.round}: leader is {plan.leader}, rank 0 is {first}")
        if plan.replica_size:
            self._check_replicas(plan, sorted(ranks, key=lambda name: ranks[name].group_rank))

    def _check_replicas(self, plan: PlanValue, names: list[str]) -> None:
        """A plan contains whole replicas, whose numbers differ."""
        size, found = plan.replica_size, list[ReplicaValue]()
        for start in range(0, len(names), size):
            part = names[start : start + size]
            replicas = [self._replica_then[plan.attempt, name] for name in part]
            known = [replica for replica in replicas if replica is not None or not self._lifetime]  # else it was lost
            require(
                all(replica is not None and replica.members == tuple(part) for replica in known),
                f"plan {plan.round} has {part} as a replica, but they are {replicas}",
            )
            found += [replica for replica in replicas[:1] if replica is not None]
        indexes = [replica.index for replica in found]
        require(len(set(indexes)) == len(indexes), f"plan {plan.round} has the replicas {indexes}")

    def _replica(self, server: Server, name: str) -> ReplicaValue | None:
        order, member = server.read(self._replicas + name), server.read(self._members + name)
        value = Member(
            name=name, create_revision=1, value=MemberValue.from_json(member.value)
        ) if member else None  # fmt: skip
        return newest_replica(ReplicaValue.from_json(order.value) if order else None, value)

    def _check_restarts(self, before: PlanValue | None, plan: PlanValue) -> None:
        failed = plan.reason is PlanReason.WORKER_FAILED
        if before is not None:
            right = before.restart_count + failed
            require(
                plan.restart_count == right or (self._lifetime and plan.restart_count > right),
                f"plan {plan.round} ({plan.reason}) counts {plan.restart_count} restarts, not {right}",
            )
        require(plan.restart_count <= self.max_restarts, f"{plan.restart_count} of {self.max_restarts} restarts")
        self.counted += failed
        require(
            not self.certain or self.counted <= self.crashes,
            f"{self.counted} restarts are counted for {self.crashes} failures",
        )

    def _check_outcome(self, server: Server) -> None:
        kv = server.read(self._outcome_key)
        if self._outcome is not None:
            require(kv and (kv.create_revision, kv.value) == self._outcome, "the outcome changed")
        elif kv is not None:
            self._outcome = (kv.create_revision, kv.value)
            outcome = OutcomeValue.from_json(kv.value)
            if outcome.state is OutcomeState.FAILED:
                require(
                    self._plan and self._plan.restart_count == self.max_restarts, "the job failed with restarts left"
                )
                require(not self.certain or self.crashes > self.max_restarts, "the job failed of losses")

    # -- the agents

    def bounded(self, agent: Agent, spec: SpecValue | None, now: float) -> None:
        """An island trains only as long as the policy allows. A group stops as a whole, with its leader.

        Assumes that an agent that is cut off reaches no outside host, and that a frozen one needs a moment to notice.
        """
        workers = agent.workers.view
        plan = workers.plan
        if not agent.workers.trains or plan is None or plan.rank is None:
            return
        lately = now - agent.awake_since
        if spec is not None and spec.on_partition == CONSISTENT and agent.alone_since is not None:
            require(
                min(now - agent.alone_since, lately) < LEASE + SLACK,
                f"{agent} trains without a lease, though Consistent",
            )
        if (
            agent.out_since is None
            or plan.rank.group_rank != 0
            or (spec is None and limit(agent.view().spec) <= plan.value.size)
        ):
            return
        out = min(now - agent.out_since, lately)
        require(out < LEASE + PARTITION_GRACE + SLACK, f"{agent} leads a group that trains on an island for {out:g} s")

    def acts(self, agent: Agent, action: Action, view: View) -> None:
        if not isinstance(action, ProposePlan):
            return
        names = [member.name for member in action.members]
        ran = view.workers.plan
        require(ran is None or action.restart_count >= ran.value.restart_count, f"{agent} forgets restarts")
        require(fits(view.spec, len(names)), f"{agent} proposes {len(names)} members for {view.spec}")
        require(len(set(names)) == len(names), f"{agent} proposes {names}")
        plan = view.store.plan
        if plan is None or not plan.ranks:
            return
        if not view.settings.replica_size:
            stay = [
                (plan.ranks[member.name].group_rank, rank)
                for rank, member in enumerate(action.members)
                if survives(plan, member)
            ]
            require(stay == sorted(stay), f"{agent} changes the order of the ranks: {stay}")
            require(
                [rank for _, rank in stay] == list(range(len(stay))),
                f"{agent} puts a joiner before a survivor: {names}",
            )
        self._continues(agent, action, plan)
        self._waits_for_the_ready(agent, action, plan, view)

    def _waits_for_the_ready(self, agent: Agent, action: ProposePlan, plan: Plan, view: View) -> None:
        """No group whose processes continue in place waits for a member that is not ready, if it can train without."""
        if not plan.value.in_place or not action.in_place:
            return
        ready = [member for member in action.members if member.value.in_place >= plan.round or survives(plan, member)]
        enough = group_size(view.spec, len(whole_replicas(view, ready))) is not None
        require(
            len(ready) == len(action.members) or not enough, f"{agent} lets all wait for members that are not ready"
        )

    def _continues(self, agent: Agent, action: ProposePlan, plan: Plan) -> None:
        """A plan that follows one in place continues in place, if any worker process of it can."""
        finished = any(item.value.state is MemberState.SUCCEEDED for item in action.members)
        if finished or action.in_place or not plan.value.in_place or not action.members[0].value.stores:
            return
        for member in action.members:
            other = agent.world.incarnation(member.value.incarnation)
            if other is None or other.dead or not survives(plan, member):
                continue
            workers = other.workers.view
            able = workers.state is WorkersState.RUNNING and workers.movable and not workers.incomplete
            require(not able, f"{agent} restarts the workers of {other}, which can continue")

    def stops(self, agent: Agent, view: View, now: float) -> None:
        """No worker process that can continue is stopped, unless it is fenced, its member leaves, or its plan does not
        continue in place."""
        if view.workers.state is not WorkersState.RUNNING or not view.workers.movable:
            return
        store, plan = view.store, view.store.plan
        restarts = plan is not None and (not plan.value.in_place or plan.round <= view.workers.round)
        restarts = restarts or isinstance(leave_world_of_replica(view, now), StopWorkers)
        ends = store.outcome is not None or store.replaced_by or view.leaving_since is not None
        require(restarts or ends or fence(view, now) is not None, f"{agent} stops workers that can continue")

    def gives_up(self, process: Process) -> None:
        """An agent kills a worker process that does not answer."""
        require(
            process.frozen_within(2 * ARRIVE_TIMEOUT) or process.agent.clock.slow > 1.0,
            f"{process} is killed, though it was never frozen",
        )

    def starts(self, agent: Agent, plan: Plan) -> None:
        incarnation = agent.settings.incarnation
        if plan.rank is None:  # they warm up, to join later
            return
        before, now = self._started[incarnation], (plan.round, plan.replica.world if plan.replica is not None else 0)
        require(now > before, f"{agent} goes from {before} to {now}")
        self._started[incarnation] = now
        place = (plan.value.attempt, plan.rank.group_rank)
        require(
            self._placed.setdefault(place, incarnation) == incarnation,
            f"{agent} has rank {place} of {self._placed[place]} too",
        )
        written = agent.world.server.read(f"{self._ranks}{plan.value.attempt}/{agent.name}")  # a later plan deletes it
        require(
            not written or RankValue.from_json(written.value) == plan.rank,
            f"{agent} takes {plan.rank} for its rank, not {written}",
        )
        require(plan.rank.group_rank < plan.value.size, f"{agent} has rank {plan.rank.group_rank} of {plan.value.size}")
        for other in agent.world.agents:
            theirs = other.workers.view.plan
            if other is not agent and other.workers.alive and theirs is not None and theirs.round == plan.round:
                attempts = {theirs.value.attempt, plan.value.attempt}
                # A store that lost its data does not know rounds that only members out of its reach remember.
                same = len(attempts) == 1 or len({self._known[attempt] for attempt in attempts}) > 1
                require(same, f"{agent} and {other} both run round {plan.round}, of different plans")

    def saved_first(self, agent: Agent, plan: Plan) -> None:
        """After a planned change, no member starts workers while those of another still save."""
        if plan.value.reason not in PLANNED or not self.certain:
            return
        for other in agent.world.agents:
            view = other.workers.view
            at_it = not other.dead and view.saving and view.plan is not None and view.plan.round == plan.round - 1
            late = agent.clock.now >= other.workers.may_save_until
            require(late or not at_it, f"{agent} starts workers of plan {plan.round} while those of {other} still save")
