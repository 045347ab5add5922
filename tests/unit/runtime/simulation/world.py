"""All agents, the store and what happens to them: one random walk.

A `Walk` says how many agents there are, what befalls them and when; the seed decides everything else (latencies, who is
quicker). After the last trouble everything heals, and the walk has to end well: everybody trains or is a spare, and the
job succeeds.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

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
from elasticjob_runtime.etcd.interface import Operation, Put
from elasticjob_runtime.etcd.memory_state import Revoke, State, Txn
from elasticjob_runtime.membership.actions import (
    Exit,
)
from elasticjob_runtime.membership.sizes import group_size
from elasticjob_runtime.membership.view import (
    Member,
    MemberSettings,
    Plan,
    WorkersState,
)

from tests.unit.runtime.simulation.agent import KEYS, Agent
from tests.unit.runtime.simulation.clock import Clock
from tests.unit.runtime.simulation.events import SWITCHES, UNCLEAR, Event, Kind, Walk
from tests.unit.runtime.simulation.folder import Folder
from tests.unit.runtime.simulation.invariants import Broken, Invariants, require
from tests.unit.runtime.simulation.server import Server
from tests.unit.runtime.simulation.workers import Training

PATIENCE = 90.0
"""s after the last trouble in which everything has to be well again."""


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.clock = Clock(walk.seed)
        self.invariants = Invariants(KEYS)
        self.server = Server(self.clock, self.invariants.changed)
        self.agents: list[Agent] = []
        self.finished = False
        self._copies: list[State] = []
        self._trainings: dict[str, Training] = {}
        self._cuts: list[set[str]] = []
        """Who does not reach whom: one name, nobody; two, each other."""
        self._crash_planner = False
        self._names = 0
        self._incarnations = 0
        self._healed = False
        allowed = list(walk.allowed) if walk.operator else []  # agents have no flag for it
        self.folder = Folder()
        self.spec = SpecValue(
            min=walk.least,
            max=walk.most,
            allowed=allowed,
            max_restarts=walk.max_restarts,
            on_partition=CONSISTENT if walk.consistent else AVAILABLE,
        )
        self.clock.later(2.0, self._look_at_islands)
        self.invariants.max_restarts = walk.max_restarts
        self._set_spec(self.spec)
        for _ in range(walk.agents):
            self.clock.later(self.clock.random.uniform(0.0, 0.5), self._join)

    # -- the walk

    def run(self) -> None:
        """Raises Broken, with the trace."""
        copies = any(event.kind is Kind.STORE_SET_BACK for event in self.walk.events)
        try:
            for event in self.walk.events:
                self.clock.run_until(self.clock.now + event.after)
                self.clock.note("-", f"{event.kind.name} who={event.who} seconds={event.seconds:g} arg={event.arg}")
                self._happens(event)
                if self._outcome() is not None:
                    self._copies.clear()
                elif copies:
                    self._copies.append(copy.deepcopy(self.server.state))
            self._heal()
            if self._outcome() is None:
                self._settles()
            self._ends()
        except Broken as broken:
            trace = "\n".join(self.clock.trace[-400:])
            raise Broken(f"{broken}\n{self.walk}\n{trace}") from broken

    def _settles(self) -> None:
        """Everybody who can takes part, or is a spare."""
        while len(self._able()) < self._enough():
            self._join()
        end = self.clock.now + PATIENCE
        reason = "?"
        while self.clock.now < end:
            self.clock.run_until(self.clock.now + 0.5)
            reason = "" if self._outcome() is not None else self._unsettled()
            if not reason:
                return
        raise Broken(f"not settled after {PATIENCE:g} s: {reason}")

    def _ends(self) -> None:
        self.finish()
        end = self.clock.now + PATIENCE
        while self.clock.now < end and any(agent.exit is None and not agent.dead for agent in self.agents):
            self.clock.run_until(self.clock.now + 0.5)
        still = [agent for agent in self.agents if agent.exit is None and not agent.dead]
        require(not still, f"never end: {still}")
        require(self._outcome(), "the job ended without an outcome")

    def _unsettled(self) -> str:
        """What is not yet as it should be; empty: all is well."""
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
            elif agent.workers.alive:
                return f"{agent} is not planned, but its workers are {workers.state} in round {workers.round}"
        named = {agent.name for agent in able}
        return (
            "" if ranks.keys() <= named else f"plan {plan.round} names {sorted(ranks.keys() - named)}, who cannot train"
        )

    def _able(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.live and agent.name not in self.spec.draining]

    def _enough(self) -> int:
        fitting = [size for size in self.spec.allowed if self.spec.min <= size <= self.spec.max]
        return min(fitting, default=self.spec.min)

    def _outcome(self) -> OutcomeValue | None:
        kv = self.server.read(KEYS.outcome)
        return OutcomeValue.from_json(kv.value) if kv else None

    # -- what happens

    def _happens(self, event: Event) -> None:
        self.invariants.certain &= event.kind not in UNCLEAR
        match event.kind:
            case Kind.STORE_DOWN | Kind.STORE_EMPTIED | Kind.STORE_SET_BACK | Kind.STORE_FULL:
                self._store_down(event)
            case Kind.COMPACT:
                self.server.compact(keep=event.arg)
            case Kind.JOIN:
                self._join()
            case Kind.RESIZE | Kind.DRAIN:
                self._wish(event)
            case Kind.SLOW:
                self.clock.slow = 20.0
                self.clock.later(event.seconds, lambda: setattr(self.clock, "slow", 1.0))
            case Kind.CRASH_PLANNER:
                self._crash_planner = True
            case Kind.FINISH:
                self.finish()
            case _:
                there = [agent for agent in self.agents if not agent.dead and agent.exit is None]
                if there and event.kind is Kind.ISLAND:
                    self._island(event, there)
                elif there:
                    self._befalls(there[event.who % len(there)], event)

    def _befalls(self, agent: Agent, event: Event) -> None:
        if event.kind in SWITCHES:
            self._for_a_while(agent, SWITCHES[event.kind], event.seconds, stands_still=event.kind is Kind.SUSPEND)
        if event.kind in (Kind.CUT_PEERS, Kind.CUT_LINK, Kind.PARTITION):
            there = [other.name for other in self.agents if not other.dead]
            other = there[(there.index(agent.name) + event.arg) % len(there)]
            cut = {agent.name, other} if event.kind is Kind.CUT_LINK else {agent.name}
            self._cuts.append(cut)
            self.clock.later(event.seconds, lambda: self._cuts.remove(cut))
        match event.kind:
            case Kind.CRASH_AGENT:
                agent.kill()
                if event.arg % 2 == 0:
                    self.clock.later(event.seconds, lambda: self._come_back(agent.name))
            case Kind.CRASH_WORKER:
                self.invariants.crashes += agent.workers.fail(agent.workers.view.round, "crash")
            case Kind.LOSE_LEASE:
                own = self.server.read(KEYS.member(agent.name))
                if own is not None and own.lease and self.server.up:
                    self.server.apply(Revoke(own.lease))
            case Kind.LEAVE:
                agent.leave()
            case Kind.CLOCK_JUMPS:
                agent.wall_offset += event.seconds * (-1) ** event.arg * 1000

    def _island(self, event: Event, there: Sequence[Agent]) -> None:
        inside = [agent for number, agent in enumerate(there) if event.arg >> ((number + event.who) % 6) & 1]
        cuts = [{one.name, other.name} for one in inside for other in there if other not in inside]
        self._cuts += cuts
        for agent in inside:
            self._for_a_while(agent, "cut_off", event.seconds)

        def over() -> None:
            for cut in cuts:
                self._cuts.remove(cut)

        self.clock.later(event.seconds, over)

    def _look_at_islands(self) -> None:
        self.clock.later(2.0, self._look_at_islands)
        now = self.clock.now
        for agent in self.agents:
            if agent.stopped or agent.exit is not None:
                agent.awake_since = now
            agent.out_since = (agent.out_since or now) if agent.cut_off else None
            agent.alone_since = (agent.alone_since or now) if agent.cut_off or not self.server.up else None
            if self.clock.slow > 1.0:
                agent.awake_since = now
            self.invariants.bounded(agent, self.spec if self.walk.operator else None, now)

    def _for_a_while(self, agent: Agent, what: str, seconds: float, *, stands_still: bool = False) -> None:
        def over() -> None:
            agent.stood_still += seconds if stands_still else 0.0
            setattr(agent, what, False)
            agent.hearing.listen()
            agent.wake()
            self.server.wake_watches()

        setattr(agent, what, True)
        self.clock.later(seconds, over)

    def _store_down(self, event: Event) -> None:
        if event.kind is Kind.STORE_FULL:
            self.server.full = True
            self.clock.later(event.seconds, lambda: setattr(self.server, "full", False))
            return
        if not self.server.up:
            return
        self.server.stop()
        data: State | None = None
        if self._outcome() is None and event.kind is not Kind.STORE_DOWN:
            old = event.kind is Kind.STORE_SET_BACK and self._copies
            data = self._copies[-1 - event.arg % len(self._copies)] if old else State()

        def back() -> None:
            self.clock.note("-", "the store is back" + (f", at revision {data.revision}" if data else ""))
            self.server.start(data)
            if data and self.walk.operator:
                self._set_spec(self.spec)

        self.clock.later(event.seconds, back)

    def _wish(self, event: Event) -> None:
        if not self.walk.operator or not self.server.up:
            return
        if event.kind is Kind.RESIZE:
            self._set_spec(dataclasses.replace(self.spec, wanted=1 + event.arg, generation=self.spec.generation + 1))
            return
        names = sorted(agent.name for agent in self.agents if agent.live)
        if names:
            self._set_spec(dataclasses.replace(self.spec, draining=[names[event.who % len(names)]]))

    def _set_spec(self, spec: SpecValue) -> None:
        self.spec = spec
        self.invariants.specs = [*self.invariants.specs[-2:], spec]
        if self.walk.operator:
            self.server.apply(Txn(success=[Put(KEYS.spec, spec.to_json())]))

    def _join(self) -> None:
        self._names += 1
        self._start(f"w{self._names}")

    def _come_back(self, name: str) -> None:
        if not any(agent.name == name and not agent.dead for agent in self.agents):
            self._start(name)

    def _start(self, name: str) -> None:
        self._incarnations += 1
        walk = self.walk
        settings = MemberSettings(
            me=name,
            incarnation=f"i{self._incarnations}",
            nproc=1,
            min=walk.least,
            max=walk.most,
            max_restarts=walk.max_restarts,
        )
        warm_after = self.clock.random.choice([0.0, 0.0, 0.1, 2.0])
        self.agents.append(Agent(self, settings, warm_after=warm_after))

    def _heal(self) -> None:
        self.clock.note("-", "everything heals")
        longest = max((event.seconds for event in self.walk.events), default=0.0)
        self.clock.run_until(self.clock.now + longest + 0.1)
        self._crash_planner = False
        self._healed = True

    def finish(self) -> None:
        self.finished = True
        for training in self._trainings.values():
            training.complete()

    # -- what agents ask of it

    def training(self, plan: Plan) -> Training:
        training = self._trainings.setdefault(plan.value.attempt, Training(self.clock, plan, self.folder))
        if self.finished:
            self.clock.later(0.5, training.complete)
        return training

    def answers(self, asking: Agent, member: Member) -> bool:
        """Whether this member greets who asks."""
        there = self.incarnation(member.value.incarnation)
        return (
            there is not None and not there.stopped and there.exit is None and not self.is_cut(asking.name, member.name)
        )

    def refuses(self, asking: Agent, member: Member) -> bool:
        """Whether the host says at once that nobody listens."""
        there = self.incarnation(member.value.incarnation)
        return (there is None or there.dead) and not self.is_cut(asking.name, member.name)

    def incarnation(self, wanted: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.settings.incarnation == wanted), None)

    def is_cut(self, one: str, other: str) -> bool:
        return any(cut <= {one, other} for cut in self._cuts)

    def wrote(self, agent: Agent, operations: Sequence[Operation]) -> None:
        keys = {operation.key for operation in operations if isinstance(operation, Put)}
        if self._crash_planner and any(key.startswith(KEYS.ranks) for key in keys) and KEYS.plan not in keys:
            self._crash_planner = False
            self.clock.note(agent.name, "dies between the ranks and the head")
            agent.kill()

    def exited(self, agent: Agent) -> None:
        exit_ = agent.exit
        assert isinstance(exit_, Exit)
        outcome = self._outcome()
        if outcome is not None and exit_.code in (ExitCode.SUCCEEDED, ExitCode.WORKERS_FAILED):
            succeeded = outcome.state is OutcomeState.SUCCEEDED
            require(
                succeeded == (exit_.code is ExitCode.SUCCEEDED),
                f"{agent} exits with {exit_.code.name}, the job {outcome.state.value}",
            )
        if exit_.code is ExitCode.RESTARTABLE:
            self.clock.later(2.5, lambda: self._come_back(agent.name))
