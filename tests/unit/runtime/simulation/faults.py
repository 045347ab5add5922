"""What happens to the agents and the store of a World: crashes, partitions, outages, joins and changes of the spec."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.etcd.interface import Operation, Put

from hack.embedded_etcd.memory_state import Revoke, State
from tests.unit.runtime.simulation.agent import KEYS, Agent
from tests.unit.runtime.simulation.events import SWITCHES, UNCLEAR, Event, Kind

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.process import Process
    from tests.unit.runtime.simulation.world import World


class Faults:
    """Applies the events of a walk to a World."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._server = world.server
        self._copies: list[State] = []
        self._cuts: list[set[str]] = []
        """One name: reaches no other member. Two names: do not reach each other."""
        self._armed: set[Kind] = set()
        """Crashes that happen at the next opportunity."""

    def apply(self, event: Event) -> None:
        world = self._world
        world.invariants.certain &= event.kind not in UNCLEAR
        match event.kind:
            case Kind.STORE_DOWN | Kind.STORE_EMPTIED | Kind.STORE_SET_BACK | Kind.STORE_FULL:
                self._store_down(event)
            case Kind.COMPACT:
                self._server.compact(keep=event.arg)
            case Kind.JOIN | Kind.JOIN_BROKEN | Kind.JOIN_SLOW:
                self._join(event)
            case Kind.RESIZE | Kind.DRAIN:
                self._change_spec(event)
            case Kind.SLOW:
                self._clock.slow = 20.0
                self._clock.later(event.seconds, lambda: setattr(self._clock, "slow", 1.0))
            case Kind.CRASH_PLANNER | Kind.CRASH_FORMING:
                self._armed.add(event.kind)
            case Kind.STRANGER | Kind.FINISH:
                (world.network.attack if event.kind is Kind.STRANGER else world.finish)()
            case _:
                there = [agent for agent in world.agents if not agent.dead and agent.exit is None]
                if there and event.kind is Kind.ISLAND:
                    self._island(event, there)
                elif there:
                    self._apply_to(there[event.who % len(there)], event)

    def _join(self, event: Event) -> None:
        self._world.join()
        agent = self._world.agents[-1]
        if event.kind is Kind.JOIN_BROKEN:
            agent.crashes_until = self._clock.now + event.seconds
        elif event.kind is Kind.JOIN_SLOW:
            agent.start_seconds = event.seconds

    def back_up(self) -> None:
        """Copies the store's data, for a later STORE_SET_BACK; no copy is used once the job has ended."""
        if self._world.outcome() is not None:
            self._copies.clear()
        elif any(event.kind is Kind.STORE_SET_BACK for event in self._world.walk.events):
            self._copies.append(copy.deepcopy(self._server.state))

    def end(self) -> None:
        self._armed.clear()

    def is_cut(self, one: str, other: str) -> bool:
        return any(cut <= {one, other} for cut in self._cuts)

    def wrote(self, agent: Agent, operations: Sequence[Operation]) -> None:
        """Kills the planner between the ranks and the plan, if CRASH_PLANNER is pending."""
        keys = {operation.key for operation in operations if isinstance(operation, Put)}
        if (
            Kind.CRASH_PLANNER in self._armed
            and any(key.startswith(KEYS.ranks) for key in keys)
            and KEYS.plan not in keys
        ):
            self._armed.discard(Kind.CRASH_PLANNER)
            self._clock.note(agent.name, "dies between the ranks and the plan")
            agent.kill()

    def forming(self, process: Process) -> None:
        """Kills the process, which is about to connect to the others, if CRASH_FORMING is pending."""
        if Kind.CRASH_FORMING in self._armed:
            self._armed.discard(Kind.CRASH_FORMING)
            process.end(1, "crash while a world is formed")

    def _apply_to(self, agent: Agent, event: Event) -> None:
        self._switch(agent, event)
        self._cut_off(agent, event)
        match event.kind:
            case Kind.CRASH_AGENT:
                agent.kill()
                if event.arg % 2 == 0:
                    self._clock.later(event.seconds, lambda: self._world.restart(agent.name))
            case Kind.CRASH_WORKER:
                agent.workers.crash(event.arg)
            case Kind.FREEZE_WORKER:
                agent.workers.freeze(event.arg, event.seconds)
            case Kind.BREAK_LINKS:
                agent.workers.lose_links()
            case Kind.LOSE_LEASE:
                self._lose_lease(agent)
            case Kind.LEAVE:
                agent.leave()
            case Kind.CLOCK_JUMPS:
                agent.wall_offset += event.seconds * (-1) ** event.arg * 1000

    def _lose_lease(self, agent: Agent) -> None:
        own = self._server.read(KEYS.member(agent.name))
        if own is not None and own.lease and self._server.up:
            self._server.apply(Revoke(own.lease))

    def _switch(self, agent: Agent, event: Event) -> None:
        if event.kind in SWITCHES:
            self._for_a_while(agent, SWITCHES[event.kind], event.seconds, stands_still=event.kind is Kind.SUSPEND)
        if event.kind is Kind.SUSPEND or (event.kind is Kind.FREEZE and event.arg % 2 == 0):
            self._suspend_processes(agent, event.seconds)

    def _suspend_processes(self, agent: Agent, seconds: float) -> None:
        def over() -> None:
            agent.suspensions -= 1
            for process in agent.workers.processes:
                process.thaw()

        agent.suspensions += 1
        self._clock.later(seconds, over)

    def _cut_off(self, agent: Agent, event: Event) -> None:
        if event.kind in (Kind.CUT_PEERS, Kind.CUT_LINK, Kind.PARTITION):
            there = [other.name for other in self._world.agents if not other.dead]
            other = there[(there.index(agent.name) + event.arg) % len(there)]
            self._cut([{agent.name, other} if event.kind is Kind.CUT_LINK else {agent.name}], event.seconds)

    def _island(self, event: Event, there: Sequence[Agent]) -> None:
        inside = [agent for number, agent in enumerate(there) if event.arg >> ((number + event.who) % 6) & 1]
        outside = [agent for agent in there if agent not in inside]
        cuts = [{one.name, other.name} for one in inside for other in outside]
        for agent in inside:
            self._for_a_while(agent, "cut_off", event.seconds)
        self._cut(cuts, event.seconds)

    def _cut(self, cuts: list[set[str]], seconds: float) -> None:
        def over() -> None:
            for cut in cuts:
                self._cuts.remove(cut)

        self._cuts += cuts
        self._clock.later(seconds, over)

    def _for_a_while(self, agent: Agent, what: str, seconds: float, *, stands_still: bool = False) -> None:
        def over() -> None:
            agent.stood_still += seconds if stands_still else 0.0
            setattr(agent, what, False)
            agent.heartbeats.listen()
            agent.wake()
            self._server.wake_watches()

        setattr(agent, what, True)
        self._clock.later(seconds, over)

    def _store_down(self, event: Event) -> None:
        if event.kind is Kind.STORE_FULL:
            self._server.full = True
            self._clock.later(event.seconds, lambda: setattr(self._server, "full", False))
            return
        if not self._server.up:
            return
        self._server.stop()
        data: State | None = None
        if self._world.outcome() is None and event.kind is not Kind.STORE_DOWN:
            old = event.kind is Kind.STORE_SET_BACK and self._copies
            data = self._copies[-1 - event.arg % len(self._copies)] if old else State()

        def back() -> None:
            self._clock.note("-", "the store is back" + (f", at revision {data.revision}" if data else ""))
            self._server.start(data)
            if data and self._world.walk.operator:
                self._world.set_spec(self._world.spec)

        self._clock.later(event.seconds, back)

    def _change_spec(self, event: Event) -> None:
        world = self._world
        if not world.walk.operator or not self._server.up:
            return
        spec = world.spec
        if event.kind is Kind.RESIZE:
            world.set_spec(dataclasses.replace(spec, wanted=1 + event.arg, generation=spec.generation + 1))
            return
        names = sorted(agent.name for agent in world.agents if agent.live)
        if names:
            world.set_spec(dataclasses.replace(spec, draining=[names[event.who % len(names)]]))
