"""Worlds of a few ranks with a small sharded model (FSDP2 on the CPU), each rank in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.sharded.contents import missing_support
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

needs_fsdp2 = pytest.mark.skipif(bool(missing_support(torch.__version__, {"cpu"})), reason="torch has no FSDP2 on CPUs")


class Training:
    """A model whose parameters do not divide evenly by 2, 3 or 4, its optimizer and a scheduler. One parameter is never
    used, and has no gradient."""

    def __init__(self, width: int = 7) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, 3))
        self.model.unused = nn.Parameter(torch.ones(5))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (self.model[0], self.model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self, number: int) -> None:
        """The same batch on all ranks, so that the result does not depend on their number."""
        torch.manual_seed(number)
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def whole(self) -> dict[str, Any]:
        """The state without shards, which is the same for any number of ranks. Collective."""
        model: Any = get_model_state_dict(self.model)
        optimizer: Any = get_optimizer_state_dict(self.model, self.optimizer)["state"]
        state = {
            **{f"model.{name}": value for name, value in model.items()},
            **{f"optimizer.{name}.{key}": value for name, item in optimizer.items() for key, value in item.items()},
        }
        full = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()}
        return {**{key: value.tolist() for key, value in full.items()}, "scheduler": self.scheduler.state_dict()}


def run(
    size: int,
    function: Callable[..., Any],
    directory: pathlib.Path,
    *args: Any,
    agents: Sequence[tuple[str, int]] = (),
    round_number: int = 1,
) -> list[Any]:
    """What `function(*args)` returns on each rank: a value, or (type, message) of its exception.

    agents: for each rank, the socket of its agent and its local rank.
    """
    context = multiprocessing.get_context("forkserver")  # a fork of this process could not use autograd
    context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo"])
    results = context.Queue()
    store = directory / f"store-{os.urandom(4).hex()}"
    processes = [
        context.Process(
            target=_rank,
            args=(rank, size, os.fspath(store), results, function, args, _environment(agents, rank, round_number)),
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=200.0) for _ in processes)
    for process in processes:
        process.join(30.0)
    return [found[rank] for rank in range(size)]


def _environment(agents: Sequence[tuple[str, int]], rank: int, round_number: int) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name.startswith("ELASTICJOB_")}
    if not agents:
        return given
    socket, local_rank = agents[rank]
    return {
        **given,
        Env.AGENT_SOCKET: socket,
        Env.ROUND: str(round_number),
        Env.FENCE: f"1.0.{round_number}",
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(sum(item == socket for item, _ in agents)),
        "TORCHELASTIC_RUN_ID": "run",
    }


def _rank(
    rank: int,
    size: int,
    store: str,
    results: Any,
    function: Callable[..., Any],
    args: Any,
    environment: dict[str, str],
) -> None:
    torch.set_num_threads(1)
    os.environ.update(environment)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001 the caller judges it
        traceback.print_exc(file=sys.stderr)
        result = (type(error).__name__, str(error))
    results.put((rank, result))
    dist.barrier()
    dist.destroy_process_group()
