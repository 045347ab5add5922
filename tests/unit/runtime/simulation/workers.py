"""Worker groups of the simulation, and the training that holds the groups of one plan together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import PEER_LOST, FailureValue, Fence
from elasticjob_runtime.membership.view import Plan, Workers, WorkersState
from elasticjob_runtime.training.checkpoint.claims import Claim, Writer

from tests.unit.runtime.simulation.folder import Commit, Folder

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent
    from tests.unit.runtime.simulation.clock import Clock
    from tests.unit.runtime.simulation.session_process import SessionProcess

A_PEER_IS_GONE = "a peer is gone"


class Training:
    """The process group of one plan: trains once all members have joined, breaks when one leaves."""

    def __init__(self, clock: Clock, plan: Plan, folder: Folder) -> None:
        self._clock = clock
        self._folder = folder
        self._writer = Writer(owner="job", fence=Fence(plan.value.run_began, 0, plan.round))
        self._last: Commit | None = None
        self.size = plan.value.size
        self.hangs = clock.random.random() < 0.2
        """Whether peers of a lost worker process hang instead of failing."""
        self.joined: list[WorkerGroup] = []
        self.broken = False
        self.completed = False
        self._asked: list[WorkerGroup] = []

    @property
    def formed(self) -> bool:
        return len(self.joined) == self.size

    def join(self, group: WorkerGroup) -> None:
        self.joined.append(group)
        if self.broken:
            self._break(group)
        elif self.formed:
            self._last = self._folder.restore()
            self._clock.later(self._clock.random.uniform(1.0, 5.0), self._save)

    def _save(self) -> None:
        """Rank 0's worker process saves from time to time, and is sometimes frozen right before its rename."""
        if self.broken or self.completed:
            return
        claim = self._folder.enter(self._writer)
        if claim is None or not self._folder.check(claim):
            self.joined[0].reject_save()
            return
        pause = self._clock.random.choice([0.0, 0.0, 0.0, 0.1, 20.0])
        self._clock.later(pause, lambda: self._commit(claim))

    def _commit(self, claim: Claim) -> None:
        step = self._last.found.step + 1 if self._last else 1
        self._last = self._folder.commit(claim, step, self._last)
        self._clock.later(self._clock.random.uniform(1.0, 5.0), self._save)

    def lost(self, by: WorkerGroup) -> None:
        """A worker process has ended before the training did."""
        if self.completed or self.broken:
            return
        self.broken = True
        for group in self.joined:
            if group is not by:
                self._break(group)

    def ask_to_save(self, group: WorkerGroup) -> None:
        """All save once the last of them is asked."""
        self._asked.append(group)
        if len(self._asked) == self.size:
            for item in self._asked:
                item.save_soon()

    def complete(self) -> None:
        if self.formed and not self.broken:
            self.completed = True
            for group in self.joined:
                group.succeed_soon()

    def _break(self, group: WorkerGroup) -> None:
        if not self.hangs:
            round_number = group.view.round

            def fail() -> None:
                group.fail(round_number, A_PEER_IS_GONE)

            self._clock.later(self._clock.random.uniform(0.0, 0.05), fail)


class WorkerGroup:
    """Stands for the agent's workers/group.py."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._clock = agent.clock
        self._training: Training | None = None
        self._life = 0
        self.processes: Sequence[SessionProcess] = ()
        """Those that follow plans; none."""
        self.may_save_until = 0.0
        """Until when they may save, where all members know that they can: no member may start other workers before."""
        self.view = Workers()
        self.stepped = 0
        """They report no steps."""

    @property
    def trains(self) -> bool:
        """Whether it takes steps: its whole group has joined."""
        training = self._training
        return self.alive and training is not None and training.formed and not training.broken

    def reject_save(self) -> None:
        """A newer group has claimed the checkpoint folder."""
        self._agent.world.invariants.crashes += self.fail(self.view.round, "a newer group saves there")

    @property
    def alive(self) -> bool:
        return self.view.state in (WorkersState.RUNNING, WorkersState.STOPPING)

    @property
    def deadline(self) -> float | None:
        return None

    def tick(self) -> None:
        """Nothing is due: these processes do not follow plans."""

    def start(self, plan: Plan, *, alone: bool) -> None:
        assert not self.alive
        assert not alone
        self._life += 1
        now = self._agent.now
        self.view = Workers(state=WorkersState.RUNNING, round=plan.round, changed_at=now, began_at=now, plan=plan)
        self._training = self._agent.world.training(plan)
        if self._clock.now < self._agent.crashes_until:
            self._clock.later(0.1 * self._clock.random.random(), lambda: self.crash(0))
        self._training.join(self)
        if self._agent.world.walk.saves:
            self._install_handler()

    def _install_handler(self) -> None:
        life = self._life

        def installed() -> None:
            if life == self._life and self.view.state is WorkersState.RUNNING:
                self.view = dataclasses.replace(self.view, saves=True)
                self._agent.wake()

        self._clock.later(self._clock.random.uniform(0.0, 1.0), installed)

    def stop(self, grace: float) -> None:
        if not self.alive:
            return
        if self.view.failure is None:
            self._set(WorkersState.STOPPING, saving=grace > 0)
        saving = self._clock.random.uniform(0.0, min(grace, 2.0)) if grace else 0.0
        if grace and self.view.saves:
            me = self._agent.store_view.members.get(self._agent.name)
            self.may_save_until = self._clock.now + grace if me is not None and me.value.saves else 0.0
            together = self._agent.world.walk.together
            saving = grace if together or self._clock.random.random() < 0.1 else saving
            if together and self._training is not None and not self._training.broken:
                self._training.ask_to_save(self)
        self._ends_in(saving + self._clock.random.uniform(0.0, 0.02))

    def save_soon(self) -> None:
        """They save, and are killed."""
        self._ends_in(self._clock.random.uniform(0.0, 2.0))

    def crash(self, _number: int) -> None:
        """A process ends with an error."""
        joining = self._agent.joining
        self._agent.world.invariants.crashes += self.fail(self.view.round, "crash") and not joining

    def freeze(self, _number: int, _seconds: float) -> None:
        """Processes freeze only where that matters: if they follow plans."""

    def lose_links(self) -> None:
        """Connections break where that is not the same as a crash: between processes that follow plans."""

    def fail(self, round_number: int, why: str) -> bool:
        """One of the worker processes ends with an error. False if none is running."""
        if self.view.round != round_number or self.view.state is not WorkersState.RUNNING or self._agent.dead:
            return False
        plan = self.view.plan
        assert plan is not None
        assert plan.rank is not None
        failure = FailureValue(
            member=self._agent.name,
            round=round_number,
            rank=plan.rank.group_rank,
            local_rank=0,
            exit_code=1,
            reason=PEER_LOST if why == A_PEER_IS_GONE else "ApplicationError",
            message=why,
            time=self._clock.now + self._agent.wall_offset,
        )
        self._clock.note(self._agent.name, f"worker of plan {round_number} fails: {why}")
        self.view = dataclasses.replace(
            self.view, failure=failure, state=WorkersState.STOPPING, changed_at=self._agent.now
        )
        self._left()
        self._ends_in(self._clock.random.uniform(0.0, 0.02))
        self._agent.wake()
        return True

    def succeed_soon(self) -> None:
        life = self._life

        def succeed() -> None:
            if life == self._life and self.view.state is WorkersState.RUNNING and not self._agent.dead:
                self._training = None
                self._set(WorkersState.SUCCEEDED)
                self._agent.wake()

        self._clock.later(self._clock.random.uniform(0.0, 1.0), succeed)

    def killed(self) -> None:
        """The agent died, and its workers with it."""
        self._life += 1
        self.view = dataclasses.replace(self.view, state=WorkersState.NONE)
        self._left()

    def _ends_in(self, seconds: float) -> None:
        life = self._life

        def ended() -> None:
            if life != self._life or not self.alive:
                return
            self._left()
            self._set(WorkersState.NONE if self.view.failure is None else WorkersState.FAILED)
            self._agent.wake()

        self._clock.later(seconds, ended)

    def _left(self) -> None:
        training, self._training = self._training, None
        if training is not None:
            training.lost(self)

    def _set(self, state: WorkersState, *, saving: bool = False) -> None:
        changed_at = self.view.changed_at if self.view.failure is not None else self._agent.now
        self.view = dataclasses.replace(self.view, state=state, changed_at=changed_at, saving=saving)
