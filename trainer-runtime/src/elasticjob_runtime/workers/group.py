"""The local worker group: start, stop, and how it ended.

Event-driven: it registers file descriptors with a reactor (the agent's loop), which decides anew after every event. One call at a
time, all on the loop's thread.
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

from elasticjob_runtime.contract import FailureValue
from elasticjob_runtime.membership.model import Plan, Workers, WorkersState
from elasticjob_runtime.workers import logs
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.environment import GroupSpec, worker_environment
from elasticjob_runtime.workers.failure import describe, happened_at
from elasticjob_runtime.workers.launch import GroupLauncher
from elasticjob_runtime.workers.process import Worker, WorkerSpec
from elasticjob_runtime.workers.reactor import Reactor


class WorkerGroup:
    """The workers of one agent, one epoch after the other."""

    def __init__(
        self,
        group: GroupSpec,
        command: Command,
        launcher: GroupLauncher,
        reactor: Reactor,
        *,
        member: str,
        log_settings: logs.LogSettings,
        agent_socket: str,
        base_environment: Mapping[str, str],
    ) -> None:
        self.group = group
        self._command = command
        self._launcher = launcher
        self._reactor = reactor
        self._member = member
        self._log_settings = log_settings
        self._directory = logs.LogDirectory(log_settings, group.run_id)
        self._agent_socket = agent_socket
        self._base = dict(base_environment)
        self._workers: list[Worker] = []
        self._stopping = False
        self.kill_at: float | None = None
        """Monotonic time at which `tick` kills what a graceful stop left; None: none under way."""
        self.view = Workers()

    def start(self, plan: Plan, now: float) -> None:
        """Starts all workers of this plan. A command that cannot be started is a failed worker."""
        assert plan.rank is not None
        assert not self._workers
        self._stopping = False
        self.view = Workers(state=WorkersState.RUNNING, epoch=plan.epoch, changed_at=now, plan=plan)
        for local_rank in range(self.group.nproc):
            try:
                worker = self._start_one(plan, plan.rank.group_rank, local_rank)
            except (OSError, ValueError) as error:
                self._fail(self._cannot_start(plan.rank.group_rank, local_rank, error), now)
                return
            self._workers.append(worker)
            self._reactor.add_reader(worker.pidfd, lambda worker=worker: self._ended(worker))  # type: ignore[misc]
            for sink in worker.sinks:
                self._reactor.add_reader(sink.fd, lambda sink=sink: self._pump(sink))  # type: ignore[misc]
        self._launcher.started()

    def stop(self, grace: float, now: float) -> None:
        """SIGKILL at once, or SIGTERM and SIGKILL after `grace` seconds (by `tick`)."""
        if not self._workers:
            return
        self._stopping = True
        self._set(WorkersState.STOPPING, now)
        self.kill_at = now + grace if grace > 0 else None
        self.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)

    def signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    def tick(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.signal(signal.SIGKILL)

    def _start_one(self, plan: Plan, group_rank: int, local_rank: int) -> Worker:
        directory = self._directory.worker(plan.epoch, local_rank)
        rank = group_rank * self.group.nproc + local_rank
        error_file = directory / "error.json"
        error_file.unlink(missing_ok=True)
        sinks: list[logs.Sink] = []
        writing: dict[int, BinaryIO] = {}
        for stream in (logs.STDOUT, logs.STDERR):
            sink, end = logs.open_sink(self._log_settings, directory, stream, local_rank=local_rank, rank=rank, role=self.group.role)
            if sink is not None and end is not None:
                sinks.append(sink)
                writing[stream] = end
        environment = worker_environment(
            self._base, self.group, plan.value, group_rank, local_rank,
            error_file=str(error_file), agent_socket=self._agent_socket,
            without_libuv=self._launcher.without_libuv,
        )  # fmt: skip
        spec = WorkerSpec(
            command=self._command,
            environment=environment,
            local_rank=local_rank,
            rank=rank,
            error_file=error_file,
            stdout=writing[logs.STDOUT].fileno() if logs.STDOUT in writing else None,
            stderr=writing[logs.STDERR].fileno() if logs.STDERR in writing else None,
        )
        try:
            pid = self._launcher.start(spec)
        except BaseException:
            for sink in sinks:
                sink.close()
            raise
        finally:
            for end in writing.values():
                end.close()
        return Worker(spec, pid, sinks)

    def _pump(self, sink: logs.Sink) -> None:
        if not sink.pump():
            self._reactor.remove_reader(sink.fd)

    def _ended(self, worker: Worker) -> None:
        now = time.monotonic()
        self._reactor.remove_reader(worker.pidfd)
        code = worker.reap()
        for sink in worker.sinks:
            with contextlib.suppress(KeyError):
                self._reactor.remove_reader(sink.fd)
            sink.close()
        self._workers.remove(worker)
        if code != 0 and not self._stopping:
            self._fail(self._failure(worker, code), now)
        elif not self._workers:
            self._all_ended(now)

    def _fail(self, failure: FailureValue, now: float) -> None:
        """The first failure counts; the others of this group are ended: they could not go on without it."""
        self._stopping = True
        self.view = dataclasses.replace(self.view, failure=failure, state=WorkersState.STOPPING, changed_at=now)
        self.signal(signal.SIGKILL)
        if not self._workers:
            self._all_ended(now)

    def _all_ended(self, now: float) -> None:
        self.kill_at = None
        if self.view.failure is not None:
            self._set(WorkersState.FAILED, now)
        else:
            self._set(WorkersState.NONE if self._stopping else WorkersState.SUCCEEDED, now)

    def _set(self, state: WorkersState, now: float) -> None:
        # The moment of a failure stays: others count their patience from it.
        changed_at = self.view.changed_at if self.view.failure is not None else now
        self.view = dataclasses.replace(self.view, state=state, changed_at=changed_at)

    def _failure(self, worker: Worker, code: int) -> FailureValue:
        reason, message, traceback = describe(code, worker.spec.error_file, worker.stderr_tail)
        at = happened_at(code, worker.spec.error_file, worker.traceback_at, time.time())
        return self._failure_value(worker.spec.rank, worker.spec.local_rank, code, reason, message, traceback, at)

    def _cannot_start(self, group_rank: int, local_rank: int, error: Exception) -> FailureValue:
        rank = group_rank * self.group.nproc + local_rank
        message = f"cannot start {self._command.for_rank(local_rank)[0]}: {error}"
        return self._failure_value(rank, local_rank, 127, "CannotStart", message, "", time.time())

    def _failure_value(self, rank: int, local_rank: int, code: int, reason: str, message: str, traceback: str, at: float) -> FailureValue:
        return FailureValue(
            member=self._member,
            epoch=self.view.epoch,
            rank=rank,
            local_rank=local_rank,
            exit_code=code,
            reason=reason,
            message=message,
            traceback=traceback,
            host=socket.gethostname(),
            time=at,
        )

    @property
    def pids(self) -> dict[int, int]:
        """Local rank -> process id of the running workers."""
        return {worker.spec.local_rank: worker.pid for worker in self._workers}

    @property
    def log_directory(self) -> str:
        return os.fspath(self._directory.path)
