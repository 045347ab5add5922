"""A process of the simulation: it handles one thing after the other, may be frozen, and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import PEER_LOST

from tests.unit.runtime.simulation.clock import Actor

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent

STOPPED = "stopped by its agent"


class Process:
    """A worker process."""

    def __init__(self, agent: Agent, local_rank: int) -> None:
        self._clock = agent.clock
        self._world = agent.world
        self.agent = agent
        self.local_rank = local_rank
        self.dead = False
        self.vanished = False
        """It ended with its machine, which closes no connections."""
        self._freezes = 0
        self._thawed_at = -1e9
        self._actor = Actor(self._clock, lambda: self.dead or self.frozen, self._advance, self._clock.local_latency)

    def __repr__(self) -> str:
        return f"{self.agent}.{self.local_rank}"

    def soon(self, call: Callable[[], None], delay: float = 0.0) -> None:
        """`call` happens in this process, unless it ends before; later if it is frozen."""
        if delay:
            self._clock.later(delay, lambda: self._actor.post(call))
        else:
            self._actor.post(call)

    @property
    def frozen(self) -> bool:
        return self.agent.suspended or self._freezes > 0

    def frozen_within(self, seconds: float) -> bool:
        """Whether it was frozen at any time in the last `seconds`."""
        return self.frozen or self._clock.now - self._thawed_at < seconds

    def freeze(self, seconds: float) -> None:
        def thaw() -> None:
            self._freezes -= 1
            self.thaw()

        self._clock.note(self.agent.name, f"process {self.local_rank} freezes")
        self._freezes += 1
        self._clock.later(seconds, thaw)

    def thaw(self) -> None:
        """It may continue, unless something else freezes it too."""
        self._thawed_at = self._clock.now
        self._actor.wake()

    def give_up(self) -> None:
        """The agent kills it, because it does not follow the plan."""
        self._world.invariants.gives_up(self)
        self.kill("it does not follow the plan")

    def kill(self, why: str) -> None:
        """It ends at once, even if it is frozen."""
        self._clock.later(self._clock.random.uniform(0.0, 0.02), lambda: self.end(-9, why))

    def end(self, code: int, why: str = "", *, vanishes: bool = False) -> None:
        if self.dead:
            return
        self.dead, self.vanished = True, vanishes
        if code:
            self._clock.note(self.agent.name, f"process {self.local_rank} ends: {why}")
            self._world.invariants.crashes += why not in (PEER_LOST, STOPPED) and not self.agent.joining
        self._ended(code, why)

    def _advance(self) -> None:
        """Called after everything that it has handled."""
        raise NotImplementedError

    def _ended(self, code: int, why: str) -> None:
        raise NotImplementedError
