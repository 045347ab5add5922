"""A World whose events happen one by one, for tests of one scenario each."""

from __future__ import annotations

from typing import Any

from elasticjob_runtime.contract import PlanValue

from tests.unit.runtime.simulation.agent import KEYS, Agent
from tests.unit.runtime.simulation.events import Event, Kind, Walk
from tests.unit.runtime.simulation.world import World


class Scenario(World):
    """A world whose events happen one by one."""

    def __init__(
        self, *, agents: int = 4, least: int = 2, most: int = 3, seed: int = 0, max_restarts: int = 0, **more: Any
    ) -> None:
        super().__init__(Walk(agents=agents, least=least, most=most, seed=seed, max_restarts=max_restarts, **more))
        self.wait(10.0)

    def wait(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)

    def happens(self, kind: Kind, who: Agent | None = None, seconds: float = 1.0, arg: int = 1) -> None:
        there = [agent for agent in self.agents if not agent.dead and agent.exit is None]
        self.faults.apply(Event(0.0, kind, there.index(who) if who else 0, seconds, arg))

    @property
    def plan(self) -> PlanValue:
        kv = self.server.read(KEYS.plan)
        assert kv is not None, "no plan\n" + "\n".join(self.clock.trace)
        return PlanValue.from_json(kv.value)

    @property
    def trainers(self) -> list[Agent]:
        """The agents that run the current plan, in rank order."""
        attempt = self.plan.attempt
        running = [(agent.workers.view.plan, agent) for agent in self.agents if agent.workers.alive]
        ranked = [
            (plan.rank.group_rank, agent)
            for plan, agent in running
            if plan and plan.rank and plan.value.attempt == attempt
        ]
        return [agent for _, agent in sorted(ranked, key=lambda one: one[0])]

    @property
    def spares(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.live and not agent.workers.alive]

    def check(self, holds: object, what: str = "") -> None:
        assert holds, f"{what}\n" + "\n".join(self.clock.trace)

    def trains(self, size: int, what: str = "", restarts: int | None = None) -> None:
        """So many agents run the current plan, which counts so many restarts."""
        self.check(len(self.trainers) == size, what or f"{self.trainers} train, not {size}")
        self.check(restarts in (None, self.plan.restart_count), f"{self.plan.restart_count} restarts are counted")
