"""The job of a random run, what happens to it, and the undisturbed run that it is compared with."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.random_run.faults import Fault, Kind, draw
from benchmarks.recovery.job import MARK, Job, JobError, last_line, marked, member_of
from benchmarks.recovery.ledger import Commit, Ledger
from benchmarks.recovery.systems import SYSTEMS

SCRIPT = Path(__file__).with_name("script.py")
AGENTS = 4
STEPS_PER_EPOCH = 63
START_LIMIT = 120.0
END_LIMIT = 180.0


@dataclasses.dataclass(frozen=True)
class Injected:
    time: float
    """Unix time, s."""
    fault: Fault
    step: int
    """The newest one committed by then."""


class RandomJob(Job):
    """A context manager."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        super().__init__(SYSTEMS["level-2"], folder, endpoint, script=SCRIPT)
        (folder / "states").mkdir()
        self._hit: set[str] = set()
        """Processes that were killed, frozen or asked to leave."""

    def __enter__(self) -> RandomJob:
        return self

    def faults(self, chance: random.Random, seconds: float, every: float) -> Iterator[Injected]:
        """Injects a fault about every `every` s, whatever the job is doing, for this long."""
        end = time.monotonic() + seconds
        while True:
            time.sleep(min(every * chance.uniform(0.5, 1.5), max(0.0, end - time.monotonic())))
            if time.monotonic() >= end:
                return
            fault = draw(chance, healthy=self._healthy(), frozen=bool(self._frozen()), agents=len(self._running()))
            if fault is not None and (at := self._inject(fault)) is not None:
                yield Injected(at, fault, max(commit.step for commit in self.ledger.commits))

    def finish(self) -> None:
        """Ends the training after the next epoch, and waits for it. Raises JobError if it does not end well."""
        for process in self._frozen():  # nothing would find it any more
            os.kill(_pid(process), signal.SIGKILL)
        epoch = max(commit.step for commit in self.update().commits) // STEPS_PER_EPOCH + 2
        (self.folder / "epochs.new").write_text(str(epoch))
        (self.folder / "epochs.new").rename(self.folder / "epochs")
        if not self._until(lambda: not self._running(), END_LIMIT):
            raise JobError(f"{', '.join(self._running())} still run {END_LIMIT:g} s after the last epoch was announced")
        for name, agent in self._agents.items():
            if name not in self._ended and agent.process.returncode:
                raise JobError(f"{name} exited with {agent.process.returncode}: {last_line(agent.log)}")

    def _inject(self, fault: Fault) -> float | None:
        """When, Unix time. None: a process that was to be hit has ended by itself meanwhile."""
        actions: dict[Kind, Callable[..., tuple[float, list[str]]]] = {
            Kind.KILL: self.kill,
            Kind.TWO: self.kill,
            Kind.NODE: self.reset,
            Kind.LEAVE: self._leave,
            Kind.FREEZE: self.freeze,
            Kind.JOIN: lambda: (self.start(1), []),
            Kind.SUSPEND: self._suspend,
        }
        try:
            at, victims = actions[fault.kind](*fault.members)
        except JobError:
            return None
        self._hit.update(victims)
        if fault.kind is Kind.NODE:
            self.start(1)
        return at

    def _leave(self, member: str) -> tuple[float, list[str]]:
        victims = [commit.process for commit in self._last_commits() if member_of(commit.process) == member]
        return self.terminate(member), victims

    def _suspend(self) -> tuple[float, list[str]]:
        """Raises JobError if the members do not leave in time."""
        members, victims = self._running(), [commit.process for commit in self._last_commits()]
        at = self.terminate(*members)
        if not self._until(lambda: not any(self._agents[name].alive() for name in members), END_LIMIT):
            raise JobError(f"{', '.join(members)} do not leave within {END_LIMIT:g} s")
        self.start(AGENTS)
        return at, victims

    def _healthy(self) -> list[str]:
        """Members that have taken part in the latest world."""
        return [member_of(one.process) for one in self._last_commits() if one.process not in self._hit]

    def _frozen(self) -> list[str]:
        found = []
        for process in self._hit:
            pid = _pid(process)
            if pid in marked(MARK, self._mark(member_of(process))) and _is_stopped(pid):
                found.append(process)
        return found

    def _running(self) -> list[str]:
        """Agents, without those that the run has ended."""
        return [name for name, agent in self._agents.items() if name not in self._ended and agent.alive()]

    def _last_commits(self) -> list[Commit]:
        """Of the newest world, if all its processes have committed a step. Logs are read seconds apart here, so the
        newest line may be anywhere in the ledger."""
        commits = self.update().commits
        if not commits:
            return []
        newest = max(commits, key=lambda commit: int(commit.generation))
        found = {one.process: one for one in commits if one.generation == newest.generation}
        return list(found.values()) if len(found) == newest.world else []


def undisturbed(folder: Path, epochs: int) -> Ledger:
    """The same training in one process, without an agent. Its state is in folder/states."""
    for name in ("steps", "states"):
        (folder / name).mkdir(parents=True)
    (folder / "epochs").write_text(str(epochs))
    environment = {**os.environ, "BENCH_FOLDER": str(folder), "BENCH_STEP_SECONDS": "0", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT)], env=environment, check=True)
    (log,) = (folder / "steps").iterdir()
    ledger = Ledger()
    ledger.read(log.stem, log.read_text())
    return ledger


def _pid(process: str) -> int:
    return int(process.rpartition(".")[2])


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False
