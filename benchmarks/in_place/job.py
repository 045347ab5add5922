"""A job that changes in place: what `benchmarks.recovery.job` does, with the ledger in place of its logs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.in_place.ledger import Change, Commit, Ledger, change
from benchmarks.in_place.systems import HERE
from benchmarks.recovery import job as recovery
from benchmarks.recovery.job import MARK, JobError, marked
from benchmarks.recovery.systems import System

POLL_INTERVAL = 0.1
"""s. What is measured is in the logs: reading them must not take processor time from the job."""
STEADY_STEPS = 25


class Job(recovery.Job):
    """A context manager."""

    def __init__(self, system: System, folder: Path, endpoint: str, *, script: Path = HERE / "script.py") -> None:
        super().__init__(system, folder, endpoint, script=script)
        self.folder = folder
        self.ledger = Ledger()
        self._read: dict[Path, int] = {}
        self._in_events = system.launcher[:2] == ("-m", "elasticjob_runtime")

    def __enter__(self) -> Job:
        return self

    def _command_of(self, member: str) -> list[str]:
        *command, script = self._command
        events = ["--events", str(self.folder / f"{member}.events")] if self._in_events else []
        return [*command, *events, script]

    def update(self) -> Ledger:
        """Reads what the processes have logged since the last time."""
        for path in (self.folder / "steps").glob("*.log"):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                text = log.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            self.ledger.read(path.stem, complete.decode())
        return self.ledger

    # -- changes

    def members(self) -> list[str]:
        """Those that train, in the order of their start."""
        newest = self._last_commits()
        return sorted({member_of(commit.process) for commit in newest})

    def kill(self, *members: str) -> tuple[float, list[str]]:
        """Kills the members' worker processes at once. Returns when, and which."""
        return self._signal_workers(signal.SIGKILL, *members)

    def freeze(self, member: str) -> tuple[float, list[str]]:
        """Stops the member's worker process, but not its agent. Returns when, and which."""
        return self._signal_workers(signal.SIGSTOP, member)

    def _signal_workers(self, number: signal.Signals, *members: str) -> tuple[float, list[str]]:
        victims = self._processes_of(*members)
        if len(victims) != len(members):
            raise JobError(f"{members} do not all train")
        pids = {victim: int(victim.rpartition(".")[2]) for victim in victims}
        if gone := [one for one in victims if pids[one] not in marked(MARK, self._mark(member_of(one)))]:
            raise JobError(f"{gone[0]} has ended")
        now = time.time()
        for pid in pids.values():
            os.kill(pid, number)
        return now, victims

    def reset(self, member: str) -> tuple[float, list[str]]:
        """Kills the agent and its worker process at once."""
        victims = self._processes_of(member)
        return self.reset_node(member), victims

    def silence(self, member: str) -> tuple[float, list[str]]:
        """Stops the agent and its worker process at once. Returns when, and which."""
        victims = self._processes_of(member)
        return self.freeze_node(member), victims

    def _processes_of(self, *members: str) -> list[str]:
        """Their worker processes that train."""
        return [commit.process for commit in self._last_commits() if member_of(commit.process) in members]

    # -- observations

    def wait_change(
        self, event: float, limit: float, *, world: int | None = None, victims: list[str] | None = None
    ) -> Change | None:
        """What the event cost until processes trained in a later generation. None: they did not within `limit` s."""
        end = time.monotonic() + limit
        while True:
            found = change(self.update().commits, event, world=world, victims=victims or ())
            if found is not None or time.monotonic() > end:
                return found
            time.sleep(POLL_INTERVAL)

    def wait_training(self, world: int, limit: float) -> None:
        """Waits until a world of this size has trained a while. Raises JobError."""
        end = time.monotonic() + limit
        while True:
            self.update()
            newest = self._last_commits()
            if len(newest) == world:
                generation = newest[0].generation
                steps = sum(commit.generation == generation for commit in self.ledger.commits)
                if steps >= world * STEADY_STEPS:
                    return
            if time.monotonic() > end:
                raise JobError(f"no training with {world} worker processes after {limit:g} s: {len(newest)} train")
            time.sleep(POLL_INTERVAL)

    def _last_commits(self) -> list[Commit]:
        """The newest step of each process of the newest generation, if it is complete."""
        commits = self.update().commits
        if not commits:
            return []
        newest = max(commits[-50:], key=lambda commit: commit.time)
        found = {commit.process: commit for commit in commits if commit.generation == newest.generation}
        return list(found.values()) if len(found) == newest.world else []


def member_of(process: str) -> str:
    return process.split(".", 1)[0]
