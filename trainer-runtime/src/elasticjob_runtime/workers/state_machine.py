"""The life of a worker group, as a state machine: each method of `GroupState` is an event, and returns the next state
and what to do for it. Pure: the group (group.py) observes the events and carries out the effects.

    NONE -> RUNNING            `start`
    RUNNING -> RUNNING         `move`, or one process has failed and the others can continue without it
    RUNNING -> STOPPING        `stop`, or a process has failed that the others need, hangs or cannot start
    RUNNING -> SUCCEEDED       the last process has ended with code 0
    STOPPING -> NONE, FAILED   the last process has ended

Which failure is the group's, whether a signal has stopped a process for too long, and which starts are dropped are
decided here, too. docs/design/0027-worker-states.md draws it. Times are monotonic, s. Processes are known by their
local rank.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence

from elasticjob_runtime.contract import PEER_LOST, FailureValue, first_failure, may_follow_from_another
from elasticjob_runtime.membership.view import Plan, Workers, WorkersState
from elasticjob_runtime.workers.effects import (
    AskToSave,
    CancelStarts,
    Effect,
    GiveUp,
    RequestStacks,
    SendEnd,
    SendPlan,
    Signal,
    StartProcesses,
)
from elasticjob_runtime.workers.environment import GroupSpec, group_rank

START_TIMEOUT = 1800.0
"""s for a worker process that others wait for to start and take its first batch: as long as `init_process_group` waits
by default. It may be loading a large model."""

START = "start and take its first batch"

CAUSE_GRACE = 0.3
"""s to wait after the failure of a process that lost a peer: the peer's own failure, on this or another machine, is the
one to report."""

STACKS_SECONDS = 0.3
"""s that processes have to write their stacks before they are killed."""

STALL = 1.0
"""s. An agent that looks this late for stopped processes stood still itself. Whatever stopped them both may continue
the processes a moment later."""

HANG, STOPPED, UNRESPONSIVE = "Hang", "Stopped", "Unresponsive"
"""Failure reasons: the processes run, but make no progress; a signal stopped the process; it did not follow a plan in
time."""

HEARD, ARRIVED, FORMED, ENTERED = "heard", "arrived", "formed", "entered"
WAITING, FAILED = "waiting", "failed"
"""How far a worker process is with a plan; see training/session/agent.py."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """What a worker process reports of a plan."""

    local_rank: int
    state: str
    round: int
    attempt: str
    at: float
    """Unix time, s."""
    why: str = ""
    """How the world broke, if the state is FAILED."""


class Phase(enum.Enum):
    STARTING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()
    """It has ended with code 0, and nothing has been started in its place."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    rank: int
    phase: Phase = Phase.STARTING
    alone: bool = False
    """It started in a world of its own."""
    connected: bool = False
    """It has said that it can continue under another plan."""
    proven: bool = False
    """It has entered a world, or waits to."""
    saves_at_end: bool = False
    """It saves before its last world ends."""
    report: str = ""
    """What it last reported of the newest plan."""
    why: str = ""
    due: float | None = None
    """When it is given up unless it has reported."""
    late: str = ""
    """Why it is given up then."""
    stopped_at: float | None = None
    """Since when a signal has stopped it, as far as the agent saw."""

    def expect(self, what: str, seconds: float, now: float) -> Process:
        """`what`: what it does within `seconds`; 0: it has any time."""
        due = now + seconds if seconds else None
        return dataclasses.replace(self, due=due, late=f"did not {what} within {seconds:g} s")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GroupState:
    spec: GroupSpec
    view: Workers = dataclasses.field(default_factory=Workers)
    """What the rules of `membership` see of the group."""
    processes: Mapping[int, Process] = dataclasses.field(default_factory=dict)
    attempt: str = ""
    """Of the newest plan that processes were told."""
    stopping: bool = False
    kill_at: float | None = None
    failures: tuple[FailureValue, ...] = ()
    """Those that are known, until it is decided which came first."""
    decide_at: float | None = None
    """When that is decided; None while there is no failure."""
    on_request: frozenset[int] = frozenset()
    """Ranks that call `checkpoint_wanted`: they are asked to save, instead of by a signal."""
    ending: frozenset[int] = frozenset()
    """Those that were told that their last world ends."""
    saving: frozenset[int] | None = None
    """Those that still save, if others do not or if some were asked. When all of them have ended or reported that they
    have saved, the others are killed, which they may have needed to finish a step. None: all end by themselves."""

    @property
    def running(self) -> dict[int, Process]:
        return {number: process for number, process in self.processes.items() if process.phase is Phase.RUNNING}

    @property
    def trains_apart(self) -> bool:
        """Whether it is one of several replicas, and none of its running processes has a session, which joins it
        with the others."""
        plan = self.view.plan
        several = plan is not None and plan.replica is not None and plan.value.size > plan.value.replica_size
        running = self.running.values()
        return several and bool(running) and not any(process.connected for process in running)

    @property
    def finished(self) -> set[int]:
        return {number for number, process in self.processes.items() if process.phase is Phase.FINISHED}

    @property
    def is_over(self) -> bool:
        """Whether no process runs or starts."""
        return all(process.phase is Phase.FINISHED for process in self.processes.values())

    @property
    def report_due(self) -> float | None:
        """When the next process is given up."""
        return min((process.due for process in self.processes.values() if process.due is not None), default=None)

    @property
    def stopped_due(self) -> float | None:
        """When to look again for processes that a signal has stopped."""
        since = [process.stopped_at for process in self.processes.values() if process.stopped_at is not None]
        return min(since) + self.spec.stopped_timeout if since else None

    @property
    def deadline(self) -> float | None:
        """When the next event is due that no process causes."""
        times = (self.kill_at, self.report_due, self.stopped_due, self.decide_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def hangs(self) -> bool:
        """Whether its processes were asked for their stacks."""
        return any(failure.reason == HANG for failure in self.failures)

    # -- starts and plans

    def start(self, plan: Plan, now: float, *, alone: bool) -> Step:
        """All processes start. `alone`: each in a world of its own, from which it continues in the plan's."""
        view = Workers(
            state=WorkersState.RUNNING, round=plan.round, changed_at=now, began_at=now, plan=plan,
            entered=0 if alone else None,
        )  # fmt: skip
        return GroupState(spec=self.spec, view=view)._launch(plan, range(self.spec.nproc), now, alone=alone)

    def move(self, plan: Plan, step_grace: float, now: float) -> Step:
        """The processes continue under `plan`: those that can are told, and those that are missing start, in worlds of
        their own. Those that have not said yet whether they can are told when they do. They stay in the world of the
        replica that they began in, also if the replica has got another one meanwhile."""
        plan = dataclasses.replace(plan, replica=self.view.plan.replica) if self.view.plan is not None else plan
        view = dataclasses.replace(
            self.view, round=plan.round, changed_at=now, began_at=now, plan=plan, failure=None, incomplete=False,
            waiting=False, rejected_at=None, entered=self.view.trained_round,
        )  # fmt: skip
        state, effects = dataclasses.replace(self, view=view), list[Effect]()
        if plan != self.view.plan:
            for number, before in self.processes.items():
                process = dataclasses.replace(before, rank=rank_of(plan, number, self.spec))
                if plan.rank is not None and process.alone and not process.proven and process.due is None:
                    process = process.expect(START, START_TIMEOUT, now)  # from now on, others wait for it
                state = state._with(number, process)
                if process.connected:
                    state, sent = state._tell(number, plan, step_grace, now)
                    effects += sent
        missing = [number for number in range(self.spec.nproc) if number not in self.processes.keys() - self.finished]
        if not missing or plan.replica is not None:  # a process cannot join the world of its replica later
            return state._observed(now), effects
        state, started = state._launch(plan, missing, now, alone=True)
        return state, [*effects, *started]

    def started(self, local_rank: int) -> GroupState:
        return self._with(local_rank, dataclasses.replace(self.processes[local_rank], phase=Phase.RUNNING))

    def said_hello(self, local_rank: int, now: float) -> Step:
        """It can continue under another plan than the current one."""
        plan = self.view.plan
        if self.view.state is not WorkersState.RUNNING or plan is None or local_rank not in self.running:
            return self, []
        connected = dataclasses.replace(self.processes[local_rank], connected=True)
        state, effects = self._with(local_rank, connected)._tell(local_rank, plan, 0.0, now)
        return state._observed(now), effects

    def reported(self, report: PlanReport, now: float) -> Step:
        """How far it is with a plan. What it says of an earlier plan does not count."""
        process = self.processes.get(report.local_rank)
        if process is None or report.attempt != self.attempt:
            return self, []
        process = dataclasses.replace(process, report=report.state, why=report.why)
        if report.state != HEARD:
            proven = process.proven or report.state in (ENTERED, WAITING)
            process = dataclasses.replace(process, due=None, proven=proven)
        elif process.proven:
            process = process.expect("end its step", self.spec.arrive_timeout, now)
        state = self._with(report.local_rank, process)._observed(now)
        if report.local_rank in self.ending and report.state == WAITING:
            return state._has_saved({report.local_rank})
        return state, []

    def saves_at_end(self, local_rank: int) -> GroupState:
        if local_rank not in self.processes:
            return self
        return self._with(local_rank, dataclasses.replace(self.processes[local_rank], saves_at_end=True))

    # -- saving and stopping

    def stop(
        self,
        grace: float,
        now: float,
        number: int = signal.SIGTERM,
        *,
        last: bool = False,
        saves: bool = False,
        handling: Collection[int] = (),
        catching: Collection[int] = (),
    ) -> Step:
        """They are killed at once if `grace` is 0; otherwise they get the signal `number`, and are killed after `grace`
        seconds. Those that save on request are asked instead, unless they handle SIGTERM. If some are asked, or only
        some handle the signal, only those get it.

        last: of all that continue in place; saves: the first of these processes saves for all. handling: those that
        handle SIGTERM; catching: those that handle `number`."""
        running, plan = self.running, self.view.plan
        effects: list[Effect] = [CancelStarts()]
        # From now on the stop decides how the group ends; a failure whose cause is not known yet does not.
        known = dataclasses.replace(self, failures=(), decide_at=None)
        state = dataclasses.replace(known._without_starts(), stopping=True, saving=None, kill_at=None)
        if not running or plan is None:
            return (state._ended(now) if self.view.state is WorkersState.RUNNING else known), effects
        state = state._set(WorkersState.STOPPING, now, saving=grace > 0)
        if grace <= 0:
            return state, [*effects, Signal(signal.SIGKILL, frozenset(running))]
        can_end = (local for local in running if running[local].connected and running[local].saves_at_end)
        told = frozenset(local for local in can_end if last and local not in handling)
        for local in told:
            process = dataclasses.replace(running[local], report="")
            state = state._with(local, process.expect("respond to the end", self.spec.ack_timeout, now))
            effects.append(SendEnd(local, plan, saves and local == 0))
        outside = {local for local in running if running[local].report == WAITING}  # they hear no request
        asked = self._save_on_request(running.keys() - told - outside, handling)
        effects += [AskToSave(running[local].rank, grace) for local in sorted(asked)]
        signalled = {local for local in running if local in catching} - told - asked
        # A process that does not save would end on the signal, in the midst of a step that one that saves must finish.
        # So it gets none, and is killed after the last one has saved. If no process saves, the signal ends all; if all
        # handle it, each ends by itself.
        saving = told | asked | signalled
        if asked or told or (saving and len(saving) < len(running)):
            state = dataclasses.replace(state, saving=saving)
        else:
            signalled = set(running)
        effects.append(Signal(number, frozenset(signalled)))
        return dataclasses.replace(state, kill_at=now + grace, ending=told), effects

    def calls_for_save(self, rank: int, round_number: int, now: float, handling: Collection[int] = ()) -> Step:
        """The process of `rank` calls `checkpoint_wanted`. It is asked at once if others are saving on request."""
        if round_number != self.view.round:
            return self, []
        saving = self.saving or frozenset()
        asking = bool(self._save_on_request(saving, handling)) and self.kill_at is not None
        state = dataclasses.replace(self.found_handler(), on_request=self.on_request | {rank})
        new = {
            number for number in state._save_on_request(self.running, handling) if self.processes[number].rank == rank
        }
        if not asking or not new:
            return state, []
        left = max(0.0, (self.kill_at or now) - now)
        return dataclasses.replace(state, saving=saving | new), [AskToSave(rank, left)]

    def found_handler(self) -> GroupState:
        """One of them handles SIGTERM, or saves on request."""
        if self.view.state is not WorkersState.RUNNING:
            return self
        return dataclasses.replace(self, view=dataclasses.replace(self.view, saves=True))

    def saved(self, rank: int, round_number: int) -> Step:
        """The process of `rank` has nothing left to save."""
        if round_number != self.view.round:
            return self, []
        return self._has_saved({number for number, process in self.processes.items() if process.rank == rank})

    # -- failures

    def looked_for_stopped(self, found: Mapping[int, str], now: float) -> Step:
        """`found`: all processes that a signal has stopped now, and its name. A stopped process keeps its connections,
        so the others wait in a collective without an error."""
        timeout = self.spec.stopped_timeout
        if not timeout:
            return self, []
        late = self.stopped_due is not None and now >= self.stopped_due + STALL
        state, effects = self, list[Effect]()
        for number, process in self.processes.items():
            since = (now if late or process.stopped_at is None else process.stopped_at) if number in found else None
            if since is not None and now >= since + timeout:
                effects.append(GiveUp(number, STOPPED, f"stopped by {found[number]} for {timeout:g} s"))
                since = None
            if since != process.stopped_at:
                state = state._with(number, dataclasses.replace(process, stopped_at=since))
        return state, effects

    def hung_process(self, ranks: Collection[int]) -> tuple[int, int]:
        """(rank, local rank) of the process whose failure a hang is. `ranks`: those that keep the others waiting.
        Raises ValueError if none runs."""
        named = {number: process for number, process in self.processes.items() if process.rank in ranks}
        local_rank = min(named or self.running)
        return self.processes[local_rank].rank, local_rank

    def hung(self, failure: FailureValue, now: float) -> Step:
        """Its processes run, but make no progress. They get some time to write their stacks."""
        if self.view.state is not WorkersState.RUNNING or not self.running or self.failures:
            return self, []
        state = dataclasses.replace(self, failures=(failure,), decide_at=now + STACKS_SECONDS)
        return state, [RequestStacks(frozenset(self.running))]

    def could_not_start(self, failure: FailureValue, now: float, *, stacks: str = "") -> Step:
        return dataclasses.replace(self, failures=(*self.failures, failure))._fail(now, stacks)

    def exited(
        self,
        local_rank: int,
        now: float,
        failure: FailureValue | None = None,
        *,
        recorded: Sequence[FailureValue] = (),
        stacks: str = "",
    ) -> Step:
        """A process has ended.

        failure: unless it ended with code 0, or is being stopped; recorded: those of processes that have written their
        error, and are about to exit; stacks: if it `hangs`."""
        process = self.processes[local_rank]
        rest = {number: other for number, other in self.processes.items() if number != local_rank}
        if failure is not None and not self.stopping:
            return dataclasses.replace(self, processes=rest)._failed(failure, recorded, stacks, now)
        state, effects = self._has_saved({local_rank})
        state = dataclasses.replace(state, processes=rest)
        if not self.stopping:
            # The world of the newest plan cannot be formed if it has not entered that.
            report = FAILED if process.proven and process.report != ENTERED else ""
            state = state._with(local_rank, Process(rank=process.rank, phase=Phase.FINISHED, alone=True, report=report))
        if not state.is_over:
            return state._observed(now), effects
        return dataclasses.replace(state, kill_at=None) if self.failures else state._ended(now), effects

    def tick(self, now: float, *, recorded: Sequence[FailureValue] = (), stacks: str = "") -> Step:
        """recorded, stacks: as of `exited`, if it is decided now which failure came first."""
        state, effects = self, list[Effect]()
        if self.kill_at is not None and now >= self.kill_at:
            state = dataclasses.replace(state, kill_at=None)
            effects.append(Signal(signal.SIGKILL, frozenset(self.running)))
        for number, process in self.processes.items():
            if process.due is not None and now >= process.due:
                state = state._with(number, dataclasses.replace(process, due=None))
                effects += [GiveUp(number, UNRESPONSIVE, process.late)] if process.phase is Phase.RUNNING else []
        if self.decide_at is not None and now >= self.decide_at:
            state, ends = dataclasses.replace(state, failures=(*self.failures, *recorded))._fail(now, stacks)
            effects += ends
        return state, effects

    def _failed(self, failure: FailureValue, recorded: Sequence[FailureValue], stacks: str, now: float) -> Step:
        """If the others can continue, they wait for its replacement. If not, as in a replica, they are killed once it
        is clear which failure came first."""
        if self.view.movable and (self.view.plan is None or self.view.plan.replica is None):
            first = first_failure((*self.failures, failure))
            view = dataclasses.replace(self.view, failure=first, incomplete=True, in_place=False, changed_at=now)
            state = dataclasses.replace(self, view=view, failures=(), decide_at=None)
            return (state._set(WorkersState.FAILED, now) if self.is_over else state), []
        state = dataclasses.replace(self, failures=(*self.failures, failure, *recorded))._observed(now)
        if not may_follow_from_another(first_failure(state.failures)):
            return state._fail(now, stacks)
        return dataclasses.replace(state, decide_at=now + CAUSE_GRACE if self.decide_at is None else self.decide_at), []

    def _fail(self, now: float, stacks: str) -> Step:
        """With the failure that came first."""
        failure = first_failure(self.failures)
        if failure.reason == PEER_LOST and self.finished:
            failure = self._left_by(min(self.finished), failure)
        if failure.reason == HANG:
            failure = dataclasses.replace(failure, traceback=failure.traceback or stacks)
        view = dataclasses.replace(self.view, failure=failure, state=WorkersState.STOPPING, changed_at=now)
        state = dataclasses.replace(self._without_starts(), view=view, stopping=True, failures=(), decide_at=None)
        ends: list[Effect] = [CancelStarts(), Signal(signal.SIGKILL, frozenset(self.running))]
        return (state if self.running else state._ended(now)), ends

    def _left_by(self, local_rank: int, failure: FailureValue) -> FailureValue:
        """The failure of a process whose peer had ended with code 0, in the name of that peer. Its reason stays: a
        failure on another machine may be the cause."""
        rank = self.processes[local_rank].rank
        message = f"rank {rank} exited with code 0 while the others train; rank {failure.rank}: {failure.message}"
        return dataclasses.replace(failure, rank=rank, local_rank=local_rank, exit_code=0, message=message)

    # -- inside

    def _with(self, local_rank: int, process: Process) -> GroupState:
        return dataclasses.replace(self, processes={**self.processes, local_rank: process})

    def _without_starts(self) -> GroupState:
        """Those that have not started are not waited for."""
        rest = {number: process for number, process in self.processes.items() if process.phase is not Phase.STARTING}
        return dataclasses.replace(self, processes=rest)

    def _launch(self, plan: Plan, local_ranks: Iterable[int], now: float, *, alone: bool) -> Step:
        new = tuple(local_ranks)
        state = self
        for number in new:
            process = Process(rank=rank_of(plan, number, self.spec), alone=alone)
            awaited = alone and plan.rank is not None
            state = state._with(number, process.expect(START, START_TIMEOUT, now) if awaited else process)
        return state._observed(now), [StartProcesses(plan, new, alone)]

    def _tell(self, local_rank: int, plan: Plan, step_grace: float, now: float) -> Step:
        process = dataclasses.replace(self.processes[local_rank], report="")
        if process.proven:  # one that still starts has more time
            process = process.expect("respond to a plan", self.spec.ack_timeout, now)
        state = dataclasses.replace(self._with(local_rank, process), attempt=plan.value.attempt)
        return state, [SendPlan(local_rank, plan, step_grace)]

    def _save_on_request(self, local_ranks: Collection[int], handling: Collection[int]) -> frozenset[int]:
        return frozenset(
            local for local in local_ranks if self.processes[local].rank in self.on_request and local not in handling
        )

    def _has_saved(self, local_ranks: Collection[int]) -> Step:
        """They have saved or ended. The rest are killed with the last one."""
        if not self.saving or not self.saving & set(local_ranks):
            return self, []
        left = self.saving - set(local_ranks)
        if left:
            return dataclasses.replace(self, saving=left), []
        return dataclasses.replace(self, saving=None), [Signal(signal.SIGKILL, frozenset(self.running))]

    def _ended(self, now: float) -> GroupState:
        """No process is left."""
        state = WorkersState.NONE if self.stopping else WorkersState.SUCCEEDED
        state = WorkersState.FAILED if self.view.failure is not None else state
        return dataclasses.replace(self._set(state, now), kill_at=None)

    def _set(self, state: WorkersState, now: float, *, saving: bool = False) -> GroupState:
        # Keeps the time of a failure, from which delays and timeouts count.
        changed_at = self.view.changed_at if self.view.failure is not None else now
        view = dataclasses.replace(self.view, state=state, changed_at=changed_at, saving=saving)
        return dataclasses.replace(self, view=view)

    def _observed(self, now: float) -> GroupState:
        """With what is known of processes that continue in place in the view."""
        known, nproc, view = list(self.processes.values()), self.spec.nproc, self.view
        reports = [process.report for process in known]
        failed = next((process.why for process in known if process.report == FAILED), "")
        view = dataclasses.replace(
            view,
            movable=all(process.proven or process.alone for process in known) and not self.failures,
            in_place=sum(process.proven for process in known) == nproc == len(self.running),
            waiting=reports.count(WAITING) == nproc,
            entered=None if reports.count(ENTERED) == nproc else view.entered,
            rejected_at=(view.rejected_at or now) if FAILED in reports else None,
            rejected_why=view.rejected_why if view.rejected_at else failed,
        )
        return dataclasses.replace(self, view=view)


Step = tuple[GroupState, list[Effect]]
"""The next state, and what to do, in this order."""


def rank_of(plan: Plan, local_rank: int, spec: GroupSpec) -> int:
    return group_rank(plan) * spec.nproc + local_rank
