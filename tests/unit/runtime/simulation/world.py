"""All agents and the store of one random walk.

A `Walk` says how many agents there are, what happens to them and when (faults.py); the seed decides everything else,
such as latencies and who is first. After the last event all faults end, and the walk must end well: every member trains
or is a spare, and the job succeeds.
"""

from __future__ import annotations

from elasticjob_runtime.contract import (
    AVAILABLE,
    CONSISTENT,
    ExitCode,
    OutcomeState,
    OutcomeValue,
    PlanValue,
    RankValue,
    SpecValue,
)
from elasticjob_runtime.etcd.interface import Put
from elasticjob_runtime.membership.actions import Exit
from elasticjob_runtime.membership.sizes import group_size
from elasticjob_runtime.membership.view import Member, MemberSettings, Plan, WorkersState

from hack.embedded_etcd.memory_state import Txn
from tests.unit.runtime.simulation.agent import KEYS, Agent
from tests.unit.runtime.simulation.clock import Clock
from tests.unit.runtime.simulation.events import Walk
from tests.unit.runtime.simulation.faults import Faults
from tests.unit.runtime.simulation.folder import Folder
from tests.unit.runtime.simulation.invariants import Broken, Invariants, require
from tests.unit.runtime.simulation.peers import Network
from tests.unit.runtime.simulation.server import Server
from tests.unit.runtime.simulation.sessions import Sessions
from tests.unit.runtime.simulation.workers import Training

PATIENCE = 90.0
"""s after the last fault within which the job must have recovered."""
SESSION_PATIENCE = 240.0
"""The same, for a script with a session: joiners that failed wait for up to a minute, and start again."""


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.clock = Clock(walk.seed)
        self.invariants = Invariants(KEYS)
        self.server = Server(self.clock, self.invariants.changed)
        self.network = Network(self)
        self.agents: list[Agent] = []
        self.finished = False
        self._trainings: dict[str, Training] = {}
        self.faults = Faults(self)
        self._names = 0
        self._incarnations = 0
        allowed = list(walk.allowed) if walk.operator else []  # agents have no flag for it
        self.folder = Folder()
        self.sessions = Sessions(self, self.clock.random.choice([0.2, 0.5, 0.5, 2.0]) if walk.session else 0.0)
        self.spec = SpecValue(
            min=walk.least,
            max=walk.most,
            allowed=allowed,
            replica_size=walk.replica_size,
            max_restarts=walk.max_restarts,
            on_partition=CONSISTENT if walk.consistent else AVAILABLE,
        )
        self.clock.later(2.0, self._check_islands)
        self.invariants.max_restarts = walk.max_restarts
        self.set_spec(self.spec)
        for _ in range(walk.agents):
            self.clock.later(self.clock.random.uniform(0.0, 0.5), self.join)

    # -- the walk

    def run(self) -> None:
        """Raises Broken, with the trace."""
        try:
            for event in self.walk.events:
                self.clock.run_until(self.clock.now + event.after)
                self.clock.note("-", f"{event.kind.name} who={event.who} seconds={event.seconds:g} arg={event.arg}")
                self.faults.apply(event)
                self.faults.back_up()
            self._heal()
            if self.outcome() is None:
                self._settles()
            self._ends()
        except Broken as broken:
            trace = "\n".join(self.clock.trace[-400:])
            raise Broken(f"{broken}\n{self.walk}\n{trace}") from broken

    def _settles(self) -> None:
        """Every member that can train does, or is a spare."""
        while len(self._able()) < self._enough():
            self.join()
        limit = SESSION_PATIENCE if self.walk.session else PATIENCE
        end = self.clock.now + limit
        reason = "?"
        while self.clock.now < end:
            self.clock.run_until(self.clock.now + 0.5)
            reason = "" if self.outcome() is not None else self._unsettled()
            if not reason:
                return
        raise Broken(f"not settled after {limit:g} s: {reason}")

    def _ends(self) -> None:
        self.finish()
        end = self.clock.now + PATIENCE
        while self.clock.now < end and any(agent.exit is None and not agent.dead for agent in self.agents):
            self.clock.run_until(self.clock.now + 0.5)
        still = [agent for agent in self.agents if agent.exit is None and not agent.dead]
        require(not still, f"never end: {still}")
        require(self.outcome(), "the job ended without an outcome")

    def _unsettled(self) -> str:
        """What is not yet as it should be; empty if all is well."""
        head = self.server.read(KEYS.plan)
        if head is None:
            return "there is no plan"
        plan = PlanValue.from_json(head.value)
        start = f"{KEYS.ranks}{plan.attempt}/"
        ranks = {kv.key[len(start) :]: RankValue.from_json(kv.value) for kv in self.server.keys(start)}
        able = self._able()
        size = group_size(self.spec, len(able))
        if plan.size != size or len(ranks) != size:
            return (
                f"plan {plan.round} has {plan.size} members and {len(ranks)} ranks; {size} of {len(able)} should train"
            )
        for agent in (agent for agent in self.agents if agent.live):
            rank = ranks.get(agent.name)
            workers = agent.workers.view
            if rank is not None and rank.incarnation == agent.settings.incarnation:
                if (workers.state, workers.round) != (WorkersState.RUNNING, plan.round):
                    return f"{agent} is planned, but its workers are {workers.state} in round {workers.round}"
            elif agent.workers.alive and not (self.walk.session and plan.in_place):
                return f"{agent} is not planned, but its workers are {workers.state} in round {workers.round}"
        if self.walk.session and (waits := self.sessions.untrained(plan)):
            return waits
        named = {agent.name for agent in able}
        return (
            "" if ranks.keys() <= named else f"plan {plan.round} names {sorted(ranks.keys() - named)}, who cannot train"
        )

    def _able(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.live and agent.name not in self.spec.draining]

    def _enough(self) -> int:
        fitting = [size for size in self.spec.allowed if self.spec.min <= size <= self.spec.max]
        return min(fitting, default=self.spec.min)

    def outcome(self) -> OutcomeValue | None:
        kv = self.server.read(KEYS.outcome)
        return OutcomeValue.from_json(kv.value) if kv else None

    def _check_islands(self) -> None:
        self.clock.later(2.0, self._check_islands)
        now = self.clock.now
        for agent in self.agents:
            if agent.stopped or agent.exit is not None:
                agent.awake_since = now
            agent.out_since = (agent.out_since or now) if agent.cut_off else None
            agent.alone_since = (agent.alone_since or now) if agent.cut_off or not self.server.up else None
            if self.clock.slow > 1.0:
                agent.awake_since = now
            self.invariants.bounded(agent, self.spec if self.walk.operator else None, now)

    def set_spec(self, spec: SpecValue) -> None:
        self.spec = spec
        self.invariants.specs = [*self.invariants.specs[-2:], spec]
        if self.walk.operator:
            self.server.apply(Txn(success=[Put(KEYS.spec, spec.to_json())]))

    def join(self) -> None:
        self._names += 1
        self._start(f"w{self._names}")

    def restart(self, name: str) -> None:
        if not any(agent.name == name and not agent.dead for agent in self.agents):
            self._start(name)

    def _start(self, name: str) -> None:
        self._incarnations += 1
        walk = self.walk
        settings = MemberSettings(
            me=name,
            incarnation=f"i{self._incarnations}",
            nproc=walk.nproc,
            replica_size=walk.replica_size,
            min=walk.least,
            max=walk.most,
            max_restarts=walk.max_restarts,
        )
        warm_after = self.clock.random.choice([0.0, 0.0, 0.1, 2.0])
        self.agents.append(Agent(self, settings, warm_after=warm_after))

    def _heal(self) -> None:
        self.clock.note("-", "all faults end")
        longest = max((event.seconds for event in self.walk.events), default=0.0)
        self.clock.run_until(self.clock.now + longest + 0.1)
        self.faults.end()

    def finish(self) -> None:
        self.finished = True
        for training in self._trainings.values():
            training.complete()
        self.sessions.complete()

    # -- what agents need

    def training(self, plan: Plan) -> Training:
        training = self._trainings.setdefault(plan.value.attempt, Training(self.clock, plan, self.folder))
        if self.finished:
            self.clock.later(0.5, training.complete)
        return training

    def responds(self, asking: Agent, member: Member) -> bool:
        """Whether this member responds to a probe."""
        there = self.incarnation(member.value.incarnation)
        return (
            there is not None
            and not there.stopped
            and there.exit is None
            and not self.faults.is_cut(asking.name, member.name)
        )

    def refuses_connections(self, asking: Agent, member: Member) -> bool:
        """Whether the host refuses the connection, because the agent is gone."""
        there = self.incarnation(member.value.incarnation)
        return (there is None or there.dead) and not self.faults.is_cut(asking.name, member.name)

    def incarnation(self, wanted: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.settings.incarnation == wanted), None)

    def exited(self, agent: Agent) -> None:
        exit_ = agent.exit
        assert isinstance(exit_, Exit)
        outcome = self.outcome()
        if outcome is not None and exit_.code in (ExitCode.SUCCEEDED, ExitCode.WORKERS_FAILED):
            succeeded = outcome.state is OutcomeState.SUCCEEDED
            require(
                succeeded == (exit_.code is ExitCode.SUCCEEDED),
                f"{agent} exits with {exit_.code.name}, the job {outcome.state.value}",
            )
        if exit_.code in (ExitCode.RESTARTABLE, ExitCode.CANNOT_JOIN):
            self.clock.later(2.5, lambda: self.restart(agent.name))
