"""The training's state in each worker process, as the steps that led to it, and what must hold for it: there is one
history, and no step of it is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.unit.runtime.simulation.folder import Commit
from tests.unit.runtime.simulation.invariants import require

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.meeting import Meeting
    from tests.unit.runtime.simulation.session_process import SessionProcess


@dataclasses.dataclass(eq=False, slots=True)
class State:
    """Two processes have the same state only if they have the same object."""

    number: int
    """Steps so far."""
    before: State | None
    world: str
    """The attempt of the plan in whose world its last step was committed."""
    saved: Commit | None = None
    """The newest checkpoint in its history."""

    def __repr__(self) -> str:
        return f"step {self.number} of {self.world}"

    def extends(self, other: State) -> bool:
        """Whether `other` is this state, or one that this training had before."""
        state: State | None = self
        while state is not None and state.number > other.number:
            state = state.before
        return state is other


@dataclasses.dataclass(slots=True)
class History:
    """What has been agreed and committed in all worlds."""

    _late: set[tuple[SessionProcess, Meeting]] = dataclasses.field(default_factory=set)
    """Who has committed a step in a world that other processes had left."""

    def agreed(self, processes: Sequence[SessionProcess], state: State, among: Sequence[State | None]) -> None:
        """All processes of a world are about to have `state`. `among`: the states of those that gave it."""
        require(
            all(one is state for one in among),
            f"processes with different states count as equal: {sorted(map(str, among))}",
        )
        live = [process for process in processes if process.live]
        newest = max((process.fence for process in live if process.fence is not None), default=None)
        for process in live:
            if process.fence == newest and process.state is not None:
                require(state.extends(process.state), f"{process} has {process.state}, and must continue with {state}")

    def begins(self, processes: Sequence[SessionProcess]) -> None:
        """A step begins in a world."""
        found = {id(process.state) for process in processes}
        require(len(found) == 1, f"{processes} have different states: {[process.state for process in processes]}")

    def trains_in_replicas(self, parts: Sequence[Sequence[SessionProcess]]) -> None:
        """A step begins: `parts` are whole replicas, and no two have the same number."""
        for part in parts:
            worlds = {(item.replica.index, item.replica.world) for item in part if item.replica is not None}
            require(len(worlds) == 1, f"{part} train as one replica, and are in {worlds}")
            ranks = [(item.replica.ordinal, item.local_rank) for item in part if item.replica is not None]
            require(ranks == sorted(set(ranks)) and len(ranks) == len(part), f"{part} have the ranks {ranks}")
        indexes = [part[0].replica.index for part in parts if part[0].replica is not None]
        require(len(set(indexes)) == len(parts), f"replicas {indexes} train together")

    def committed(self, process: SessionProcess, meeting: Meeting) -> None:
        """A process has committed a step. In a world that the others have left, that is only the step whose all-reduce
        was complete when they did."""
        left = [process for process in meeting.processes if process.fence is not None and process.fence > meeting.fence]
        if left:
            require((process, meeting) not in self._late, f"{process} continues in {meeting}, which {left} have left")
            self._late.add((process, meeting))
