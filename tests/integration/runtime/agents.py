"""Agents as real processes on a real etcd, with light workers that need no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import elasticjob_runtime
from elasticjob_runtime.contract import Env, Keys, MemberValue, OutcomeValue, PlanValue
from elasticjob_runtime.etcd import EtcdClient
from elasticjob_runtime.etcd.interface import Get, KeyRange
from elasticjob_runtime.workers.linux import stat_fields

from hack.support import eventually

SOURCE = pathlib.Path(elasticjob_runtime.__file__).parents[1]
WORKER = pathlib.Path(__file__).with_name("light_worker.py")

QUICK = "start_grace=0.5,join_delay=0.1"
"""--rdzv-conf of most tests."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerNote:
    """What a worker process wrote about itself once its world was complete."""

    pid: int
    member: str
    rank: int
    world: int
    round: int
    restarts: int
    children: list[int]


@dataclasses.dataclass
class Agent:
    """One `elasticrun`."""

    name: str
    process: subprocess.Popen[bytes]
    log: pathlib.Path
    events_file: pathlib.Path
    termination_file: pathlib.Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def cpu_seconds(self) -> float:
        """Used by the agent's own process since its start."""
        fields = stat_fields(self.pid)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def exit_code(self, timeout: float = 120.0) -> int:
        """Waits until the agent ends, and returns its exit code."""
        eventually(
            lambda: self.process.poll() is not None,
            timeout,
            what=lambda: f"agent {self.name} exits; log:\n{self.output}",
        )
        return int(self.process.returncode)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.events_file.read_text().splitlines()]


class Job:
    """The agents of one run, and what etcd says about it."""

    program: Sequence[str] = (sys.executable, "-S")
    """Python of the agents: without site-packages, since the standard library is all that they need."""

    def __init__(self, endpoint: str, directory: pathlib.Path) -> None:
        self.endpoint = endpoint
        self.directory = directory
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.keys = Keys("/elasticjob", self.run_id)
        self.agents: list[Agent] = []
        self.client = EtcdClient(endpoint)
        for folder in ("workers", "commands"):
            (directory / folder).mkdir()

    def start(
        self,
        name: str,
        *flags: str,
        nnodes: str = "2:3",
        conf: str = QUICK,
        script: Sequence[str] | None = None,
        endpoint: str | None = None,
        environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> Agent:
        """Starts an agent; returns at once. `within`: a command that runs it."""
        log = self.directory / f"{name}-{len(self.agents)}.log"
        events, termination = log.with_suffix(".events"), log.with_suffix(".termination")
        termination.touch()
        events.touch()
        command = [
            *within,
            *(*self.program, "-m", "elasticjob_runtime", "--nnodes", nnodes, "--rdzv-backend", "etcd-v3"),
            *("--rdzv-endpoint", endpoint or self.endpoint, "--rdzv-id", self.run_id, "--rdzv-conf", conf),
            *("--start-method", "spawn", "--events", str(events), *flags),
            *(script or [str(WORKER), str(self.directory)]),
        ]
        given = {
            "PYTHONPATH": str(SOURCE),
            Env.MEMBER_ID: name,
            Env.TERMINATION_LOG: str(termination),
            **(environment or {}),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **given},
                cwd=self.directory,
            )
        agent = Agent(name, process, log, events, termination)
        self.agents.append(agent)
        return agent

    def start_all(self, names: str, *flags: str, nnodes: str = "2:3", **settings: Any) -> list[Agent]:
        """`names`: separated by spaces."""
        return [self.start(name, *flags, nnodes=nnodes, **settings) for name in names.split()]

    def command(self, member: str, word: str) -> None:
        """`word`: raise, exit or hang (see light_worker)."""
        file = self.directory / "commands" / member
        file.with_suffix(".new").write_text(word)
        file.with_suffix(".new").rename(file)

    def finish(self) -> None:
        (self.directory / "finish").touch()

    @property
    def plan(self) -> PlanValue | None:
        kv = self.client.get(self.keys.plan)
        return PlanValue.from_json(kv.value) if kv else None

    @property
    def outcome(self) -> OutcomeValue | None:
        kv = self.client.get(self.keys.outcome)
        return OutcomeValue.from_json(kv.value) if kv else None

    @property
    def members(self) -> dict[str, MemberValue]:
        kvs = self.client.range(Get(KeyRange.prefix(self.keys.members))).kvs
        return {kv.key[len(self.keys.members) :]: MemberValue.from_json(kv.value) for kv in kvs}

    def workers(self, round_number: int) -> list[WorkerNote]:
        """The worker processes of this round that are connected, by rank."""
        found = [
            WorkerNote(**json.loads(path.read_text()))
            for path in (self.directory / "workers").glob(f"{round_number}-*.json")
        ]
        return sorted(found, key=lambda worker: worker.rank)

    def wait_for_training(
        self, size: int, *, after: Sequence[WorkerNote] = (), timeout: float = 120.0
    ) -> list[WorkerNote]:
        """The worker processes of the current round, once it is later than that of `after`, has `size` members, and
        all its worker processes are connected."""
        earlier = max((worker.round for worker in after), default=0)

        def connected() -> list[WorkerNote]:
            plan = self.plan
            assert plan is not None
            assert plan.round > earlier, f"still plan {plan.round}"
            assert plan.size == size, f"plan {plan.round} has {plan.size} members: {plan.message}"
            workers = self.workers(plan.round)
            assert len(workers) == plan.world_size, f"{len(workers)} of {plan.world_size} workers are connected"
            return workers

        try:
            return eventually(connected, timeout, what=f"{size} members train")
        except AssertionError as error:
            raise AssertionError(f"{error}; logs:\n{self.logs}") from error

    @property
    def logs(self) -> str:
        return "\n".join(f"--- {agent.log}\n{agent.output}" for agent in self.agents)

    def close(self) -> None:
        self.client.close()
        for agent in self.agents:
            if agent.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    agent.process.send_signal(signal.SIGCONT)
                    agent.process.kill()
            agent.process.wait()


def is_alive(pid: int) -> bool:
    """Whether this process is running: neither gone nor a zombie."""
    try:
        return stat_fields(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parents() -> dict[int, int]:
    """Of each process on this machine."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(pid)] = int(stat_fields(pid)[1])
    return found
