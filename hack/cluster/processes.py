"""Starting and ending the processes of a cluster."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from .cgroups import JOIN_AND_EXECUTE
from .output import DIE_WITH_PARENT, ClusterError, environment, tail

T = TypeVar("T")

START_SECONDS = 5.0
"""A daemon that has not joined its cgroup by then has not started, in seconds."""


class Child:
    """A process that ends with the thread that started it, however that one ends.

    `log` gets its output. `stop()` ends it earlier.
    """

    def __init__(self, command: Sequence[str | Path], log: Path, env: dict[str, str] | None = None) -> None:
        self.name = Path(command[0]).name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**(env or {})),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until(self, ready: Callable[[], bool], timeout: float = 60.0) -> None:
        """Waits until `ready()`. Raises ClusterError with the end of the log when the process ends first, or after
        `timeout` seconds."""
        end = time.monotonic() + timeout
        while not ready():
            if not self.alive():
                raise ClusterError(
                    f"{self.name} ended with status {self.process.returncode}, log: {self.log}\n{tail(self.log)}"
                )
            if time.monotonic() > end:
                raise ClusterError(f"{self.name} is not ready after {timeout:g} s, log: {self.log}\n{tail(self.log)}")
            time.sleep(0.05)

    def stop(self, grace: float = 5.0) -> None:
        """Sends SIGTERM, and SIGKILL after `grace` seconds (0: immediately). Does nothing if the process has ended."""
        if self.alive() and grace:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.process.kill()
        self.process.wait()


def start_daemon(
    command: Sequence[str | Path], log: Path, groups: Sequence[Path], namespace: str | None = None
) -> None:
    """Starts a program that outlives this process, in these cgroups (folders) and, if named, in this network
    namespace."""
    log.parent.mkdir(parents=True, exist_ok=True)
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    joined = ["sh", "-c", JOIN_AND_EXECUTE, " ".join(map(str, groups)), *inside, *map(str, command)]
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *joined],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            check=True,
        )


def wait_for(ready: Callable[[], T], running: Callable[[], bool], what: str, log: Path, timeout: float = 60.0) -> T:
    """Waits until `ready()` returns something true, and returns that. Raises ClusterError with the end of the log when
    the program is not `running()` any more, or after `timeout` seconds."""
    started, was_running = time.monotonic(), False
    while True:
        result = ready()
        if result:
            return result
        elapsed, runs = time.monotonic() - started, running()
        was_running = was_running or runs
        if not runs and (was_running or elapsed > START_SECONDS):
            raise ClusterError(f"{what} has ended, log: {log}\n{tail(log)}")
        if elapsed > timeout:
            raise ClusterError(f"{what} is not ready after {timeout:g} s, log: {log}\n{tail(log)}")
        time.sleep(0.05)
