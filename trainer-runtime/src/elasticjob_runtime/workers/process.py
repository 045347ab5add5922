"""One worker process: what it runs, and how its agent signals and reaps it. It leads its own session, and dies with its
agent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.logs import Sink


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What every worker runs: `program`, which is an interpreter with its flags, and a script or module with its
    arguments. An empty `program` means that the script is executable."""

    program: Sequence[str] = ()
    module: bool = False
    arguments: Sequence[str]

    def for_rank(self, local_rank: int) -> list[str]:
        """The whole command line, with torchrun's macro `${local_rank}` replaced."""
        flags = ["-m"] if self.module else []
        return [*self.program, *flags, *self.script_arguments(local_rank)]

    def script_arguments(self, local_rank: int) -> list[str]:
        """The script's sys.argv."""
        return [argument.replace("${local_rank}", str(local_rank)) for argument in self.arguments]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """A worker process to start."""

    command: Command
    environment: Mapping[str, str]
    local_rank: int
    rank: int
    error_file: Path
    stdout: int | None
    """File descriptor; None: inherit the agent's."""
    stderr: int | None


class WorkerProcess:
    """A running worker process. `pidfd` becomes readable when it ends."""

    def __init__(self, spec: WorkerSpec, pid: int, sinks: Sequence[Sink]) -> None:
        """Raises OSError if the process cannot be watched; the caller then calls `kill_unwatched`."""
        self.spec = spec
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.sinks = tuple(sinks)
        self.exit_code: int | None = None
        self.given_up: tuple[str, str, str] | None = None
        """(failure reason, message, traceback) of a worker that its agent has killed; None: the agent has not."""

    def signal(self, number: int) -> None:
        """Sends a signal to the worker. SIGKILL, and any signal to a program that may be a shell, goes to its whole
        process group.

        The signal that asks a script to save must not kill its data loaders: torch would raise an error in the middle
        of saving.
        """
        if self.exit_code is None:
            send = os.kill if self.spec.command.program and number != signal.SIGKILL else os.killpg
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def fail(self, reason: str, message: str, traceback: str = "") -> None:
        """Kills a worker that its agent has given up; its end is reported as this failure."""
        self.given_up = (reason, message, traceback)
        self.signal(signal.SIGKILL)

    def catches(self, number: int) -> bool:
        """Whether the worker process itself has a handler for this signal."""
        return self.exit_code is None and linux.catches(self.pid, number)

    def reap(self) -> int:
        """Returns the exit code of a worker that ended. Processes it left behind, such as data loaders, are killed
        first, while the process group's id cannot be reused."""
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        os.close(self.pidfd)
        return self.exit_code

    @staticmethod
    def kill_unwatched(pid: int) -> None:
        """Kills a worker without a pidfd, whose end would go unnoticed."""
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
