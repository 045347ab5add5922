"""A session's snapshots in memory: the one that earlier processes left, and when to take the next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.training import channel
from elasticjob_runtime.training.checkpoint import this_job
from elasticjob_runtime.training.checkpoint.order import Held, State, choose
from elasticjob_runtime.training.memory import Pace, Recovered, agent_memory_of_this_process
from elasticjob_runtime.training.session.world import SessionError

logger = logging.getLogger("elasticjob_runtime.training")


POLL = 0.005
"""s between two looks at whether a snapshot's memory is there."""


class Snapshots:
    """One process of each agent takes them: with DDP, all states are the same. Does nothing without an agent."""

    def __init__(self, layout: str, *, enabled: bool = True) -> None:
        """layout: of the model. Takes time for a large state, so no other process should wait for this one yet."""
        self._purpose = f"session {layout}"
        self._memory = agent_memory_of_this_process() if enabled else None
        self._pace = Pace()
        self._longest = 1
        """Interval so far, for the log."""
        self.found: Recovered | None = self._memory.newest(self._purpose) if self._memory is not None else None
        """The newest one that earlier processes left; None after `entered`."""

    @property
    def held(self) -> Held | None:
        """The same, for `choose`."""
        return Held(rank=0, state=self.found.state(this_job())) if self.found is not None else None

    def continues(self, claim: int) -> None:
        """claim: of the newest file in the directory of the checkpoints."""
        if self._memory is not None:
            self._memory.continues(self._purpose, claim)

    def compare(self, loaded: State) -> None:
        """loaded: what this process has. A snapshot that is not newer no longer counts."""
        self.continues(loaded.claim)
        if self.held is None:
            return
        held = Held(rank=0, state=loaded)
        choice = choose([held, self.held], this_job(), shared=True)
        if held in choice.held:
            logger.info("%s", choice.why)
            self.forget()

    def forget(self) -> None:
        if self.found is not None:
            self.found.close()
            self.found = None

    def load(self) -> dict[str, Any]:
        """What was found. Raises SessionError if it is no longer there."""
        began = time.time()
        state: dict[str, Any] | None = self.found.load() if self.found is not None else None
        if self.found is None or state is None:
            raise SessionError("the snapshot in memory that all processes agreed on is no longer there")
        logger.info("continuing after step %d, from memory", self.found.step)
        channel.send_phase("restore", began=began, step=self.found.step)
        return state

    def entered(self) -> None:
        """All processes of the world have the same state, which the next step changes."""
        self.forget()
        self._pace.changed()

    def committed(self, step: int, state: Callable[[], Any]) -> None:
        """Takes a snapshot if it is time for one. To be called after each step."""
        if self._memory is None:
            return
        due = self._pace.is_due(step, time.monotonic())
        if self._pace.interval > self._longest:  # also where the first step after a snapshot shows what it costs
            self._longest = self._pace.interval
            logger.info("a snapshot in memory takes %.3f s: one in %d steps", self._pace.cost, self._longest)
        if due:
            self.take(step, state)

    def take_last(self, step: int, state: Callable[[], Any], seconds: float) -> bool:
        """Takes a snapshot before this process ends, and returns whether it is there. Waits at most `seconds` for the
        memory that it needs."""
        if channel.own_local_rank():
            return True  # another process of this agent does
        until = time.monotonic() + seconds
        while self._memory is not None and not self._memory.prepare(self._purpose, state):
            if time.monotonic() >= until:
                return False
            time.sleep(POLL)
        self.take(step, state)
        return self._memory is not None

    def take(self, step: int, state: Callable[[], Any]) -> None:
        """Takes a snapshot, in one process of each agent."""
        if self._memory is None or channel.own_local_rank():
            return
        if not self._memory.prepare(self._purpose, state):
            return  # after a later step
        cost = self._memory.keep(self._purpose, state(), step)
        if cost is None:
            self._memory = None
            return
        self._pace.took(cost, time.monotonic())
