"""What the worker processes of a script with a session share: worlds, checkpoints, and the training's history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Fence, PlanValue
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.training.checkpoint.claims import Writer

from tests.unit.runtime.simulation.folder import Commit
from tests.unit.runtime.simulation.meeting import Meeting, Start
from tests.unit.runtime.simulation.states import History, State

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent
    from tests.unit.runtime.simulation.session_process import SessionProcess
    from tests.unit.runtime.simulation.world import World

STEPS = 2
"""Steps in the last plan by which a script shows that it trains."""


class Sessions:
    def __init__(self, world: World, step_time: float) -> None:
        """`step_time`: of about a step, s."""
        self._world = world
        self.history = History()
        self.step_time = step_time
        self._last = 0
        self._plans: dict[str, PlanValue] = {}
        self._meetings: dict[str, Meeting] = {}
        self._starts: dict[str, Start] = {}
        self._checkpoints: dict[Commit, tuple[Fence, State]] = {}

    def complete(self) -> None:
        """The training has done its last step. Replicas have a given one, because all processes of one decide alike."""
        states = [
            process.state for agent in self._world.agents for process in agent.workers.processes if process.trains
        ]
        self._last = max([self._last, *(state.number + 2 for state in states if state is not None)])
        for start in self._starts.values():
            start.complete()

    def is_over(self, state: State | None) -> bool:
        if not self._world.finished or not self._world.walk.replica_size:
            return self._world.finished
        return state is not None and state.number >= self._last

    def untrained(self, plan: PlanValue) -> str:
        """Why the worker processes of the plan do not train; empty if they do."""
        if not plan.agent_store:
            start = self._starts.get(plan.attempt)
            return "" if start is not None and start.trains else f"the processes of plan {plan.round} do not train"
        meeting = self._meetings.get(plan.attempt)
        if meeting is None or not meeting.trains or meeting.commits < STEPS * meeting.size:
            processes = [process for agent in self._world.agents if agent.live for process in agent.workers.processes]
            return f"world {plan.round} takes no steps: {[(item, item.phase.name) for item in processes]}"
        return "" if plan.in_place else f"plan {plan.round} is not marked as continuing in place"

    def start(self, plan: Plan, *, plain: bool) -> Start:
        """The world in which a process starts: the plan's, or that of its replica."""
        replica = plan.replica
        if replica is None:
            return self._starts.setdefault(plan.value.attempt, Start(self._world, plan.value.world_size, plain=plain))
        size = len(replica.members) * plan.value.nproc
        return self._starts.setdefault(
            f"replica {replica.world} at {replica.master_port}", Start(self._world, size, plain=plain)
        )

    def tells(self, plan: PlanValue) -> None:
        """An agent sends the plan to its worker processes."""
        self._plans[plan.attempt] = plan

    def meeting(self, attempt: str) -> Meeting:
        if attempt not in self._meetings:
            self._meetings[attempt] = Meeting(self._world, self._plans[attempt])
        return self._meetings[attempt]

    def host(self, plan: PlanValue) -> Agent | None:
        """The agent that hosts the worker store of the plan."""
        return self._world.incarnation(self._world.invariants.leaders.get(plan.attempt, ""))

    def connected(self, one: Agent, other: Agent) -> bool:
        """Whether their worker processes reach each other."""
        return one is other or not self._world.faults.is_cut(one.name, other.name)

    # -- checkpoints

    def save(self, process: SessionProcess, meeting: Meeting) -> bool:
        """Saves a checkpoint. False: a newer group saves there."""
        assert process.state is not None
        folder, state = self._world.folder, process.state
        claim = folder.enter(Writer(owner="job", fence=meeting.fence))
        if claim is None or not folder.check(claim):
            return False
        state.saved = folder.commit(claim, state.number, state.saved)
        self._checkpoints[state.saved] = (meeting.fence, state)
        return True

    def saved(self, in_memory: tuple[Fence, State] | None) -> tuple[Fence | None, State | None]:
        """What a process that starts finds: the newest checkpoint, or what its agent holds in memory if that is newer.
        Each with the world in which it was saved."""
        newest = self._world.folder.restore()
        found = [self._checkpoints[newest]] if newest is not None else []
        found += [in_memory] if in_memory is not None else []
        return max(found, key=lambda one: (one[0], one[1].number), default=(None, None))
