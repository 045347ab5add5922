"""Worker groups whose script has a session. Stands for the agent's workers/group.py, around its workers/in_place.py."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from elasticjob_runtime.contract import PEER_LOST, FailureValue, Fence
from elasticjob_runtime.membership.view import ALIVE, Plan, Workers, WorkersState
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.followers import PlanReport
from elasticjob_runtime.workers.in_place import InPlace
from elasticjob_runtime.workers.prepare import WorkerPreparation
from elasticjob_runtime.workers.process import WorkerProcess

from tests.unit.runtime.simulation.process import STOPPED
from tests.unit.runtime.simulation.session_process import SessionProcess
from tests.unit.runtime.simulation.states import State

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent

KEEP_EVERY = 3
"""Steps between two copies of the state in the agent's memory."""
NOTHING: Any = None
"""For what a process in the simulation does not have: a command, logs."""


class SessionWorkerGroup:
    def __init__(self, agent: Agent, nproc: int) -> None:
        self._agent = agent
        self._clock = agent.clock
        self._nproc = nproc
        self.processes: list[SessionProcess] = []
        self.kept: dict[int, tuple[Fence, State]] = {}
        """Local rank -> the newest state that the agent holds in memory."""
        self.may_save_until = 0.0
        self.view = Workers()
        self.stepped = 0
        """The last round in which a process has taken a step."""
        preparation = WorkerPreparation(
            group=GroupSpec(run_id="run", role="default", nproc=nproc, max_restarts=0),
            environment={}, agent_socket="", command=NOTHING, log_settings=NOTHING, directory=NOTHING,
        )  # fmt: skip
        self._in_place = InPlace(preparation, self, cast("list[WorkerProcess]", self.processes))
        self._followers = self._in_place.followers
        self._unread: collections.deque[Callable[[], None]] = collections.deque()
        self._starting: set[int] = set()
        self._starts = 0
        """Starts that were canceled have lower numbers."""
        self._stopping = False

    @property
    def alive(self) -> bool:
        return self.view.state in ALIVE

    @property
    def trains(self) -> bool:
        return any(process.trains for process in self.processes)

    @property
    def deadline(self) -> float | None:
        return self._followers.deadline

    # -- what the agent does

    def start(self, plan: Plan, *, alone: bool) -> None:
        assert not self.processes
        self._followers.clear()
        self._stopping = False
        now = self._agent.now
        self.view = Workers(
            state=WorkersState.RUNNING, round=plan.round, changed_at=now, began_at=now, plan=plan,
            entered=0 if alone else None,
        )  # fmt: skip
        self._start(plan, range(self._nproc), alone=alone)

    def move(self, plan: Plan, patience: float) -> None:
        known = plan == self.view.plan
        self.view = dataclasses.replace(
            self.view, round=plan.round, changed_at=self._agent.now, began_at=self._agent.now, plan=plan, failure=None,
            incomplete=False, waiting=False, rejected_at=None, entered=self.view.trained_round,
        )  # fmt: skip
        if not known:
            self._in_place.move(plan, patience, self._agent.now)
        running = {process.local_rank for process in self.processes} | self._starting
        missing = [rank for rank in range(self._nproc) if rank not in running]
        if missing:
            self._start(plan, missing, alone=True)
        else:
            self._update()

    def stop(self, grace: float) -> None:
        self._cancel_starts()
        self._stopping = True
        if not self.processes:
            if self.view.state is WorkersState.RUNNING:
                self._all_ended()
            return
        self._set(WorkersState.STOPPING, saving=grace > 0)
        self._kill_all(self._clock.random.uniform(0.0, min(grace, 2.0)) if grace and self.view.saves else 0.0)

    def tick(self) -> None:
        due = self._followers.deadline
        if due is not None and self._agent.now >= due:
            self._read()
        self._in_place.kill_overdue(self._agent.now)

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
        self.view = dataclasses.replace(self.view, state=WorkersState.NONE)

    # -- messages

    def send_to(self, local_rank: int, message: Mapping[str, Any]) -> None:
        assert self.view.plan is not None
        self._agent.world.sessions.tells(self.view.plan.value)
        for process in self.processes:
            if process.local_rank == local_rank:
                process.hear(message)

    def ask_to_save(self, rank: int, seconds: float) -> None:
        raise NotImplementedError

    def receive(self, call: Callable[[], None]) -> None:
        """A process sends a message, which the agent handles with `call`."""
        self._unread.append(call)
        self._agent.post(self._read)

    def _read(self) -> None:
        while self._unread:
            self._unread.popleft()()

    def said_hello(self, process: SessionProcess) -> None:
        if self.view.state is WorkersState.RUNNING and self.view.plan is not None and process in self.processes:
            self._in_place.said_hello(process.local_rank, self.view.plan, self._agent.now)
            self._update()

    def reported(self, report: PlanReport) -> None:
        if self._followers.reported(report, self._agent.now):
            self._update()

    def keep(self, local_rank: int, fence: Fence, state: State) -> None:
        """A process copies its state to the agent's memory, from time to time."""
        if state.number % KEEP_EVERY == 0:
            self.kept[local_rank] = (fence, state)

    # -- starts and ends

    def _start(self, plan: Plan, local_ranks: Iterable[int], *, alone: bool) -> None:
        for local_rank in local_ranks:
            self._followers.starts(local_rank, self._agent.now, alone=alone, awaited=alone and plan.rank is not None)
            self._starting.add(local_rank)
            self._spawn_soon(plan, local_rank, alone=alone)
        self._update()

    def _spawn_soon(self, plan: Plan, local_rank: int, *, alone: bool) -> None:
        starts = self._starts

        def spawn() -> None:
            if starts == self._starts:
                self._starting.discard(local_rank)
                self.processes.append(SessionProcess(self, self._agent, local_rank, plan, alone=alone))

        self._clock.later(self._clock.random.uniform(0.0, 0.02), lambda: self._agent.post(spawn))

    def _cancel_starts(self) -> None:
        self._starts += 1
        self._starting.clear()

    def ended(self, process: SessionProcess, code: int, why: str) -> None:
        if process not in self.processes:
            return
        self.processes.remove(process)
        self._followers.ended(process.local_rank, done=code == 0 and not self._stopping)
        if code and not self._stopping:
            self._fail(self._failure(process, code, why))
        elif not self.processes and not self._starting:
            self._all_ended()
        else:
            self._update()

    def _fail(self, failure: FailureValue) -> None:
        """The other processes cannot continue without the failed one, unless they can enter another world."""
        alone = self.view.movable
        self.view = dataclasses.replace(
            self.view, failure=failure, changed_at=self._agent.now, incomplete=alone,
            in_place=self.view.in_place and not alone,
        )  # fmt: skip
        if not alone:
            self._cancel_starts()
            self._stopping = True
            self._set(WorkersState.STOPPING)
            self._kill_all(0.0)
        if not self.processes and not self._starting:
            self._set(WorkersState.FAILED)

    def _failure(self, process: SessionProcess, code: int, why: str) -> FailureValue:
        return FailureValue(
            member=self._agent.name,
            round=self.view.round,
            rank=process.spec.rank,
            local_rank=process.local_rank,
            exit_code=code,
            reason=PEER_LOST if why == PEER_LOST else "ApplicationError",
            message=why,
            time=self._clock.now + self._agent.wall_offset,
        )

    def _kill_all(self, delay: float) -> None:
        for process in self.processes:
            self._clock.later(delay, lambda process=process: process.kill(STOPPED))  # type: ignore[misc]

    def _all_ended(self) -> None:
        if self.view.failure is not None:
            self._set(WorkersState.FAILED)
        else:
            self._set(WorkersState.NONE if self._stopping else WorkersState.SUCCEEDED)

    def _update(self) -> None:
        self.view = self._in_place.seen(self.view, self._agent.now)

    def _set(self, state: WorkersState, *, saving: bool = False) -> None:
        changed_at = self.view.changed_at if self.view.failure is not None else self._agent.now
        self.view = dataclasses.replace(self.view, state=state, changed_at=changed_at, saving=saving)
