"""One worker process: started in its own session, ends with its agent, watched by pidfd."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elasticjob_runtime.workers import descriptors, linux
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.failure import exit_code_of
from elasticjob_runtime.workers.logs import Sink


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What to start."""

    command: Command
    environment: Mapping[str, str]
    local_rank: int
    rank: int
    error_file: Path
    stdout: int | None
    """File descriptor; None: the agent's own."""
    stderr: int | None


Started = Callable[[int | OSError], None]
"""Is told the process id of a child of this process that leads a session of its own; or why there is none."""


class SpawnLauncher:
    """fork and exec: works for every command; a Python worker then pays for all its imports."""

    def start(self, spec: WorkerSpec, started: Started) -> None:
        try:
            pid = self._spawn(spec)
        except OSError as error:
            started(error)
        else:
            started(pid)

    def _spawn(self, spec: WorkerSpec) -> int:
        agent = os.getpid()

        def in_child() -> None:
            linux.die_with_parent(agent)
            descriptors.give_back_limit()

        process = subprocess.Popen(
            spec.command.for_rank(spec.local_rank),
            env=dict(spec.environment),
            stdout=spec.stdout,
            stderr=spec.stderr,
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509 - a few system calls, no locks: safe beside threads
        )
        process.returncode = 0  # reaped by `Worker.reap`, not by Popen
        return process.pid


class Worker:
    """A running worker. `pidfd` gets readable when it ends."""

    def __init__(self, spec: WorkerSpec, pid: int, sinks: Sequence[Sink]) -> None:
        """Raises OSError where it cannot be watched; the caller ends it then, with `end_unwatched`."""
        self.spec = spec
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.sinks = tuple(sinks)
        self.exit_code: int | None = None

    def signal(self, number: int) -> None:
        """Sends a signal to the worker; SIGKILL, or any to a program that may be a shell, to everything it started in
        its session too.

        A script's data loaders must not die of what asks the script to save: torch then raises in the midst of it.
        """
        if self.exit_code is None:
            send = os.kill if self.spec.command.program and number != signal.SIGKILL else os.killpg
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def catches(self, number: int) -> bool:
        """Has the worker itself, not what it started, a handler for this signal?"""
        return self.exit_code is None and linux.catches(self.pid, number)

    def reap(self) -> int:
        """Takes the exit code of a worker that ended. What it left behind (data loaders) ends first, while its id is
        still its own."""
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = exit_code_of(status)
        os.close(self.pidfd)
        return self.exit_code

    @staticmethod
    def end_unwatched(pid: int) -> None:
        """Ends a worker of which there is no descriptor: nobody would see its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    @property
    def traceback_at(self) -> float | None:
        return self.sinks[-1].traceback_at if self.sinks else None

    @property
    def stderr_tail(self) -> str:
        return self.sinks[-1].tail if self.sinks else ""
