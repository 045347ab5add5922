"""Worker groups whose script has a session: workers/state_machine.py, with the processes of the simulation."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import PEER_LOST, FailureValue, Fence
from elasticjob_runtime.membership.view import ALIVE, Plan, Workers, WorkersState
from elasticjob_runtime.workers.effects import CancelStarts, Effect, GiveUp, SendPlan, Signal, StartProcesses
from elasticjob_runtime.workers.environment import GroupSpec, group_rank, worker_environment
from elasticjob_runtime.workers.messages import plan_message
from elasticjob_runtime.workers.state_machine import GroupState, PlanReport, Step

from tests.unit.runtime.simulation.process import STOPPED
from tests.unit.runtime.simulation.session_process import SessionProcess
from tests.unit.runtime.simulation.states import State

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent

KEEP_EVERY = 3
"""Steps between two copies of the state in the agent's memory."""


class SessionWorkerGroup:
    def __init__(self, agent: Agent, nproc: int) -> None:
        self._agent = agent
        self._clock = agent.clock
        self.processes: list[SessionProcess] = []
        self.kept: dict[int, tuple[Fence, State]] = {}
        """Local rank -> the newest state that the agent holds in memory."""
        self.may_save_until = 0.0
        self.stepped = 0
        """The last round in which a process has taken a step."""
        self._spec = GroupSpec(run_id="run", role="default", nproc=nproc, max_restarts=0)
        self._state = GroupState(spec=self._spec)
        self._unread: collections.deque[Callable[[], None]] = collections.deque()
        self._starts = 0
        """Starts that were canceled have lower numbers."""
        self._dead = False

    @property
    def view(self) -> Workers:
        return dataclasses.replace(self._state.view, state=WorkersState.NONE) if self._dead else self._state.view

    @property
    def alive(self) -> bool:
        return self.view.state in ALIVE

    @property
    def trains(self) -> bool:
        return any(process.trains for process in self.processes)

    @property
    def deadline(self) -> float | None:
        times = (self._state.report_due, self._state.decide_at)
        return min((at for at in times if at is not None), default=None)

    # -- what the agent does

    def start(self, plan: Plan, *, alone: bool) -> None:
        assert not self.processes
        self._apply(self._state.start(plan, self._agent.now, alone=alone))

    def move(self, plan: Plan, step_grace: float) -> None:
        self._apply(self._state.move(plan, step_grace, self._agent.now))

    def stop(self, grace: float) -> None:
        saving = self._clock.random.uniform(0.0, min(grace, 2.0)) if grace and self.view.saves else 0.0
        self._apply(self._state.stop(grace, self._agent.now), saving)

    def tick(self) -> None:
        due = self.deadline
        if due is not None and self._agent.now >= due:
            self._read()
        self._apply(self._state.tick(self._agent.now))

    # -- what happens to it

    def crash(self, number: int) -> None:
        """A process ends with an error."""
        if living := [process for process in self.processes if not process.dead]:
            living[number % len(living)].kill("crash")

    def freeze(self, number: int, seconds: float) -> None:
        if living := [process for process in self.processes if not process.dead]:
            living[number % len(living)].freeze(seconds)

    def lose_links(self) -> None:
        """The network closes the connections of its processes."""
        for process in self.processes:
            process.lose_links()

    def killed(self) -> None:
        """The agent died, and its processes with it."""
        self._starts += 1
        vanish = self._clock.random.random() < 0.5
        for process in self.processes:
            process.end(-9, STOPPED, vanishes=vanish)
        self._dead = True

    # -- messages

    def receive(self, call: Callable[[], None]) -> None:
        """A process sends a message, which the agent handles with `call`."""
        self._unread.append(call)
        self._agent.post(self._read)

    def _read(self) -> None:
        while self._unread:
            self._unread.popleft()()

    def said_hello(self, process: SessionProcess) -> None:
        if process in self.processes:
            self._apply(self._state.said_hello(process.local_rank, self._agent.now))

    def reported(self, report: PlanReport) -> None:
        self._apply(self._state.reported(report, self._agent.now))

    def keep(self, local_rank: int, fence: Fence, state: State) -> None:
        """A process copies its state to the agent's memory, from time to time."""
        if state.number % KEEP_EVERY == 0:
            self.kept[local_rank] = (fence, state)

    # -- effects

    def _apply(self, step: Step, kill_after: float = 0.0) -> None:
        self._state, effects = step
        for effect in effects:
            self._carry_out(effect, kill_after)

    def _carry_out(self, effect: Effect, kill_after: float) -> None:
        match effect:
            case StartProcesses():
                for local_rank in effect.local_ranks:
                    self._spawn_soon(effect.plan, local_rank, alone=effect.alone)
            case CancelStarts():
                self._starts += 1
            case SendPlan():
                self._send(effect)
            case Signal():
                for process in self._of(*effect.local_ranks):
                    self._clock.later(kill_after, lambda process=process: process.kill(STOPPED))  # type: ignore[misc]
            case GiveUp():
                for process in self._of(effect.local_rank):
                    process.give_up()

    def _of(self, *local_ranks: int) -> list[SessionProcess]:
        return [process for process in self.processes if process.local_rank in local_ranks]

    def _send(self, effect: SendPlan) -> None:
        assert self.view.plan is not None
        self._agent.world.sessions.tells(self.view.plan.value)
        plan, local_rank, environment = effect.plan, effect.local_rank, None
        if plan.rank is not None:
            environment = worker_environment(
                {}, self._spec, plan.value, group_rank(plan), local_rank, error_file="", agent_socket="",
                replica=plan.replica,
            )  # fmt: skip
        for process in self._of(local_rank):
            process.hear(plan_message(effect, environment, self._spec))

    # -- starts and ends

    def _spawn_soon(self, plan: Plan, local_rank: int, *, alone: bool) -> None:
        starts = self._starts

        def spawn() -> None:
            if starts == self._starts:
                self.processes.append(SessionProcess(self, self._agent, local_rank, plan, alone=alone))
                self._state = self._state.started(local_rank)

        self._clock.later(self._clock.random.uniform(0.0, 0.02), lambda: self._agent.post(spawn))

    def ended(self, process: SessionProcess, code: int, why: str) -> None:
        if process not in self.processes:
            return
        self.processes.remove(process)
        failed = code != 0 and not self._state.stopping
        failure = self._failure(process, code, why) if failed else None
        self._apply(self._state.exited(process.local_rank, self._agent.now, failure))

    def _failure(self, process: SessionProcess, code: int, why: str) -> FailureValue:
        return FailureValue(
            member=self._agent.name,
            round=self.view.round,
            rank=self._state.processes[process.local_rank].rank,
            local_rank=process.local_rank,
            exit_code=code,
            reason=PEER_LOST if why == PEER_LOST else "ApplicationError",
            message=why,
            time=self._clock.now + self._agent.wall_offset,
        )
