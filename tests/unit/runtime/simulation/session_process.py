"""A worker process whose script has a session: what training/session/engine.py does, as a state machine."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticjob_runtime.contract import PEER_LOST
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.training.checkpoint import order
from elasticjob_runtime.training.checkpoint.order import NO_FENCE, Kind
from elasticjob_runtime.training.session.world import NO_STATE, ProcessState
from elasticjob_runtime.training.session.world import World as Told
from elasticjob_runtime.workers.state_machine import ARRIVED, ENTERED, FAILED, FORMED, HEARD, WAITING, PlanReport

from tests.unit.runtime.simulation.meeting import Meeting, Start
from tests.unit.runtime.simulation.process import Process
from tests.unit.runtime.simulation.states import State

if TYPE_CHECKING:
    from tests.unit.runtime.simulation.agent import Agent
    from tests.unit.runtime.simulation.session_workers import SessionWorkerGroup

PLAN_TIMEOUT, MAX_ATTEMPTS = 60.0, 10
"""As in training/session/engine.py."""
SAVE_EVERY = 5
"""Steps."""


class Phase(enum.Enum):
    STARTING = enum.auto()
    PLAIN = enum.auto()
    """It trains without a session."""
    PLAN = enum.auto()
    """It waits for a plan."""
    MEETING = enum.auto()
    """It waits in the store for the other processes of the plan."""
    FORMING = enum.auto()
    SETTLING = enum.auto()
    STEPPING = enum.auto()
    FINISHED = enum.auto()
    """After its last step."""
    ENDED = enum.auto()


class SessionProcess(Process):
    def __init__(self, group: SessionWorkerGroup, agent: Agent, local_rank: int, plan: Plan, *, alone: bool) -> None:
        """`alone`: in a world of its own."""
        super().__init__(agent, local_rank)
        self._group = group
        self._sessions = agent.world.sessions
        self.phase = Phase.STARTING
        self.fence, self.state = self._sessions.saved(group.kept.get(local_rank))
        """The state, and the world in which it was agreed on or saved."""
        self.live = False
        self.rank = 0
        """In the world where it is, or last was."""
        self.meeting: Meeting | None = None
        """Where it is, or last was."""
        self.links: Meeting | None = None
        """Its connections."""
        self._plan = plan
        self._start: Start | None = None
        self._newest: Told | None = None
        self._told: Told | None = None
        """The world that it forms or is in."""
        self._over: Told | None = None
        self._broken_links = False
        self._is_reduced = False
        self._attempts = 0
        self._waits = 0
        self.plain = not plan.value.agent_store
        self.replica = plan.replica
        begin = self.say_hello if alone and not self.plain and self.replica is None else self._join_start
        slow = 12.0 if self._clock.random.random() < 0.03 else 2.0
        takes = self._clock.random.choice([0.05, 0.3, slow]) * self._clock.random.random() + agent.start_seconds
        if self._clock.now < agent.crashes_until:
            begin = self._crash_at_start
        self.soon(begin, takes)

    def _crash_at_start(self) -> None:
        self.end(1, "crash as it starts")

    @property
    def process_state(self) -> ProcessState:
        step = self.state.number if self.state is not None else NO_STATE
        kind = Kind.LIVE if self.live else Kind.STORAGE
        return ProcessState(state=order.State(step=step, kind=kind, fence=self.fence or NO_FENCE), layout="")

    def is_meeting(self, meeting: Meeting) -> bool:
        """Whether it is about to form the world of `meeting`."""
        return self.meeting is meeting and self.phase in (Phase.MEETING, Phase.FORMING)

    @property
    def trains(self) -> bool:
        if self.phase is Phase.PLAIN:
            return self._start is not None and self._start.trains
        return self.phase is Phase.STEPPING and self.links is not None and self.links.trains

    # -- the thread that hears plans

    def say_hello(self) -> None:
        if self.replica is None:
            self._start = None
        self._group.receive(lambda: self._group.said_hello(self))
        self.enter()

    def hear(self, message: Mapping[str, Any]) -> None:
        """The agent sends a plan."""
        told = Told.parse(message)

        def heard() -> None:
            self.report(HEARD, told)
            self._newest = told
            if self.phase in (Phase.MEETING, Phase.FORMING):
                self._again()
            self.soon(lambda: self._end_older(told), told.step_grace)

        self.soon(heard)

    def report(self, state: str, told: Told | None = None) -> None:
        about = told or self._told
        assert about is not None
        report = PlanReport(
            local_rank=self.local_rank, state=state, round=about.round, attempt=about.attempt, at=self._clock.now
        )
        self._group.receive(lambda: self._group.reported(report))

    def _end_older(self, told: Told) -> None:
        if told is self._newest and self.links is not None and self._told is not told:
            meeting = self.links
            self._cut()
            self._broken_by(meeting)

    def link_error(self, meeting: Meeting) -> None:
        """A connection is closed by the other side."""
        if self.links is meeting:
            self._broken_by(meeting)

    def lose_links(self) -> None:
        """The network closes its connections."""
        if (meeting := self.links) is not None:
            self.soon(lambda: self.link_error(meeting))
            meeting.lost(self)

    def _broken_by(self, meeting: Meeting) -> None:
        if self.meeting is not meeting:
            return
        if self.phase is Phase.SETTLING:
            self.form_failed(meeting)
        elif self.phase is Phase.FORMING or (self.phase is Phase.STEPPING and self._is_reduced):
            self._broken_links = True
        elif self.phase is Phase.STEPPING:
            self._interrupted()

    def _cut(self) -> None:
        meeting, self.links = self.links, None
        if meeting is not None:
            meeting.lost(self)

    # -- the training's thread

    def _join_start(self) -> None:
        self._start = self._sessions.start(self._plan, plain=self.plain)
        self.phase = Phase.PLAIN if self.plain else Phase.STARTING
        self._start.join(self)

    def lose_peer(self, start: Start) -> None:
        if self._start is start:
            self.end(1, PEER_LOST)

    def enter(self, over: Told | None = None) -> None:
        """Forms the world of the newest plan. `over`: the current one, which is broken."""
        if over is not None and self._newest is over:
            self.report(FAILED, over)
        self._attempts = 0
        self._wait_for_plan(over)

    def _again(self) -> None:
        """The world could not be formed, or a newer plan arrived before it was."""
        if self._newest is self._told:
            self._attempts += 1
            if self._attempts >= MAX_ATTEMPTS:
                self.end(1, f"{MAX_ATTEMPTS} worlds in a row could not be formed")
                return
            self.report(FAILED)
        self._wait_for_plan(self._told)

    def _wait_for_plan(self, over: Told | None) -> None:
        self._cut()
        if self.meeting is not None and self.phase in (Phase.MEETING, Phase.FORMING):
            self.meeting.lost(self)
        self.phase = Phase.PLAN
        self._over = over
        self._waits += 1
        waits = self._waits
        if over is None or over.environment:
            self.soon(lambda: self._plan_timeout(waits), PLAN_TIMEOUT)
        self._advance()

    def _plan_timeout(self, waits: int) -> None:
        if self.phase is Phase.PLAN and self._waits == waits:
            self.end(1, "no plan within 60 s")

    def _advance(self) -> None:
        """After every message: there may be a newer plan."""
        if self.phase is not Phase.PLAN or self._newest is None or self._newest is self._over:
            return
        self._told = told = self._newest
        self._waits += 1
        if not told.environment:
            self.report(WAITING)
            self._over = told
            return
        place, own = told.replicas.place if told.replicas is not None else 0, told.environment
        self.phase, self.rank = Phase.MEETING, place * int(own["WORLD_SIZE"]) + int(own["RANK"])
        self.meeting = self._sessions.meeting(told.attempt)
        self.report(ARRIVED)
        self.meeting.arrive(self)

    def forms(self) -> None:
        self.phase, self._broken_links = Phase.FORMING, False

    def form_failed(self, meeting: Meeting) -> None:
        if self.is_meeting(meeting) or (self.meeting is meeting and self.phase is Phase.SETTLING):
            self._again()

    def formed(self, meeting: Meeting) -> None:
        if not self.is_meeting(meeting):
            return
        self.phase = Phase.SETTLING
        if self._newest is not self._told or self._broken_links:
            self._again()
        else:
            self.report(FORMED)

    def settled(self, meeting: Meeting, state: State) -> None:
        """It has the agreed state."""
        if self.phase is not Phase.SETTLING or self.links is not meeting:
            return
        self.state, self.live, self.fence = state, True, meeting.fence
        if self._newest is not self._told:
            self._wait_for_plan(self._over)
            return
        self.report(ENTERED)
        self._step()

    def _step(self) -> None:
        # A replica ends once all have committed the last step, whatever happens to its connections then.
        if self._sessions.is_over(self.state) and (self.replica is not None or not self._broken_links):
            self._finish()
            return
        self.phase, self._is_reduced = Phase.STEPPING, False
        if self._broken_links:
            self._interrupted()
        elif self.meeting is not None:
            self.meeting.step(self)

    def _interrupted(self) -> None:
        self.enter(self._told)

    def reduced(self, meeting: Meeting, state: State) -> None:
        """The all-reduce is complete here, so the step is committed, whatever happens to the others."""
        if self.dead or self.links is not meeting or self.phase is not Phase.STEPPING:
            return
        self._is_reduced = True
        self.soon(lambda: self._commit(meeting, state), self._sessions.step_time / 10 * self._clock.random.random())

    def _commit(self, meeting: Meeting, state: State) -> None:
        self.state = state
        meeting.commits += 1
        self._group.stepped = meeting.plan.round
        self._group.keep(self.local_rank, meeting.fence, state)
        self._sessions.history.committed(self, meeting)
        if self.rank == 0 and state.number % SAVE_EVERY == 0 and not self._sessions.save(self, meeting):
            self.end(1, "a newer group saves there")
        elif self._newest is not self._told and not (self.replica is not None and self._sessions.is_over(state)):
            self.enter(self._told if self._broken_links else None)
        else:
            self._step()

    def _finish(self) -> None:
        """There is no further batch. It does not look for newer plans any more."""
        self.phase = Phase.FINISHED
        self.soon(lambda: self.end(0), self._clock.random.uniform(0.05, 1.0))

    # -- its end

    def _ended(self, code: int, why: str) -> None:
        self.phase = Phase.ENDED
        done = code == 0 and (self.replica is not None or (self._start is not None and self._start.trains))
        if self._start is not None and not self.vanished and not done:
            self._start.lost(self)
        if self.links is not None:
            self._cut()
        elif self.meeting is not None:
            self.meeting.lost(self)
        self.agent.post(lambda: self._group.ended(self, code, why))
