"""The local worker group: start, stop, and how it ended.

Event-driven: it registers file descriptors with a event_loop (the agent's loop), which decides anew after every event.
One call at a time, all on the loop's thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import BinaryIO

from elasticjob_runtime.contract import PEER_LOST, FailureValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.failures import first_failure
from elasticjob_runtime.membership.view import (
    Plan,
    Workers,
    WorkersState,
)
from elasticjob_runtime.workers import descriptors, logs
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.environment import GroupSpec, worker_environment
from elasticjob_runtime.workers.failure import KILLED, describe, happened_at
from elasticjob_runtime.workers.oom import OomKills
from elasticjob_runtime.workers.process import Worker, WorkerSpec
from elasticjob_runtime.workers.timers import TimerServer
from elasticjob_runtime.workers.zygote import hooks
from elasticjob_runtime.workers.zygote.launcher import GroupLauncher

CAUSE_GRACE = 0.3
"""s for which the failure of a worker that lost a peer is kept back: that peer's own failure, here or elsewhere, is the
one to be told."""

FIRST_LOOK, LONGEST_LOOK = 0.25, 4.0
"""s after a start, and at most between two looks, at whether a worker handles SIGTERM. A look costs 0.02 ms per
worker."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A worker that is being started: what it is given, and the ends of pipes that only it will hold."""

    spec: WorkerSpec
    sinks: list[logs.Sink]
    ends: list[BinaryIO]


class WorkerGroup:
    """The workers of one agent, one round after the other."""

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
    ) -> None:
        """`folder`: the agent's own, which ends with it."""
        self.group = group
        self._command = command
        self._launcher = launcher
        self._event_loop = event_loop
        self._member = member
        self._log_settings = log_settings
        self._directory = logs.LogDirectory(log_settings, group.run_id, folder)
        self._agent_socket = agent_socket
        self._oom_kills = OomKills()
        self._timers = TimerServer(base_environment, folder, event_loop, self._owner_of)
        self._base = {**base_environment, **self._timers.environment}
        self._workers: list[Worker] = []
        self._starting: list[Start] = []
        self._stopping = False
        self._failures: list[FailureValue] = []
        """Kept back until `_verdict_at`."""
        self._verdict_at: float | None = None
        self._kill_at: float | None = None
        self._savers: set[Worker] | None = None
        """Those that were sent the signal to save, where others were not; these are ended when all savers have."""
        self._look_at: float | None = None
        self._look_after = FIRST_LOOK
        self.view = Workers()

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do; None: there is none."""
        times = (self._kill_at, self._verdict_at, self._look_at, self._timers.deadline)
        return min((at for at in times if at is not None), default=None)

    def start(self, plan: Plan, now: float) -> None:
        """Starts all workers of this plan, at once or when their forks are ready. A command that cannot be started is a
        failed worker."""
        assert plan.rank is not None
        assert not self._workers
        self._stopping = False
        self._savers = None
        self._look_after = FIRST_LOOK
        self._look_at = now + FIRST_LOOK
        self._oom_kills.begin()
        self.view = Workers(state=WorkersState.RUNNING, round=plan.round, changed_at=now, plan=plan)
        for local_rank in range(self.group.nproc):
            try:
                self._starting.append(self._prepare(plan, plan.rank.group_rank, local_rank))
            except (OSError, ValueError) as error:
                self._could_not_start(local_rank, error)
                return
        for start in list(self._starting):
            if not self._stopping:
                self._launcher.start(start.spec, lambda result, start=start: self._started(start, result))  # type: ignore[misc]

    def stop(self, grace: float, now: float, number: int = signal.SIGTERM) -> None:
        """SIGKILL at once, or the signal `number` and SIGKILL after `grace` seconds (by `tick`).

        Where only some of the workers handle that signal, only they get it; the others, whom they may need to get to
        the end of a step, are killed when they have ended.
        """
        self._forget_starts()
        self._forget_failures()
        if not self._workers:
            if self.view.state is WorkersState.RUNNING:
                self._stopping = True
                self._all_ended(now)
            return
        self._stopping = True
        self._look_at = None
        self._set(WorkersState.STOPPING, now, saving=grace > 0)
        self._kill_at = now + grace if grace > 0 else None
        savers = {worker for worker in self._workers if worker.catches(number)} if grace > 0 else set()
        self._savers = savers if savers and len(savers) < len(self._workers) else None
        for worker in self._savers or list(self._workers):
            worker.signal(number if grace > 0 else signal.SIGKILL)

    def hung(self, message: str, now: float) -> None:
        """The workers run, but the training does not: they fail, as soon as they had the time to write their stacks."""
        if self.view.state is WorkersState.RUNNING and self._workers and not self._failures:
            for worker in self._workers:
                hooks.ask_for_stacks(worker.pid, worker.spec.error_file)
            spec = self._workers[0].spec
            self._failures.append(
                self._failure_value(spec.rank, spec.local_rank, -signal.SIGKILL, hooks.HANG, message, "", time.time())
            )
            self._verdict_at = now + hooks.STACKS_SECONDS

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    def look_for_handlers(self) -> None:
        """Finds out whether a worker handles SIGTERM by now: only the kernel knows."""
        if self.view.state is not WorkersState.RUNNING or self.view.saves:
            return
        if any(worker.catches(signal.SIGTERM) for worker in self._workers):
            self.view = dataclasses.replace(self.view, saves=True)

    def tick(self, now: float) -> None:
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.signal(signal.SIGKILL)
        if self._look_at is not None and now >= self._look_at:
            self.look_for_handlers()
            self._look_after = min(2 * self._look_after, LONGEST_LOOK)
            self._look_at = (
                now + self._look_after if self.view.state is WorkersState.RUNNING and not self.view.saves else None
            )
        if self._verdict_at is not None and now >= self._verdict_at:
            self._failures += self._written()
            self._fail(now)
        self._timers.tick(now)

    def close(self) -> None:
        """After the last worker has ended."""
        self._timers.close()

    # -- starting

    def _prepare(self, plan: Plan, group_rank: int, local_rank: int) -> Start:
        """Raises OSError, ValueError."""
        directory = self._directory.worker(plan.round, local_rank)
        rank = group_rank * self.group.nproc + local_rank
        error_file = self._directory.error_file(plan.round, local_rank)
        error_file.unlink(missing_ok=True)
        environment = worker_environment(
            self._base, self.group, plan.value, group_rank, local_rank,
            error_file=str(error_file), agent_socket=self._agent_socket,
            without_libuv=self._launcher.without_libuv,
        )  # fmt: skip
        sinks: list[logs.Sink] = []
        writing: dict[int, BinaryIO] = {}
        for stream in (logs.STDOUT, logs.STDERR):
            sink, end = logs.open_sink(
                self._log_settings, directory, stream, local_rank=local_rank, rank=rank, role=self.group.role
            )
            if sink is not None and end is not None:
                sinks.append(sink)
                writing[stream] = end
        spec = WorkerSpec(
            command=self._command,
            environment=environment,
            local_rank=local_rank,
            rank=rank,
            error_file=error_file,
            stdout=writing[logs.STDOUT].fileno() if logs.STDOUT in writing else None,
            stderr=writing[logs.STDERR].fileno() if logs.STDERR in writing else None,
        )
        return Start(spec, sinks, list(writing.values()))

    def _started(self, start: Start, result: int | OSError) -> None:
        self._starting.remove(start)
        for end in start.ends:
            end.close()
        worker: Worker | OSError = result if isinstance(result, OSError) else self._watched(start, result)
        if isinstance(worker, OSError):
            for sink in start.sinks:
                sink.close()
            self._could_not_start(start.spec.local_rank, worker)
            return
        self._workers.append(worker)
        self._event_loop.add_reader(worker.pidfd, lambda: self._ended(worker))
        for sink in worker.sinks:
            self._listen_to(sink)
        if not self._starting:
            self._launcher.started()

    def _watched(self, start: Start, pid: int) -> Worker | OSError:
        try:
            return Worker(start.spec, pid, start.sinks)
        except OSError as error:
            Worker.end_unwatched(pid)
            return error

    def _forget_starts(self) -> None:
        self._launcher.cancel()
        for start in self._starting:
            for end in start.ends:
                end.close()
            for sink in start.sinks:
                sink.close()
        self._starting.clear()

    # -- output

    def _listen_to(self, sink: logs.Sink) -> None:
        self._event_loop.add_reader(sink.fd, lambda: self._pump(sink))

    def _pump(self, sink: logs.Sink) -> None:
        if not sink.pump():
            self._event_loop.remove_reader(sink.fd)
        elif (outlet := sink.full) is not None:
            self._event_loop.remove_reader(sink.fd)
            outlet.when_room(lambda: self._event_loop.call_soon(lambda: self._resume(sink)))

    def _resume(self, sink: logs.Sink) -> None:
        if not sink.closed:
            self._listen_to(sink)

    # -- ends

    def _ended(self, worker: Worker) -> None:
        now = time.monotonic()
        self._event_loop.remove_reader(worker.pidfd)
        code = worker.reap()
        for sink in worker.sinks:
            with contextlib.suppress(KeyError):
                self._event_loop.remove_reader(sink.fd)
            sink.close()
        self._workers.remove(worker)
        self._directory.keep(worker.spec.error_file)
        if self._savers is not None:
            self._savers.discard(worker)
            if not self._savers:
                self._savers = None
                self.signal(signal.SIGKILL)
        if code != 0 and not self._stopping:
            self._failed(self._failure(worker, code), now)
        elif not self._workers and not self._starting:
            self._all_ended(now)

    def _failed(self, failure: FailureValue, now: float) -> None:
        """Tells it at once, unless it is likely the consequence of another one."""
        self._failures.append(failure)
        self._failures += self._written()
        if first_failure(self._failures).reason != PEER_LOST:
            self._fail(now)
        elif self._verdict_at is None:
            self._verdict_at = now + CAUSE_GRACE

    def _written(self) -> list[FailureValue]:
        """Failures of workers that have told one, and are still on their way out."""
        return [self._failure(worker, 1) for worker in self._workers if worker.spec.error_file.exists()]

    def _fail(self, now: float) -> None:
        """The first failure counts; the others of this group are ended: they could not go on without it."""
        failure = first_failure(self._failures)
        if failure.reason == hooks.HANG:
            failure = dataclasses.replace(
                failure, traceback=hooks.stacks({w.spec.local_rank: w.spec.error_file for w in self._workers})
            )
        self._forget_failures()
        self._forget_starts()
        self._stopping = True
        self.view = dataclasses.replace(self.view, failure=failure, state=WorkersState.STOPPING, changed_at=now)
        self.signal(signal.SIGKILL)
        if not self._workers:
            self._all_ended(now)

    def _forget_failures(self) -> None:
        self._failures = []
        self._verdict_at = None

    def _all_ended(self, now: float) -> None:
        self._kill_at = self._look_at = None
        if self._failures:
            return  # the verdict is to come
        if self.view.failure is not None:
            self._set(WorkersState.FAILED, now)
        else:
            self._set(WorkersState.NONE if self._stopping else WorkersState.SUCCEEDED, now)

    def _set(self, state: WorkersState, now: float, *, saving: bool = False) -> None:
        # The moment of a failure stays: others count their patience from it.
        changed_at = self.view.changed_at if self.view.failure is not None else now
        self.view = dataclasses.replace(self.view, state=state, changed_at=changed_at, saving=saving)

    def _failure(self, worker: Worker, code: int) -> FailureValue:
        out_of_memory = code in KILLED and self._oom_kills.happened()
        reason, message, traceback = describe(
            code, worker.spec.error_file, worker.stderr_tail, out_of_memory=out_of_memory
        )
        at = happened_at(code, worker.spec.error_file, worker.traceback_at, time.time())
        return self._failure_value(worker.spec.rank, worker.spec.local_rank, code, reason, message, traceback, at)

    def _could_not_start(self, local_rank: int, error: Exception) -> None:
        assert self.view.plan is not None
        assert self.view.plan.rank is not None
        rank = self.view.plan.rank.group_rank * self.group.nproc + local_rank
        message = (
            f"cannot start {self._command.for_rank(local_rank)[0]}: "
            f"{descriptors.explain(error) if isinstance(error, OSError) else error}"
        )
        self._failures.append(self._failure_value(rank, local_rank, 127, "CannotStart", message, "", time.time()))
        self._fail(time.monotonic())

    def _failure_value(
        self, rank: int, local_rank: int, code: int, reason: str, message: str, traceback: str, at: float
    ) -> FailureValue:
        return FailureValue(
            member=self._member,
            round=self.view.round,
            rank=rank,
            local_rank=local_rank,
            exit_code=code,
            reason=reason,
            message=message,
            traceback=traceback,
            host=socket.gethostname(),
            time=at,
        )

    def _owner_of(self, pid: int) -> bool:
        """Is this process a worker, or of a worker's session?"""
        with contextlib.suppress(OSError):
            return os.getsid(pid) in self.pids.values()
        return False

    @property
    def pids(self) -> dict[int, int]:
        """Local rank -> process id of the running workers."""
        return {worker.spec.local_rank: worker.pid for worker in self._workers}

    @property
    def log_directory(self) -> str:
        return os.fspath(self._directory.path)
