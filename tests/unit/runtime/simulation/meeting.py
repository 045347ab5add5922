"""The world of one plan: where worker processes with a session meet, form a group, agree on a state, and take steps.

Stands for the worker store that the leader's agent hosts, for gloo, and for what `training/session` does with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Fence, PlanValue
from elasticjob_runtime.training.session.world import ProcessState, agree

from tests.unit.runtime.simulation.invariants import require
from tests.unit.runtime.simulation.states import State

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.session_process import SessionProcess
    from tests.unit.runtime.simulation.world import World

FORM_TIMEOUT, CONNECT_TIMEOUT = 5.0, 25.0
"""As in training/session/forming.py: gloo waits five times as long as it is told."""
LOOK = 0.5
"""s between two looks at a store that may have been lost."""
STALL = 0.25
"""s until something is tried again that waits for a frozen process or a cut connection."""


class Meeting:
    def __init__(self, world: World, plan: PlanValue) -> None:
        self._faults = world.faults
        self._sessions = world.sessions
        self._clock = world.clock
        self._random = world.clock.random
        self.plan = plan
        self.size = plan.world_size
        self.fence = Fence(plan.run_began, plan.store_generation, plan.round)
        self.commits = 0
        """Of all its processes."""
        self._host = world.sessions.host(plan)
        self._process_states: dict[int, tuple[ProcessState, State | None]] = {}
        self._waiting: list[SessionProcess] = []
        self._forming: dict[int, SessionProcess] = {}
        self.processes: list[SessionProcess] = []
        """In the order of their ranks; empty until the group is formed."""
        self._stepping: set[int] = set()
        self._next: State | None = None

    def __repr__(self) -> str:
        return f"world {self.plan.round}"

    @property
    def trains(self) -> bool:
        """Whether its processes take steps, all of them."""
        return bool(self.processes) and all(process.links is self for process in self.processes)

    # -- meeting

    def arrive(self, process: SessionProcess) -> None:
        if self._host is None or self._host.dead:
            process.soon(lambda: process.form_failed(self), 0.01)
        elif not self._reaches_host(process):
            process.soon(lambda: self._arrive_late(process), self._random.uniform(0.0, FORM_TIMEOUT))
        else:
            require(process.rank not in self._process_states, f"two processes have rank {process.rank} of {self}")
            self._process_states[process.rank] = (process.process_state, process.state)
            self._waiting.append(process)
            self._look_again(process, 0)
            if len(self._process_states) == self.size:
                waiting, self._waiting = self._waiting, []
                for other in waiting:
                    other.soon(lambda other=other: self._meet(other), self._random.uniform(0.0, 0.01))  # type: ignore[misc]

    def _arrive_late(self, process: SessionProcess) -> None:
        if process.is_meeting(self):
            if self._reaches_host(process):
                self.arrive(process)
            else:
                process.form_failed(self)

    def _reaches_host(self, process: SessionProcess) -> bool:
        host = self._host
        if host is None or host.dead or host.suspended:
            return False
        return self._sessions.connected(process.agent, host)

    def _look_again(self, process: SessionProcess, missed: float) -> None:
        def again() -> None:
            if process not in self._waiting:
                return
            lost = 0.0 if self._reaches_host(process) else missed + LOOK
            if self._host is None or self._host.dead or lost >= FORM_TIMEOUT:
                self._waiting.remove(process)
                process.form_failed(self)
            else:
                self._look_again(process, lost)

        process.soon(again, LOOK)

    # -- forming

    def _meet(self, process: SessionProcess) -> None:
        """All have arrived, though some may have left again for a newer plan."""
        if not process.is_meeting(self):
            return
        self._faults.forming(process)
        if process.dead:
            return
        process.forms()
        self._forming[process.rank] = process
        process.soon(lambda: process.form_failed(self), CONNECT_TIMEOUT)
        if len(self._forming) == self.size:
            self._connect()

    def _connect(self) -> None:
        """All processes connect to each other, as soon as all can."""
        members = [self._forming[rank] for rank in range(self.size)]
        if any(not member.is_meeting(self) for member in members):
            return  # the others give up in time, or have a newer plan too
        if self._stalled(members):
            self._clock.later(STALL, self._connect)
            return
        self.processes = members
        pause = self._random.uniform(0.004, 0.01)
        for member in members:
            member.links = self
            member.soon(lambda member=member: member.formed(self), pause)  # type: ignore[misc]
        agreement = agree([self._process_states[rank][0] for rank in range(self.size)], "")
        sources = [self._process_states[rank][1] for rank in agreement.sources]
        state = sources[0] or State(0, None, self.plan.attempt)
        self._sessions.history.agreed(members, state, [source or state for source in sources])
        moved = self._random.choice([0.001, 0.01, 0.01, 2.0]) if agreement.receivers else 0.001
        self._clock.later(pause + moved * self._random.random(), lambda: self._settle(state))

    def _settle(self, state: State) -> None:
        """The state reaches all processes, unless one of them is lost meanwhile."""
        if self._stalled(self.processes):
            self._clock.later(STALL, lambda: self._settle(state))
            return
        if all(process.links is self for process in self.processes):
            for process in self.processes:
                process.soon(lambda process=process: process.settled(self, state))  # type: ignore[misc]

    def _stalled(self, processes: list[SessionProcess]) -> bool:
        """Whether one of them is frozen, or two do not reach each other."""
        if any(process.frozen and not process.dead for process in processes):
            return True
        agents = list({id(process.agent): process.agent for process in processes}.values())
        return any(
            not self._sessions.connected(one, other) for number, one in enumerate(agents) for other in agents[:number]
        )

    # -- training

    def step(self, process: SessionProcess) -> None:
        """The process begins its next step."""
        self._stepping.add(process.rank)
        if len(self._stepping) == self.size and self.trains:
            self._sessions.history.begins(self.processes)
            if self.plan.replica_size:
                self._sessions.history.trains_in_replicas(self._replicas())
            before = process.state
            assert before is not None
            self._next = State(before.number + 1, before, self.plan.attempt, before.saved)
            self._clock.later(self._random.uniform(0.5, 1.5) * self._sessions.step_time, self._reduce)

    def _reduce(self) -> None:
        """The all-reduce of the step ends, for some processes a moment earlier than for others."""
        if not self.trains:
            return  # it is interrupted
        if self._stalled(self.processes):
            self._clock.later(STALL, self._reduce)
            return
        self._stepping.clear()
        state = self._next
        assert state is not None
        skewed = self._random.random() < 0.2
        for part in self._replicas():
            self._clock.later(
                self._random.uniform(0.0, 0.02) if skewed else 0.0,
                lambda part=part: self._reduced(part, state),  # type: ignore[misc]
            )

    def _replicas(self) -> list[list[SessionProcess]]:
        """Its processes by replica; without replicas, each is one."""
        size = max(1, self.plan.replica_size * self.plan.nproc)
        return [self.processes[start : start + size] for start in range(0, len(self.processes), size)]

    def _reduced(self, part: list[SessionProcess], state: State) -> None:
        """The processes of a replica vote: all of them commit the step, or none does."""
        if all(process.links is self and not process.dead for process in part):
            for process in part:
                process.reduced(self, state)

    def lost(self, process: SessionProcess) -> None:
        """The process has closed its connections, or has ended."""
        if process in self._waiting:
            self._waiting.remove(process)
        if process.vanished:
            return  # with its machine: the connections stay open
        for other in self.processes or list(self._forming.values()):
            if other is process or not self._sessions.connected(other.agent, process.agent):
                continue
            if self.processes:
                other.soon(lambda other=other: other.link_error(self))  # type: ignore[misc]
            elif self._random.random() < 0.5:
                other.soon(lambda other=other: other.form_failed(self), 0.01)  # type: ignore[misc]


class Start:
    """Processes that start in the world of a plan: the script's own process group, before they have a session."""

    def __init__(self, world: World, size: int, *, plain: bool) -> None:
        self._world = world
        self._random = world.clock.random
        self.size = size
        self.plain = plain
        """They have no session, and train in this group."""
        self._hangs = self._random.random() < 0.2
        self._joined: list[SessionProcess] = []
        self._broken = False

    @property
    def trains(self) -> bool:
        return self.plain and len(self._joined) == self.size and not self._broken

    def join(self, process: SessionProcess) -> None:
        require(len(self._joined) < self.size or process.replica is None, f"{process} is one too many for its replica")
        self._joined.append(process)
        if self._broken:
            self._break(process)
        elif len(self._joined) == self.size and not self.plain:
            for other in self._joined:
                other.soon(other.say_hello, self._random.uniform(0.0, 0.3))
        elif self.plain and self._world.finished:
            self.complete()

    def complete(self) -> None:
        if self.trains:
            for other in self._joined:
                other.soon(lambda other=other: other.end(0), self._random.uniform(0.0, 0.5))  # type: ignore[misc]

    def lost(self, process: SessionProcess) -> None:
        """Called once its processes need the group: until they have said hello, or throughout."""
        if not self._broken:
            self._broken = True
            for other in self._joined:
                if other is not process:
                    self._break(other)

    def _break(self, process: SessionProcess) -> None:
        if not self._hangs:
            process.soon(lambda: process.lose_peer(self), self._random.uniform(0.0, 0.05))
