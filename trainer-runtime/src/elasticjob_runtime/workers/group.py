"""The local worker group: starts and stops its workers, and reports how they ended.

It is event-driven: it registers file descriptors with the agent's event loop, and the agent decides again after every
event. All calls are on the loop's thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterable, Mapping

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.stopped import StoppedProcesses
from elasticjob_runtime.membership.view import Plan, Workers, WorkersState
from elasticjob_runtime.workers import descriptors, logs
from elasticjob_runtime.workers.environment import GroupSpec
from elasticjob_runtime.workers.first_failure import FailureCollector
from elasticjob_runtime.workers.followers import PlanReport
from elasticjob_runtime.workers.in_place import InPlace
from elasticjob_runtime.workers.messages import WorkerMessages
from elasticjob_runtime.workers.prepare import WorkerPreparation
from elasticjob_runtime.workers.process import Command, WorkerProcess
from elasticjob_runtime.workers.savers import Savers
from elasticjob_runtime.workers.starter import WorkerStarter
from elasticjob_runtime.workers.stopped import kill_stopped
from elasticjob_runtime.workers.timers import TimerServer
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
        self._failures = FailureCollector(member)
        self._workers: list[WorkerProcess] = []
        self._in_place = InPlace(self._preparation, messages, self._workers)
        self._followers = self._in_place.followers
        self._stopped = StoppedProcesses(group.stopped_timeout)
        self._done: set[int] = set()
        """Local ranks of worker processes that ended with code 0 in this round."""
        self._stopping = False
        self._kill_at: float | None = None
        self._savers = Savers(messages.ask_to_save)
        self._check_handlers_at: float | None = None
        self._handler_check_interval = FIRST_HANDLER_CHECK
        self.view = Workers()

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        times = (
            self._kill_at, self._failures.decide_at, self._check_handlers_at, self._timers.deadline,
            self._followers.deadline, self._stopped.deadline,
        )  # fmt: skip
        return min((at for at in times if at is not None), default=None)

    def is_due(self, now: float) -> bool:
        """Whether workers that continue in place should have reported by now."""
        due = self._followers.deadline
        return due is not None and now >= due

    @property
    def pids(self) -> dict[int, int]:
        """Local rank -> process id of the running workers."""
        return {worker.spec.local_rank: worker.pid for worker in self._workers}

    def start(self, plan: Plan, now: float, *, alone: bool = False) -> None:
        """Starts all workers of this plan, at once or when their forks are ready. A worker that cannot be started is a
        failure. `alone`: each in a world of its own, from which it continues in the plan's."""
        assert plan.rank is not None or alone
        assert not self._workers
        self._followers.clear()
        self._done.clear()
        self._stopping = False
        self._savers.clear()
        self._handler_check_interval = FIRST_HANDLER_CHECK
        self._check_handlers_at = now + FIRST_HANDLER_CHECK
        self._failures.begin_round(plan.round)
        self.view = Workers(
            state=WorkersState.RUNNING, round=plan.round, changed_at=now, began_at=now, plan=plan,
            entered=0 if alone else None,
        )  # fmt: skip
        self._start(plan, range(self.group.nproc), now, alone=alone)

    def move(self, plan: Plan, patience: float, now: float) -> None:
        """Continues under `plan`: sends it to the workers that can continue and do not know it, and starts those that
        are missing, in worlds of their own. Those that have not said yet whether they can receive it when they do.

        patience: s that a step may take to end before it is interrupted."""
        self._failures.begin_round(plan.round)
        known = plan == self.view.plan
        self.view = dataclasses.replace(
            self.view, round=plan.round, changed_at=now, began_at=now, plan=plan, failure=None, incomplete=False,
            waiting=False, rejected_at=None, entered=self.view.trained_round,
        )  # fmt: skip
        if not known:
            self._in_place.move(plan, patience, now)
        running = {worker.spec.local_rank for worker in self._workers} | self._starter.local_ranks
        missing = [rank for rank in range(self.group.nproc) if rank not in running]
        for rank in self._done & set(missing):
            logger.warning(
                "worker process %d of this agent ended with code 0 while others were training; starting it again. Let "
                "all ranks decide alike when to stop: see session.values",
                rank,
            )
        self._done.clear()
        if missing:
            self._start(plan, missing, now, alone=True)
        else:
            self._update_in_place(now)

    def said_hello(self, local_rank: int, now: float) -> None:
        """The worker of `local_rank` can continue under another plan."""
        if self.view.state is WorkersState.RUNNING and self.view.plan is not None:
            self._in_place.said_hello(local_rank, self.view.plan, now)
            self._update_in_place(now)

    def reported(self, report: PlanReport, now: float) -> None:
        """A worker has reported how far it is with a plan."""
        if self._followers.reported(report, now):
            self._update_in_place(now)
            if self._in_place.has_ended(report.local_rank) and self._savers.left(report.local_rank):
                self.signal(signal.SIGKILL)

    def saves_at_end(self, local_rank: int) -> None:
        """The worker of `local_rank`, which can continue in place, saves before the end of its last world."""
        self._followers.saves_at_end(local_rank)

    def stop(
        self, grace: float, now: float, number: int = signal.SIGTERM, *, last: bool = False, saves: bool = False
    ) -> None:
        """Sends SIGKILL at once if `grace` is 0; otherwise the signal `number`, and SIGKILL after `grace` seconds.

        Workers that save on request are asked instead, unless they handle SIGTERM. If only some of the others handle
        that signal, only they get it. The rest, which they may need to finish a step, are killed when all have saved.

        last: of all that continue in place; saves: the first of these workers saves for all.
        """
        self._starter.cancel()
        self._failures.clear()
        if not self._workers:
            if self.view.state is WorkersState.RUNNING:
                self._stopping = True
                self._all_ended(now)
            return
        self._stopping = True
        self._check_handlers_at = None
        self._set_state(WorkersState.STOPPING, now, saving=grace > 0)
        self._kill_at = now + grace if grace > 0 else None
        if grace > 0:
            told = self._in_place.end(now, saves=saves) if last else []
            outside = self._in_place.outside()
            for worker in self._savers.begin(self._workers, number, grace, told=told, outside=outside):
                worker.signal(number)
        else:
            self._savers.end()
            self.signal(signal.SIGKILL)

    def add_saver(self, rank: int, round_number: int) -> None:
        """This worker calls `checkpoint_wanted`. It is asked at once if others of its round are saving already."""
        if round_number != self.view.round:
            return
        if self.view.state is WorkersState.RUNNING:
            self.view = dataclasses.replace(self.view, saves=True)
        remaining = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        self._savers.add(rank, self._workers, remaining)

    def saved(self, rank: int, round_number: int) -> None:
        """This worker has nothing left to save."""
        if round_number == self.view.round and self._savers.saved(rank):
            self.signal(signal.SIGKILL)

    def fail_hung(self, message: str, now: float) -> None:
        """Fails the group because its workers run but make no progress."""
        if self.view.state is WorkersState.RUNNING and self._workers and not self._failures:
            self._failures.add_hang(self._workers, message, now)

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    def check_handlers(self) -> None:
        """Finds out whether a worker handles SIGTERM by now, which only the kernel knows."""
        if self.view.state is not WorkersState.RUNNING or self.view.saves:
            return
        if any(worker.catches(signal.SIGTERM) for worker in self._workers):
            self.view = dataclasses.replace(self.view, saves=True)

    def check_stopped(self, now: float) -> None:
        """Fails workers that a signal has stopped for too long. To be called at every SIGCHLD."""
        kill_stopped(self._stopped, self._workers if self.view.state is WorkersState.RUNNING else (), now)

    def tick(self, now: float) -> None:
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.signal(signal.SIGKILL)
        self._in_place.kill_overdue(now)
        if self._stopped.deadline is not None and now >= self._stopped.deadline:
            self.check_stopped(now)
        if self._check_handlers_at is not None and now >= self._check_handlers_at:
            self.check_handlers()
            self._handler_check_interval = min(2 * self._handler_check_interval, MAX_HANDLER_CHECK_INTERVAL)
            undecided = self.view.state is WorkersState.RUNNING and not self.view.saves
            self._check_handlers_at = now + self._handler_check_interval if undecided else None
        if self._failures.decide_at is not None and now >= self._failures.decide_at:
            self._failures.add_recorded(self._workers)
            self._fail(now)
        self._timers.tick(now)

    def close(self) -> None:
        """Call this after the last worker has ended."""
        self._timers.close()

    # -- continuing in place

    def _update_in_place(self, now: float) -> None:
        self.view = self._in_place.seen(self.view, now)

    def _fail_one(self, now: float) -> None:
        """One worker has failed. The others can continue, and wait for its replacement."""
        failure = self._failures.decide([])
        self.view = dataclasses.replace(self.view, failure=failure, incomplete=True, in_place=False, changed_at=now)
        if not self._workers and not self._starter.is_busy:
            self._set_state(WorkersState.FAILED, now)

    # -- starts

    def _start(self, plan: Plan, local_ranks: Iterable[int], now: float, *, alone: bool) -> None:
        ranks = list(local_ranks)
        for local_rank in ranks:
            self._followers.starts(local_rank, now, alone=alone, awaited=alone and plan.rank is not None)
        self._update_in_place(now)
        self._starter.start(plan, ranks, alone=alone)

    def _started(self, worker: WorkerProcess) -> None:
        self._workers.append(worker)
        self._event_loop.add_reader(worker.pidfd, lambda: self._ended(worker))
        for sink in worker.sinks:
            self._output.add(sink)
        self.check_stopped(time.monotonic())

    def _could_not_start(self, local_rank: int, error: Exception) -> None:
        assert self.view.plan is not None
        command = self._preparation.command.for_rank(local_rank)[0]
        reason = descriptors.explain(error) if isinstance(error, OSError) else error
        rank, now = self._preparation.rank(self.view.plan, local_rank), time.monotonic()
        self._failures.add_failed_start(rank, local_rank, f"cannot start {command}: {reason}", now)
        self._fail(now)

    # -- ends

    def _ended(self, worker: WorkerProcess) -> None:
        now = time.monotonic()
        self._event_loop.remove_reader(worker.pidfd)
        code = worker.reap()
        if code == 0 and not self._stopping:
            self._done.add(worker.spec.local_rank)
        for sink in worker.sinks:
            self._output.close(sink)
        self._workers.remove(worker)
        self._directory.copy_error_file(worker.spec.error_file)
        if self._savers.done(worker):
            self.signal(signal.SIGKILL)
        self._followers.ended(worker.spec.local_rank, done=code == 0 and not self._stopping)
        if code != 0 and not self._stopping and self.view.movable:
            self._failures.add_exit(worker, code, [], now)
            self._fail_one(now)
        elif code != 0 and not self._stopping:
            self._failures.add_exit(worker, code, self._workers, now)
            if self._failures.decide_at == now:
                self._fail(now)
        elif not self._workers and not self._starter.is_busy:
            self._all_ended(now)
        else:
            self._update_in_place(now)

    def _fail(self, now: float) -> None:
        """Kills the other workers of this group, which cannot continue without the failed one."""
        failure = self._failures.decide(self._workers)
        self._starter.cancel()
        self._stopping = True
        self.view = dataclasses.replace(self.view, failure=failure, state=WorkersState.STOPPING, changed_at=now)
        self.signal(signal.SIGKILL)
        if not self._workers:
            self._all_ended(now)

    def _all_ended(self, now: float) -> None:
        self._kill_at = self._check_handlers_at = None
        if self._failures:
            return  # not decided yet
        if self.view.failure is not None:
            self._set_state(WorkersState.FAILED, now)
        else:
            self._set_state(WorkersState.NONE if self._stopping else WorkersState.SUCCEEDED, now)

    def _set_state(self, state: WorkersState, now: float, *, saving: bool = False) -> None:
        # Keeps the time of a failure, from which delays and timeouts count.
        changed_at = self.view.changed_at if self.view.failure is not None else now
        self.view = dataclasses.replace(self.view, state=state, changed_at=changed_at, saving=saving)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is a worker or in a worker's session."""
        with contextlib.suppress(OSError):
            return os.getsid(pid) in self.pids.values()
        return False
