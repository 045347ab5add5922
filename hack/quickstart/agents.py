"""Agents as child processes: starts them, reads their events and output, kills a worker process, ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elasticjob_runtime.contract import Env

from hack.cluster.processes import Child
from hack.quickstart.timeline import ProcessLine, StepLine, Trained, parse_event, parse_output


class Agent:
    """One `elasticrun` in its own process group. It and its worker processes end with this process."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str | Path]) -> None:
        self.name = name
        self._events = _Lines(folder / f"{name}.events")
        self._output = folder / name
        self._outputs: dict[Path, _Lines] = {}
        self.log = folder / f"{name}.log"
        command = [
            *(sys.executable, "-m", "elasticjob_runtime", "--events", self._events.path),
            *("--log-dir", self._output, "--redirects", "1"),
            *arguments,
        ]
        self.child = Child(command, self.log, {Env.MEMBER_ID: name})

    def trained(self) -> list[Trained]:
        """Changes after which a round has trained, since the last call."""
        return [event for event in map(parse_event, self._events.new()) if event is not None]

    def output(self) -> list[StepLine | ProcessLine | float]:
        """Steps, process IDs and accuracies that its worker processes printed since the last call."""
        found: list[StepLine | ProcessLine | float] = []
        for path in sorted(self._output.glob("*/attempt_*/0/stdout.log"), key=_round):
            lines = self._outputs.setdefault(path, _Lines(path))
            found += [said for line in lines.new() if (said := parse_output(line)) is not None]
        return found

    def kill_worker(self) -> float:
        """Kills its only worker process with SIGKILL. Returns the Unix time. Raises StopIteration if there is none."""
        worker = next(pid for pid in descendants(self.child.pid) if _writes_to_a_pipe(pid))
        now = time.time()
        os.kill(worker, signal.SIGKILL)
        return now

    def wait(self, timeout: float) -> int | None:
        """The exit code; None: still running."""
        try:
            return self.child.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kills it with SIGKILL if it is still running. Its worker processes end with it."""
        self.child.stop(grace=0)


class _Lines:
    """Reads the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new(self) -> list[str]:
        """Complete lines that were written since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


def descendants(pid: int) -> list[int]:
    """Process IDs of all descendants of `pid`."""
    found: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _writes_to_a_pipe(pid: int) -> bool:
    """Whether this is a worker process: because of --redirects, its output is a pipe. Other children of an agent write
    to files."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/1").startswith("pipe:")
    return False


def _round(path: Path) -> int:
    return int(path.parent.parent.name.removeprefix("attempt_"))
