"""One job of several agents on this machine, and the faults to inject into it. Ends only processes that it started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.recovery.measure import Worker, first_step, is_steady, newest_world, parse_log
from benchmarks.recovery.systems import System
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

SCRIPT = Path(__file__).with_name("script.py")
MARK = "BENCH_NODE"
"""Environment variable that marks all processes of an agent, even those whose parent has ended."""
POLL_INTERVAL = 0.03
"""s."""


class JobError(Exception):
    """The job did not reach the state to measure."""


class Job:
    """Agents are named agent-0, agent-1 ...; the first hosts torchrun's store, if any. A context manager."""

    def __init__(
        self, system: System, folder: Path, etcd: str, *, least: int = 2, most: int = 4, script: Path = SCRIPT
    ) -> None:
        self._system = system
        self._folder = folder
        (folder / "steps").mkdir(parents=True)
        self._token = secrets.token_hex(6)
        self._endpoint = etcd if system.on_etcd else f"127.0.0.1:{free_ports(1)[0]}"
        self._command = system.command(self._endpoint, self._token, least, most, str(script))
        self.environment: dict[str, str] = {}
        """Of the agents that start from now on, in addition to the system's."""
        self._agents: dict[str, Child] = {}
        self._count = 0
        self._ended: set[str] = set()
        """Members that the benchmark ended."""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # -- changes

    def start(self, count: int) -> float:
        """Starts this many more agents. Returns when (Unix time)."""
        now = time.time()
        for _ in range(count):
            self._start_one()
        return now

    def kill_worker(self, rank: int, world: int) -> float:
        """Kills the worker process of this rank. Raises JobError where there is none (any more)."""
        workers = [worker for worker in newest_world(self.workers(), world, 0.0) if worker.rank == rank]
        worker = next((worker for worker in workers if worker.pid in marked(MARK, self._mark(worker.member))), None)
        if worker is None:
            raise JobError(f"rank {rank} has no worker process to kill")
        now = time.time()
        os.kill(worker.pid, signal.SIGKILL)
        return now

    def reset_node(self, member: str) -> float:
        """Kills the agent and everything it started at once."""
        self._ended.add(member)
        return self._signal_all(member, signal.SIGKILL)

    def freeze_node(self, member: str) -> float:
        return self._signal_all(member, signal.SIGSTOP)

    def terminate(self, *members: str) -> float:
        now = time.time()
        for member in members:
            self._ended.add(member)
            self._agents[member].process.send_signal(signal.SIGTERM)
        return now

    def expendable(self, world: int) -> list[str]:
        """Members of that world from the highest rank down, without the host of torchrun's store and without rank 0."""
        workers = newest_world(self.workers(), world, 0.0)
        return [worker.member for worker in reversed(workers) if worker.member != "agent-0" and worker.rank != 0]

    # -- observations

    def workers(self) -> list[Worker]:
        logs = (self._folder / "steps").glob("*.log")
        return [worker for log in logs if (worker := parse_log(log.read_text())) is not None]

    def wait_steady(self, world: int, since: float, limit: float) -> None:
        """Waits until a world of this size, started after `since`, trains. Raises JobError."""

        def steady() -> bool:
            if gone := next(
                (name for name, agent in self._agents.items() if name not in self._ended and not agent.alive()), None
            ):
                raise JobError(f"{gone} ended unexpectedly: {last_line(self._agents[gone].log)}")
            return is_steady(self.workers(), world, since)

        if not self._until(steady, limit):
            raise JobError(f"no training with {world} worker processes after {limit:g} s")

    def wait_first_step(self, world: int, since: float, limit: float) -> bool:
        """Waits for the first step of a world of this size that began after `since`. False: not within `limit` s."""
        return self._until(lambda: first_step(self.workers(), world, since) is not None, limit)

    def _until(self, predicate: Callable[[], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not predicate():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    # -- processes

    def end(self) -> None:
        for member, agent in self._agents.items():
            self._until(lambda member=member: not self._kill_all(member), limit=10)  # type: ignore[misc]  # it may be starting a worker process right now
            agent.stop(grace=0)

    def _start_one(self) -> None:
        member = f"agent-{self._count}"
        self._count += 1
        environment = {
            **self._system.environment,
            MARK: self._mark(member),
            **self.environment,
            "BENCH_FOLDER": str(self._folder),
            "BENCH_MEMBER": member,
            "ELASTICJOB_MEMBER_ID": member,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self._agents[member] = Child(self._command_of(member), self._folder / f"{member}.log", environment)
        if self._count == 1 and not self._system.on_etcd:
            self._agents[member].wait_until(self._hosts_store, timeout=60)

    def _command_of(self, member: str) -> list[str]:  # noqa: ARG002 - subclasses use it
        return self._command

    def _hosts_store(self) -> bool:
        host, _, port = self._endpoint.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return True
        return False

    def _mark(self, member: str) -> str:
        return f"{self._token}-{member}"

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
