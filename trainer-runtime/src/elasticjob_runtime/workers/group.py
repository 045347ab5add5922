"""The local worker group: starts and stops its workers, and reports how they ended.

What it does is decided by state_machine.py; this module observes the events and carries out the effects. It is
event-driven: it registers file descriptors with the agent's event loop, and the agent decides again after every event.
All calls are on the loop's thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from elasticjob_runtime.contract import Env
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.view import Plan, Workers, WorkersState
from elasticjob_runtime.training import flight_recorder
from elasticjob_runtime.workers import descriptors, linux, logs
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
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.failure import signal_name
from elasticjob_runtime.workers.failure_values import FailureValues
from elasticjob_runtime.workers.messages import WorkerMessages, end_message, plan_message
from elasticjob_runtime.workers.prepare import WorkerPreparation
from elasticjob_runtime.workers.process import Command, WorkerProcess
from elasticjob_runtime.workers.starter import WorkerStarter
from elasticjob_runtime.workers.state_machine import GroupState, PlanReport, Step
from elasticjob_runtime.workers.timers import TimerServer
from elasticjob_runtime.workers.zygote import hooks
from elasticjob_runtime.workers.zygote.launcher import GroupLauncher

logger = logging.getLogger(__name__)

FIRST_HANDLER_CHECK, MAX_HANDLER_CHECK_INTERVAL = 0.25, 4.0
"""s after a start, and at most between two checks, until it is known whether a worker handles SIGTERM. A check costs
0.02 ms per worker."""


class WorkerGroup:
    """The worker processes of one agent, one round after the other."""

    def __init__(
        self,
        group: GroupSpec,
        command: Command,
        launcher: GroupLauncher,
        event_loop: EventLoop,
        *,
        member: str,
        log_settings: logs.LogSettings,
        agent_socket: str,
        folder: str,
        base_environment: Mapping[str, str],
        messages: WorkerMessages,
    ) -> None:
        """`folder`: the agent's private directory, removed with the agent."""
        self.group = group
        self._event_loop = event_loop
        self._messages = messages
        self._directory = logs.LogDirectory(log_settings, group.run_id, folder)
        self._timers = TimerServer(base_environment, folder, event_loop, self._is_ours)
        self._preparation = WorkerPreparation(
            group=group,
            command=command,
            environment={**base_environment, **self._timers.environment},
            agent_socket=agent_socket,
            log_settings=log_settings,
            directory=self._directory,
        )
        self._starter = WorkerStarter(
            launcher, self._preparation, on_started=self._started, on_failed=self._could_not_start
        )
        self._output = logs.SinkReader(event_loop)
        self._failures = FailureValues(member)
        self._workers: list[WorkerProcess] = []
        self._state = GroupState(spec=group)
        self._check_handlers_at: float | None = None
        self._warned = False
        """That this replica trains apart from the others."""
        self._has_session = False
        """Whether a worker process has ever said hello. All run the same script."""
        self._handler_check_interval = FIRST_HANDLER_CHECK

    @property
    def view(self) -> Workers:
        return self._state.view

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        times = (self._state.deadline, self._check_handlers_at, self._timers.deadline)
        return min((at for at in times if at is not None), default=None)

    def is_due(self, now: float) -> bool:
        """Whether workers that continue in place should have reported by now."""
        due = self._state.report_due
        return due is not None and now >= due

    @property
    def pids(self) -> dict[int, int]:
        """Local rank -> process id of the running workers."""
        return {worker.spec.local_rank: worker.pid for worker in self._workers}

    @property
    def error_files(self) -> dict[int, str]:
        """Local rank -> error file of the running workers."""
        return {worker.spec.local_rank: str(worker.spec.error_file) for worker in self._workers}

    @property
    def running(self) -> tuple[WorkerProcess, ...]:
        return tuple(self._workers)

    @property
    def finished_ranks(self) -> list[int]:
        """Of those that have ended with code 0."""
        return [self._state.processes[local_rank].rank for local_rank in self._state.finished]

    def warn_if_apart(self, steps: int) -> None:
        """Says once if this replica does not train with the others. steps: that an optimizer has taken; a session's own
        first one comes before it says hello."""
        if steps > 1 and not (self._warned or self._has_session) and self._state.trains_apart:
            self._warned = True
            logger.warning(
                "this replica trains apart from the others: the script runs with %s and has no ElasticSession, which "
                "makes the gradients the mean over all replicas (--replica-size, workers.replicaSize)",
                Env.REPLICA,
            )

    # -- what the agent does with it

    def start(self, plan: Plan, now: float, *, alone: bool = False) -> None:
        """Starts all workers of this plan, at once or when their forks are ready. A worker that cannot be started is a
        failure. `alone`: each in a world of its own, from which it continues in the plan's."""
        assert plan.rank is not None or alone
        assert not self._workers
        self._handler_check_interval = FIRST_HANDLER_CHECK
        self._check_handlers_at = now + FIRST_HANDLER_CHECK
        self._failures.begin_round(plan.round)
        self._apply(self._state.start(plan, now, alone=alone))

    def move(self, plan: Plan, step_grace: float, now: float) -> None:
        """Continues under `plan`: sends it to the workers that can continue and do not know it, and starts those that
        are missing. step_grace: s that a step may take to end before it is interrupted."""
        self._failures.begin_round(plan.round)
        in_replica = self.view.plan is not None and self.view.plan.replica is not None
        for local_rank in sorted(self._state.finished) if not in_replica else ():
            logger.warning(
                "worker process %d of this agent ended with code 0 while others were training; starting it again. Let "
                "all ranks decide alike when to stop: see session.values",
                local_rank,
            )
        self._apply(self._state.move(plan, step_grace, now))
        for worker in self._workers:
            self._update_rank(worker)

    def stop(
        self, grace: float, now: float, number: int = signal.SIGTERM, *, last: bool = False, saves: bool = False
    ) -> None:
        """Kills the workers at once if `grace` is 0, and else after `grace` seconds to save; see GroupState.stop."""
        self._check_handlers_at = None
        # Only the kernel knows which handle a signal, and only as long as they run: ask before the first one is sent.
        handling, catching = (
            self._catching(signal_number) if grace > 0 else () for signal_number in (signal.SIGTERM, number)
        )
        self._apply(self._state.stop(grace, now, number, last=last, saves=saves, handling=handling, catching=catching))

    def fail_hung(self, message: str, now: float, ranks: Collection[int] = ()) -> None:
        """Fails the group because its workers run but make no progress. `ranks`: those that keep the others waiting."""
        if self._state.running:
            failure = self._failures.of_hang(*self._state.hung_process(ranks), message)
            self._apply(self._state.hung(failure, now))

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    def check_handlers(self) -> None:
        """Finds out whether a worker handles SIGTERM by now, which only the kernel knows."""
        if self.view.state is not WorkersState.RUNNING or self.view.saves:
            return
        if any(worker.catches(signal.SIGTERM) for worker in self._workers):
            self._state = self._state.found_handler()

    def check_stopped(self, now: float) -> None:
        """Fails workers that a signal has stopped for too long. To be called at every SIGCHLD, which the kernel sends
        whenever a worker stops or continues, so no polling is needed. One that a debugger has stopped does not
        count."""
        looks = self.view.state is WorkersState.RUNNING and self.group.stopped_timeout
        found = {worker.spec.local_rank: linux.stop_signal(worker.pid) for worker in self._workers} if looks else {}
        names = {local_rank: signal_name(number) for local_rank, number in found.items() if number}
        self._apply(self._state.looked_for_stopped(names, now))

    def tick(self, now: float) -> None:
        if (due := self._state.stopped_due) is not None and now >= due:
            self.check_stopped(now)
        decides = self._state.decide_at is not None and now >= self._state.decide_at
        recorded = self._failures.recorded(self._workers) if decides else ()
        self._apply(self._state.tick(now, recorded=recorded, stacks=self._stacks()))
        if self._check_handlers_at is not None and now >= self._check_handlers_at:
            self.check_handlers()
            self._handler_check_interval = min(2 * self._handler_check_interval, MAX_HANDLER_CHECK_INTERVAL)
            undecided = self.view.state is WorkersState.RUNNING and not self.view.saves
            self._check_handlers_at = now + self._handler_check_interval if undecided else None
        self._timers.tick(now)

    def close(self) -> None:
        """Call this after the last worker has ended."""
        self._timers.close()

    # -- what the workers say

    def said_hello(self, local_rank: int, now: float) -> None:
        """The worker of `local_rank` can continue under another plan."""
        self._has_session = True
        self._apply(self._state.said_hello(local_rank, now))

    def reported(self, report: PlanReport, now: float) -> None:
        """A worker has reported how far it is with a plan."""
        self._apply(self._state.reported(report, now))

    def saves_at_end(self, local_rank: int) -> None:
        """The worker of `local_rank`, which can continue in place, saves before the end of its last world."""
        self._state = self._state.saves_at_end(local_rank)

    def calls_for_save(self, rank: int, round_number: int) -> None:
        """This worker calls `checkpoint_wanted`."""
        handling = () if self._state.saving is None else self._catching(signal.SIGTERM)
        self._apply(self._state.calls_for_save(rank, round_number, time.monotonic(), handling))

    def saved(self, rank: int, round_number: int) -> None:
        """This worker has nothing left to save."""
        self._apply(self._state.saved(rank, round_number))

    # -- starts and ends

    def _started(self, worker: WorkerProcess) -> None:
        self._workers.append(worker)
        self._state = self._state.started(worker.spec.local_rank)
        self._update_rank(worker)
        self._event_loop.add_reader(worker.pidfd, lambda: self._ended(worker))
        for sink in worker.sinks:
            self._output.add(sink)
        self.check_stopped(time.monotonic())

    def _could_not_start(self, local_rank: int, error: Exception) -> None:
        command = self._preparation.command.for_rank(local_rank)[0]
        reason = descriptors.explain(error) if isinstance(error, OSError) else error
        rank = self._state.processes[local_rank].rank
        failure = self._failures.of_start(rank, local_rank, f"cannot start {command}: {reason}")
        self._apply(self._state.could_not_start(failure, time.monotonic(), stacks=self._stacks()))

    def _ended(self, worker: WorkerProcess) -> None:
        now = time.monotonic()
        self._event_loop.remove_reader(worker.pidfd)
        code = worker.reap()
        for sink in worker.sinks:
            self._output.close(sink)
        self._workers.remove(worker)
        self._directory.copy_error_file(worker.spec.error_file)
        recorder = Path(flight_recorder.pickle_file(str(worker.spec.error_file)))
        self._directory.copy_error_file(recorder, f"recorder_{worker.spec.rank}")
        local_rank = worker.spec.local_rank
        if code == 0 or self._state.stopping:
            self._apply(self._state.exited(local_rank, now))
            return
        failure, recorded = self._failures.of_exit(worker, code), self._failures.recorded(self._workers)
        self._apply(self._state.exited(local_rank, now, failure, recorded=recorded, stacks=self._stacks()))

    def _stacks(self) -> str:
        """Those that the workers were asked for."""
        files = {worker.spec.local_rank: worker.spec.error_file for worker in self._workers}
        return hooks.stacks(files) if self._state.hangs else ""

    # -- effects

    def _apply(self, step: Step) -> None:
        self._state, effects = step
        for effect in effects:
            self._carry_out(effect)
        if self._state.is_over:
            self._check_handlers_at = None

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartProcesses():
                self._starter.start(effect.plan, effect.local_ranks, alone=effect.alone)
            case CancelStarts():
                self._starter.cancel()
            case SendPlan():
                self._messages.send_to(effect.local_rank, plan_message(effect, self._environment(effect), self.group))
            case SendEnd():
                self._messages.send_to(effect.local_rank, end_message(effect))
            case AskToSave():
                self._messages.ask_to_save(effect.rank, effect.seconds)
            case Signal() | RequestStacks() | GiveUp():
                for worker in self._of(effect):
                    _deliver(effect, worker)

    def _environment(self, effect: SendPlan) -> dict[str, str] | None:
        if effect.plan.rank is None:
            return None
        (worker,) = self._of(effect)
        return self._preparation.worker_environment(effect.plan, effect.local_rank, str(worker.spec.error_file))

    def _of(self, effect: Signal | RequestStacks | GiveUp | SendPlan) -> list[WorkerProcess]:
        """The processes that it is for."""
        local_ranks = effect.local_ranks if isinstance(effect, (Signal, RequestStacks)) else {effect.local_rank}
        return [worker for worker in self._workers if worker.spec.local_rank in local_ranks]

    def _catching(self, number: int) -> frozenset[int]:
        return frozenset(worker.spec.local_rank for worker in self._workers if worker.catches(number))

    def _update_rank(self, worker: WorkerProcess) -> None:
        """It may be told another plan than the one that it was prepared for."""
        rank = self._state.processes[worker.spec.local_rank].rank
        worker.spec = dataclasses.replace(worker.spec, rank=rank)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is a worker or in a worker's session."""
        with contextlib.suppress(OSError):
            return os.getsid(pid) in self.pids.values()
        return False


def _deliver(effect: Signal | RequestStacks | GiveUp, worker: WorkerProcess) -> None:
    match effect:
        case Signal():
            worker.signal(effect.number)
        case RequestStacks():
            hooks.request_stacks(worker.pid, worker.spec.error_file)
        case GiveUp():
            logger.warning("killing worker process %d: %s", worker.pid, effect.message)
            worker.fail(effect.reason, effect.message)
