"""Plays the agents of replicas: starts them, ends one as a whole if it loses a rank, and plans complete ones only."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence

import torch
from elasticjob_runtime.contract import Env
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests import gpu
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import Driver, Worker
from tests.integration.runtime_session.history import wait_until

SCRIPT = pathlib.Path(__file__).with_name("replica_session_script.py")


@dataclasses.dataclass
class Replica:
    name: str
    ranks: list[Worker]
    store: TCPStore
    lost: bool = False

    @property
    def ready(self) -> bool:
        return all(rank.ready for rank in self.ranks)

    @property
    def entered(self) -> int:
        """The newest plan that all its ranks have entered."""
        return min(rank.entered for rank in self.ranks)

    @property
    def waiting(self) -> int:
        """The newest plan outside of which all its ranks wait."""
        return min(rank.waiting for rank in self.ranks)

    @property
    def has_finished(self) -> bool:
        return all(rank.process.poll() == 0 for rank in self.ranks)

    @property
    def has_lost_a_rank(self) -> bool:
        return any(rank.process.poll() not in (None, 0) for rank in self.ranks)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.process.wait()


class ReplicaDriver(Driver):
    def __init__(
        self, folder: pathlib.Path, environment: Mapping[str, str], *, size: int = 2, on_gpus: bool = False
    ) -> None:
        """on_gpus: each rank has the next one."""
        folder.mkdir(exist_ok=True)
        super().__init__(folder, environment, SCRIPT)
        self.folder, self._size, self._on_gpus = folder, size, on_gpus
        self.replicas: dict[str, Replica] = {}
        self.members: list[Replica] = []
        """Of the newest plan, by place."""

    def start_replica(self, name: str) -> Replica:
        index = len(self.replicas)
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        common = self.environment
        ranks = []
        for rank in range(self._size):
            self.environment = {
                **common, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self._size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                Env.REPLICA: str(index), "SEED": str(index),
                "DEVICE": gpu.device(index * self._size + rank) if self._on_gpus else "cpu",
            }  # fmt: skip
            ranks += self.start(f"{name}{rank}")
        self.environment = common
        replica = self.replicas[name] = Replica(name, ranks, store)
        return replica

    def begin(self, names: str, later: str = "") -> list[Replica]:
        """Starts replicas and sends the first plan. Those that join `later` hear that they are not in it, take a step
        on trial, and wait for another one."""
        replicas = [self.start_replica(name) for name in names + later]
        wait_until(self, lambda: all(replica.ready for replica in replicas), "all say hello")
        number = self.plan_replicas(replicas[: len(names)])
        wait_until(
            self, lambda: all(replica.waiting == number for replica in replicas[len(names) :]), "the later ones wait"
        )
        return replicas

    def plan_replicas(
        self, replicas: Sequence[Replica], *, step_grace: float = 0.0, told: Sequence[Replica] | None = None
    ) -> int:
        """Sends the next plan, with `replicas` in this order, to all. told: only to these, as if it took longer to
        reach the others."""
        self.round += 1
        self.members = list(replicas)
        self.tell(self.replicas.values() if told is None else told, step_grace=step_grace)
        return self.round

    def tell(self, those: Iterable[Replica], *, step_grace: float) -> None:
        """Sends the newest plan."""
        for replica in those:
            for rank, worker in enumerate(replica.ranks):
                self._send(worker, self._message(replica, rank, step_grace))

    def _message(self, replica: Replica, rank: int, step_grace: float) -> dict[str, object]:
        planned = replica in self.members
        environment = {
            "RANK": str(rank), "WORLD_SIZE": str(self._size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(replica.store.port), Env.ROUND: str(self.round), Env.FENCE: f"1.0.{self.round}",
        }  # fmt: skip
        place = self.members.index(replica) if planned else 0
        store = f"127.0.0.1:{self.store.port}"
        return {
            "type": "plan", "in_place": True, "round": self.round, "attempt": f"attempt-{self.round}",
            "step_grace": step_grace, "environment": environment if planned else None,
            "replicas": {"place": place, "count": len(self.members), "store": store} if planned else None,
            "others": 0 if planned else len(self.members),
        }  # fmt: skip

    def _send(self, worker: Worker, message: dict[str, object]) -> None:
        if worker.connection is not None:
            with contextlib.suppress(OSError):
                worker.connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def mend(self) -> None:
        """Ends replicas that have lost a rank, and plans without them; plans again if a world broke without a loss."""
        left = []
        for replica in self.members:
            if replica.has_lost_a_rank:
                replica.lost = True
                replica.kill()
            elif not replica.has_finished:
                left.append(replica)
        broke = any(rank.broke == self.round for replica in left for rank in replica.ranks)
        if broke or any(replica.lost for replica in self.members):
            self.plan_replicas(left)

    def check(self) -> None:
        for replica in self.replicas.values():
            for rank in replica.ranks if not replica.lost else ():
                if rank.process.poll() not in (None, 0, -signal.SIGKILL):
                    # A rank ends by itself if another one of its replica does; that one tells why.
                    killed = any(other.process.poll() == -signal.SIGKILL for other in replica.ranks)
                    assert killed, f"{rank.name} exited with {rank.process.returncode}:\n{self.log_of(rank)}"

    def log_of(self, worker: Worker) -> str:
        return (self.folder / f"{worker.name}.log").read_text(errors="replace")[-3000:]

    def steps_of(self, replica: Replica, rank: int = 0) -> list[tuple[float, int, int]]:
        """Time, committed steps, replicas."""
        path = self.folder / f"{replica.ranks[rank].name}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(step), int(count)) for at, step, count in (line.split() for line in lines)]

    def samples_of(self, replica: Replica, rank: int = 0) -> list[tuple[int, int, list[int]]]:
        """Step, epoch and samples of the steps that were committed: what a rank writes right after the vote."""
        path = self.folder / f"{replica.ranks[rank].name}.samples"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_step(self, replica: Replica, step: int) -> None:
        wait_until(
            self, lambda: any(found >= step for _, found, _ in self.steps_of(replica)), f"{replica.name}: step {step}"
        )

    def finish(self) -> list[Trained]:
        """Waits until the replicas of the plan end, and those that are still to be lost are."""
        wait_until(self, lambda: bool(self.members) and all(member.has_finished for member in self.members), "all end")
        return [
            Trained(member.name, [Run.read(self.folder / rank.name) for rank in member.ranks])
            for member in self.members
        ]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a replica left."""

    name: str
    ranks: list[Run]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Of the whole model; stages of a pipeline have different ones."""
        return {name: weight for rank in self.ranks for name, weight in rank.state["full"].items()}

    def assert_same(self, other: Trained) -> None:
        """Bit by bit."""
        for mine, theirs in zip(self.ranks, other.ranks, strict=True):
            mine.assert_same_training(theirs)

    def distance(self, weights: Mapping[str, torch.Tensor]) -> float:
        """The largest difference of a weight."""
        own = self.weights
        assert own.keys() == weights.keys()
        return max(float((own[name] - weights[name]).abs().max()) for name in own)
