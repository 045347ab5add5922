"""What sessions do with NCCL, as far as it shows without a GPU. The rest is in tests that need one.

tests/integration/runtime_session/test_replica_sessions.py has replicas with a second gloo in NCCL's place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.nccl import Nccl
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.session.world import SessionError, World
from torch import nn
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

pytestmark = pytest.mark.timeout(30)


class Communicator:
    """Records that it was aborted."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()

    def set_timeout(self, _: object) -> None:
        pass


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Nccl(torch.device("cuda", 0))


def test_a_communicator_is_not_freed_while_a_collective_is_being_queued(backend: Nccl) -> None:
    communicator, queueing, go_on = Communicator(), threading.Event(), threading.Event()

    def begin() -> torch.futures.Future[None]:
        queueing.set()
        go_on.wait()
        return torch.futures.Future()

    thread = threading.Thread(target=backend.communicate, args=(begin, Interruption()))
    thread.start()
    queueing.wait()
    backend.abort(communicator)
    assert not communicator.aborted.wait(0.2)
    go_on.set()
    assert communicator.aborted.wait(10)
    thread.join()


def test_no_collective_is_queued_once_the_world_is_over(backend: Nccl) -> None:
    interruption = Interruption()
    interruption.end()
    with pytest.raises(OverError):
        backend.communicate(lambda: pytest.fail("queued"), interruption)


def test_the_thread_that_hears_of_plans_does_not_wait_for_an_abort(backend: Nccl) -> None:
    class Slow(Communicator):
        def abort(self) -> None:
            go_on.wait()
            super().abort()

    communicator, go_on = Slow(), threading.Event()
    backend.abort(communicator)
    assert not communicator.aborted.is_set()
    go_on.set()
    assert communicator.aborted.wait(10)


def test_torch_neither_ends_a_process_nor_waits_when_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents set 1, as torchrun does: torch's watchdog would end the process. On a GPU, torch 2.11 let an abort wait
    for a minute."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    Nccl(torch.device("cuda", 0))
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "0"


class Replica:
    """Of one rank, on a GPU that is played. Another one adds nothing, and votes as this one."""

    def __init__(self, backend: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = nn.Linear(2, 1, bias=False)
        self.replicas = Replicas(Parts({"model": self.model}), backend)
        self.interruption = Interruption()
        self.used: list[str] = []
        """Which groups have reduced something."""
        self.is_done: Callable[[], bool] = lambda: True
        """Whether the GPU has done what is queued."""
        engine: Any = SimpleNamespace(
            interruption=self.interruption,
            wait=lambda _: None,
            communicate=lambda begin: self.replicas.communicate(begin, self.interruption),
        )
        self.replicas.use(engine)
        groups: Any = SimpleNamespace(gloo="gloo", nccl="nccl")
        self.replicas.enter(groups, world(size=2))
        event = SimpleNamespace(record=lambda _: None, query=self.query)
        monkeypatch.setattr(torch_private, "all_reduce", self.all_reduce)
        monkeypatch.setattr(torch.cuda, "Event", lambda: event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
        self.replicas.begin_step()

    def all_reduce(self, group: str, _tensor: torch.Tensor, **_: object) -> Any:
        self.used.append(group)
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)  # queued
        return SimpleNamespace(get_future=lambda: future)

    def query(self) -> bool:
        return self.is_done()

    def train(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.replicas.reduce_gradients()

    def vote(self) -> None:
        self.replicas.wait_for_collectives(self.interruption, 1)


def world(*, size: int) -> World:
    return World(round=1, attempt="", step_grace=0.0, environment={"RANK": "0", "WORLD_SIZE": str(size)})


@pytest.fixture
def replica(backend: Nccl, monkeypatch: pytest.MonkeyPatch) -> Replica:
    return Replica(backend, monkeypatch)


def test_replicas_on_gpus_reduce_gradients_over_nccl_and_agree_over_gloo(replica: Replica) -> None:
    replica.train()
    assert replica.used == ["gloo", "nccl"], "which parameters are used, and their gradients"
    assert replica.model.weight.grad is not None
    assert replica.model.weight.grad.tolist() == [[0.5, 0.5]], "divided by the number of replicas"
    replica.vote()
    assert replica.used == ["gloo", "nccl", "gloo"]


def test_a_step_is_lost_if_the_gpu_has_reduced_its_gradients_only_after_the_end_of_the_world(replica: Replica) -> None:
    """What is aborted is done, too, and has left garbage. So this rank does not vote for it."""

    def aborted() -> bool:
        replica.interruption.end()
        return True

    replica.is_done = aborted
    replica.train()
    with pytest.raises(OverError, match="this world is over"):
        replica.vote()
    assert replica.used == ["gloo", "nccl"]


def test_a_reduction_that_cannot_be_queued_raises_only_at_the_vote(replica: Replica) -> None:
    replica.replicas._all_reduce(torch.zeros(1))
    replica.interruption.end()
    replica.replicas._reduce_for_fsdp(0, torch.zeros(1))
    replica.replicas._reduced = True
    with pytest.raises(OverError, match="this world is over"):
        replica.vote()
    assert replica.used == ["gloo"]


def test_a_replica_that_is_alone_does_not_wait_for_its_gpu(replica: Replica) -> None:
    replica.replicas.count = 1
    replica.is_done = lambda: pytest.fail("asked")
    replica.train()
    replica.vote()


def test_a_cuda_graph_of_a_session_s_step_is_an_error(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is of the backward pass or of the optimizer."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(SessionError, match="CUDA graph"):
        replica.train()
    replica.replicas._reduced = True
    with pytest.raises(SessionError, match="CUDA graph"):
        replica.vote()


@pytest.mark.usefixtures("group")
def test_the_end_of_a_world_aborts_what_connects_replicas_and_not_the_replica_s_own_group(
    backend: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    communicator = Communicator()
    monkeypatch.setattr(torch_private, "connect_nccl", lambda *_: communicator)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    own, replicas = dist.group.WORLD, Replicas(Parts({"model": nn.Linear(1, 1)}), backend)
    group = replicas.connect(PrefixStore("between", HashStore()), world(size=1))
    group.install(PrefixStore("unused", HashStore()))
    assert dist.group.WORLD is own
    group.interrupt()
    assert communicator.aborted.wait(10)
    dist.all_reduce(torch.ones(1))
