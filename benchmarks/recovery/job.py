"""One job of several agents on this machine, and the faults to inject into it. Ends only processes that it started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.recovery.ledger import Change, Commit, Ledger, change
from benchmarks.recovery.systems import System, listens
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

MARK = "BENCH_NODE"
"""Environment variable that marks all processes of an agent, even those whose parent has ended."""
POLL_INTERVAL = 0.1
"""s. What is measured is in the logs: reading them must not take processor time from the job."""
STEADY_STEPS = 25


class JobError(Exception):
    """The job did not reach the state to measure."""


class Job:
    """Agents are named agent-0, agent-1 ...; the first hosts torchrun's store, if any. A context manager."""

    def __init__(self, system: System, folder: Path, endpoint: str, *, script: Path | None = None) -> None:
        """`endpoint`: of the coordinator."""
        self._system = system
        self.folder = folder
        (folder / "steps").mkdir(parents=True)
        self._token = secrets.token_hex(6)
        self._endpoint = endpoint if system.on_etcd else f"127.0.0.1:{free_ports(1)[0]}"
        self._script = script or system.script
        self.environment: dict[str, str] = {}
        """Of the agents that start from now on, in addition to the system's."""
        self._agents: dict[str, Child] = {}
        self._ended: set[str] = set()
        """Members that the benchmark ended."""
        self.ledger = Ledger()
        self._read: dict[Path, int] = {}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for member, agent in self._agents.items():
            self._until(lambda member=member: not self._kill_all(member), limit=10)  # type: ignore[misc]  # it may be starting a worker process right now
            agent.stop(grace=0)

    # -- changes. Each returns when it happened (Unix time), and which worker processes it hit

    def start(self, count: int) -> float:
        """Starts this many more agents. Returns when."""
        now = time.time()
        for _ in range(count):
            self._start_one()
        return now

    def kill(self, *members: str) -> tuple[float, list[str]]:
        """Kills the members' worker processes at once."""
        return self._signal_workers(signal.SIGKILL, *members)

    def freeze(self, member: str) -> tuple[float, list[str]]:
        """Stops the member's worker process, but not its agent."""
        return self._signal_workers(signal.SIGSTOP, member)

    def reset(self, member: str) -> tuple[float, list[str]]:
        """Kills the agent and everything it started at once."""
        victims = self._processes_of(member)
        self._ended.add(member)
        return self._signal_all(member, signal.SIGKILL), victims

    def silence(self, member: str) -> tuple[float, list[str]]:
        """Stops the agent and everything it started at once."""
        victims = self._processes_of(member)
        return self._signal_all(member, signal.SIGSTOP), victims

    def terminate(self, *members: str) -> float:
        """Returns when."""
        now = time.time()
        for member in members:
            self._ended.add(member)
            self._agents[member].process.send_signal(signal.SIGTERM)
        return now

    # -- observations

    def members(self) -> list[str]:
        """Those that train, in the order of their start."""
        return sorted({member_of(commit.process) for commit in self._last_commits()})

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

    def wait_change(
        self, event: float, limit: float, *, world: int | None = None, victims: list[str] | None = None
    ) -> Change | None:
        """What the event cost until processes trained in a later generation. None: they did not within `limit` s."""
        found: list[Change] = []

        def changed() -> bool:
            cost = change(self.update().commits, event, world=world, victims=victims or ())
            found.extend([cost] if cost is not None else [])
            return bool(found)

        return found[0] if self._until(changed, limit) else None

    def wait_training(self, world: int, limit: float) -> None:
        """Waits until a world of this size has trained a while. Raises JobError."""

        def trains() -> bool:
            if gone := next(
                (name for name, agent in self._agents.items() if name not in self._ended and not agent.alive()), None
            ):
                raise JobError(f"{gone} ended unexpectedly: {last_line(self._agents[gone].log)}")
            newest = self._last_commits()
            if len(newest) != world:
                return False
            steps = sum(commit.generation == newest[0].generation for commit in self.ledger.commits)
            return steps >= world * STEADY_STEPS

        if not self._until(trains, limit):
            raise JobError(f"no training with {world} worker processes after {limit:g} s")

    def _last_commits(self) -> list[Commit]:
        """The newest step of each process of the newest generation, if it is complete."""
        commits = self.update().commits
        if not commits:
            return []
        newest = max(commits[-50:], key=lambda commit: commit.time)
        found = {commit.process: commit for commit in commits if commit.generation == newest.generation}
        return list(found.values()) if len(found) == newest.world else []

    def _processes_of(self, *members: str) -> list[str]:
        """Their worker processes that train."""
        return [commit.process for commit in self._last_commits() if member_of(commit.process) in members]

    def _until(self, predicate: Callable[[], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not predicate():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    # -- processes

    def _start_one(self) -> None:
        member = f"agent-{len(self._agents)}"
        environment = {
            **self._system.environment,
            MARK: self._mark(member),
            **self.environment,
            "BENCH_FOLDER": str(self.folder),
            "BENCH_MEMBER": member,
            "ELASTICJOB_MEMBER_ID": member,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [*self._system.command(self._endpoint, self._token, 2, 4), str(self._script)]
        self._agents[member] = Child(command, self.folder / f"{member}.log", environment)
        if len(self._agents) == 1 and not self._system.on_etcd:
            self._agents[member].wait_until(lambda: listens(self._endpoint), timeout=60)

    def _mark(self, member: str) -> str:
        return f"{self._token}-{member}"

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

    def _kill_all(self, member: str) -> list[int]:
        """Returns the pids that are still running. Dead processes have no environment, so the next call skips them."""
        self._signal_all(member, signal.SIGKILL)
        return marked(MARK, self._mark(member))

    def _signal_all(self, member: str, number: signal.Signals) -> float:
        found = sorted(
            marked(MARK, self._mark(member)), key=lambda pid: pid != self._agents[member].pid
        )  # the agent first
        now = time.time()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return now


def member_of(process: str) -> str:
    return process.split(".", 1)[0]


def last_line(log: Path) -> str:
    return ([line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["no output"])[-1]


def marked(variable: str, value: str, proc: Path = Path("/proc")) -> list[int]:
    """Pids of the processes that were started with this in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
