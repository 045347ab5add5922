"""Plays the agent for worker processes on this machine: starts and kills them, hosts the store, sends plans.

It speaks the real protocol on a real socket (training/session/agent.py); one driver stands for the agents of all
machines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import Env
from elasticjob_runtime.workers.environment import RES_OPTIONS
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hack.chaos import script
from tests import gpu
from tests.integration.runtime_session.forks import Fork

SCRIPT = pathlib.Path(script.__file__)


@dataclasses.dataclass
class Worker:
    name: str
    process: Fork
    connection: socket.socket | None = None
    heard: int = 0
    arrived: int = 0
    formed: int = 0
    entered: int = 0
    waiting: int = 0
    committed: int = -1
    failed: list[str] = dataclasses.field(default_factory=list)
    broke: int = 0
    """The newest plan whose world it could not form, or lost."""
    frozen: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ready(self) -> bool:
        return self.connection is not None

    def learn(self, message: dict[str, Any]) -> None:
        if message["state"] == "heard":
            self.heard = message["round"]
        elif message["state"] == "arrived":
            self.arrived = message["round"]
        elif message["state"] == "formed":
            self.formed = message["round"]
        elif message["state"] == "entered":
            self.entered, self.committed = message["round"], message["committed"]
        elif message["state"] == "waiting":
            self.waiting = message["round"]
        elif message["state"] == "failed":
            self.failed.append(message["why"])
            self.broke = message["round"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)


class Driver:
    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str], script: pathlib.Path = SCRIPT) -> None:
        self._folder = folder
        self._script = script
        self.environment = dict(environment)
        """For the processes; `{name}` stands for each one's name."""
        self.store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._path = str(folder / "agent.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._new: list[socket.socket] = []
        self.workers: dict[str, Worker] = {}
        self.round = 0
        self._planned: list[Worker] = []

    def start(self, *names: str) -> list[Worker]:
        return [self._start(name) for name in names]

    def _start(self, name: str) -> Worker:
        environment = {
            **{key: value.replace("{name}", name) for key, value in self.environment.items()},
            Env.AGENT_SOCKET: self._path,
            Env.IN_PLACE: "1",
            Env.FENCE: f"1.0.{self.round}",  # all processes of a job must call it the same
            "WORKER_NAME": name,
            "OUTPUT": str(self._folder / name),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "RES_OPTIONS": RES_OPTIONS,  # as agents do: torch looks up the name of the store's host
            **gpu.environment(name),
        }
        process = Fork(self._script, environment, self._folder / f"{name}.log")
        worker = self.workers[name] = Worker(name, process)
        return worker

    def plan(
        self,
        workers: Sequence[Worker],
        *,
        step_grace: float = 0.0,
        evaluation_grace: float = 0.0,
        told: Sequence[Worker] | None = None,
    ) -> int:
        """Sends the next plan, with `workers` in rank order, to these and those of earlier plans."""
        self.round += 1
        self._planned = list(workers)
        ranks = {worker.name: rank for rank, worker in enumerate(workers)}
        for worker in self.workers.values() if told is None else told:
            rank = ranks.get(worker.name)
            if rank is None and not worker.heard:
                continue  # not in a plan yet
            environment = {
                "RANK": str(rank), "WORLD_SIZE": str(len(workers)), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.store.port), Env.ROUND: str(self.round), Env.FENCE: f"1.0.{self.round}",
            }  # fmt: skip
            message = {
                "type": "plan", "in_place": True, "round": self.round, "attempt": f"attempt-{self.round}",
                "step_grace": step_grace, "environment": None if rank is None else environment,
                "evaluation_grace": evaluation_grace,
            }  # fmt: skip
            if worker.connection is not None:
                with contextlib.suppress(OSError):
                    worker.connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return self.round

    def mend(self) -> None:
        """Plans the same again where the world of the newest plan broke although no process of it is lost, as agents
        do: on a busy machine, connections may take too long."""
        whole = all(item.process.poll() is None and not item.frozen for item in self._planned)
        if whole and any(item.broke == self.round for item in self._planned):
            self.plan(self._planned, step_grace=0.5, told=self._planned)

    def pump(self, seconds: float = 0.01) -> None:
        """Reads what the workers say, for `seconds`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            connections = [worker.connection for worker in self.workers.values() if worker.connection is not None]
            for item in select.select([self._listener, *self._new, *connections], [], [], left)[0]:
                if item is self._listener:
                    self._new.append(self._listener.accept()[0])
                else:
                    self._read(item)

    def _read(self, connection: socket.socket) -> None:
        worker = next((item for item in self.workers.values() if item.connection is connection), None)
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            if worker is not None:
                worker.connection = None
            if connection in self._new:
                self._new.remove(connection)
            connection.close()
            return
        message: dict[str, Any] = json.loads(data)
        if message["type"] == "hello":
            self._new.remove(connection)
            next(item for item in self.workers.values() if item.pid == message["pid"]).connection = connection
        elif message["type"] == "plan-state" and worker is not None:
            worker.learn(message)
        elif message["type"] == "fetch":  # this agent keeps nothing in memory; without an answer, processes wait 2 s
            with contextlib.suppress(OSError):
                connection.send(json.dumps({"type": "snapshot", "step": None}).encode(), socket.MSG_NOSIGNAL)

    def check(self) -> None:
        """Raises AssertionError if a process has failed by itself."""
        for worker in self.workers.values():
            if worker.process.poll() not in (None, 0, -signal.SIGKILL):
                log = (self._folder / f"{worker.name}.log").read_text(errors="replace")
                raise AssertionError(f"{worker.name} exited with {worker.process.returncode}:\n{log[-3000:]}")

    def stacks(self) -> str:
        """Of the processes that still run: the end of their logs, with the stacks of all their threads."""
        running = [item for item in self.workers.values() if item.process.poll() is None]
        for worker in running:
            worker.process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        return "\n".join(
            f"== {item.name}: heard {item.heard}, entered {item.entered}, failed {item.failed}\n"
            + (self._folder / f"{item.name}.log").read_text(errors="replace")[-2500:]
            for item in running
        )

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
            if worker.connection is not None:
                worker.connection.close()
        for item in (self._listener, *self._new):
            item.close()
