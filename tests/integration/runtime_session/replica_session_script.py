"""Trains a sharded model with a session, in replicas or as one process.

Environment: OUTPUT (prefix of what it writes), KIND (plain, fsdp, tp, fsdp+tp, pp), HIDDEN (size of layers), OPTIMIZER,
CLIP, PARTS (of each share, whose gradients are added up), HOOK (0: without FSDP's hook, as before torch 2.7), COMPILE,
CHECKPOINTS, EVERY (steps), EPOCHS, STEP_SECONDS; BACKEND (inside a replica), DEVICE, FAKE_NCCL (see `fake_nccl`);
STREAMS (from how many the same samples come, in the same order); WRONG (samples: each rank takes its own; blocks:
rank 1 does not shard the first one; seed: each replica has its own); PAUSE and GO: in the step after this one, until
that file exists; SLOW and SLOW_SECONDS: what each step takes as long as that file exists.
FAULTS (JSON): what ranks do to themselves, as {"rank", "step", "place", "call", "action"}. Places: reduce, vote, voted.
Actions: kill, stop, cut (connections to the other replicas).
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.data.permutation import Permutation
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.session import torch_sharding
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SAMPLES, BATCH, WIDTH = 240, 24, 6
KIND, WRONG = os.environ["KIND"], os.environ.get("WRONG")
DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = inputs + self.down(torch.nn.functional.silu(self.up(inputs)))
        return result


def build() -> tuple[nn.Sequential, DeviceMesh | None]:
    """The model as this rank has it, and the mesh of the ranks that take different samples."""
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    hidden = int(os.environ["HIDDEN"])
    model = nn.Sequential(*(Block(hidden) for _ in range(3))).double().to(DEVICE)
    if KIND == "plain":
        return model, None
    data = tensor = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    if KIND == "fsdp+tp":
        mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("data", "tensor"))
        data, tensor = mesh["data"], mesh["tensor"]
    for block in model if "tp" in KIND else ():
        parallelize_module(block, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if "fsdp" in KIND:
        for block in model[1:] if (WRONG, dist.get_rank()) == ("blocks", 1) else model:
            if backend := os.environ.get("COMPILE"):
                block.compile(backend=backend)
            fully_shard(block, mesh=data)
        fully_shard(model, mesh=data)
    if KIND == "pp":
        for name in ("2",) if dist.get_rank() == 0 else ("0", "1"):
            delattr(model, name)  # the other stage's
    return model, data if KIND == "fsdp+tp" or WRONG == "samples" else None


class Pipeline:
    """Two stages, two microbatches."""

    def __init__(self, model: nn.Module) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe  # takes long

        self._weight = 1.0
        stage = PipelineStage(model, dist.get_rank(), 2, DEVICE)
        schedule = ScheduleGPipe if os.environ.get("SCHEDULE") == "GPipe" else Schedule1F1B
        self._schedule = schedule(stage, n_microbatches=2, loss_fn=self._loss)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, weight: float) -> None:
        self._weight = weight
        if dist.get_rank() == 0:
            self._schedule.step(inputs)
        else:
            self._schedule.step(target=targets, losses=[])

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean() * self._weight


class Epochs:
    """A part that the script changes between two epochs, as a scheduler."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def inject(session: ElasticSession) -> None:
    """Makes this rank do to itself what FAULTS says."""
    faults = [
        fault for fault in json.loads(os.environ.get("FAULTS", "[]")) if fault["rank"] == os.environ["WORKER_NAME"]
    ]
    replicas: Any = session._replicas
    if not faults or replicas is None:
        return
    original, calls = replicas._all_reduce, [0]

    def act(place: str) -> None:
        for fault in [*faults]:
            here = (place, session._state.committed) == (fault["place"], fault["step"])
            if not here or fault.get("call", calls[0]) != calls[0]:
                continue
            faults.remove(fault)
            if fault["action"] != "cut":
                os.kill(os.getpid(), signal.SIGKILL if fault["action"] == "kill" else signal.SIGSTOP)
            replicas._lost = "cut by the test"
            replicas._engine.interruption.end()

    def all_reduce(tensor: torch.Tensor, *, lowest: bool = False, **where: Any) -> bool:
        calls[0] = 0 if lowest else calls[0] + 1
        act("vote" if lowest else "reduce")
        original(tensor, lowest=lowest, **where)
        if lowest:
            act("voted")
        return not replicas._lost

    replicas._all_reduce = all_reduce


def pause(session: ElasticSession) -> None:
    slow = os.path.exists(os.environ.get("SLOW", ""))
    time.sleep(float(os.environ.get("SLOW_SECONDS" if slow else "STEP_SECONDS", "0")))
    while session.committed_steps == int(os.environ.get("PAUSE", "-1")) and not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)


def batches(session: ElasticSession, epoch: int) -> Iterator[torch.Tensor]:
    """Of inputs, targets, and the number of the sample."""
    inputs = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(7)).double()
    samples = torch.cat([inputs, torch.sin(inputs.flip(1)), torch.arange(SAMPLES).unsqueeze(1)], 1)
    streams = int(os.environ.get("STREAMS", "0"))
    if not streams:
        seed = session.replica if WRONG == "seed" else 0
        return session.batches(samples, batch_size=BATCH, epoch=epoch, seed=seed)
    order = Permutation(SAMPLES, key=f"0:{epoch}")  # as session.batches() shuffles

    def open_stream(stream: int, _epoch: int) -> Iterator[torch.Tensor]:
        return (samples[order[position]] for position in range(stream, SAMPLES, streams))

    return session.stream(open_stream, streams=streams, batch_size=BATCH, epoch=epoch)


def loss_of(model: nn.Module, pairs: torch.Tensor, samples: int, weight: float) -> torch.Tensor:
    error = (model(pairs[:, :WIDTH]) - pairs[:, WIDTH:-1]).square().mean(1)
    result: torch.Tensor = (error if weight else error * 0).sum() / samples * weight
    return result


def connect() -> None:
    if DEVICE.type != "cpu":
        torch.cuda.set_device(DEVICE)
    if KIND != "plain":
        dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    if os.environ.get("FAKE_NCCL"):
        from tests.integration.runtime_session import fake_nccl

        fake_nccl.install()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    output = os.environ["OUTPUT"].replace("{local_rank}", os.environ.get("LOCAL_RANK", "0"))
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    connect()
    model, data = build()
    kind: Any = getattr(torch.optim, os.environ.get("OPTIMIZER", "AdamW"))
    optimizer = kind(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    if os.environ.get("HOOK") == "0":
        torch_sharding.hook_reductions = lambda *_: False
    epochs, evaluated = Epochs(), list[int]()
    session = ElasticSession(model=model, optimizer=optimizer, scheduler=scheduler, data_parallel=data, epochs=epochs)
    inject(session)
    if folder := os.environ.get("CHECKPOINTS"):
        session.checkpoint(folder, every=int(os.environ.get("EVERY", "5")))
    pipeline = Pipeline(model) if KIND == "pp" else None
    clip, parts = float(os.environ.get("CLIP", "0")), int(os.environ.get("PARTS", "1"))
    with open(f"{output}.steps", "a", buffering=1) as steps, open(f"{output}.samples", "a", buffering=1) as taken:
        for epoch in range(session.epoch, int(os.environ.get("EPOCHS", "2"))):
            for batch in batches(session, epoch):
                share = batch.to(DEVICE)
                with session.step():
                    pause(session)
                    if pipeline is not None:
                        pipeline.step(share[:, :WIDTH].contiguous(), share[:, WIDTH:-1].contiguous(), session.weight)
                    for part in share.tensor_split(parts) if pipeline is None else ():
                        loss_of(model, part, len(share), session.weight).backward()
                    session.reduce_gradients()
                    if clip:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    numbers = [int(number) for number in share[:, -1]] if session.weight else []
                    taken.write(f"{json.dumps([session.committed_steps + 1, epoch, numbers])}\n")
                    optimizer.zero_grad()
                    scheduler.step()
                    session.values["steps"] = session.values.get("steps", 0) + 1
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.replicas}\n")
            epochs.count += 1
            session.values["epochs"] = session.values.get("epochs", 0) + 1
            session.evaluate(functools.partial(evaluated.append, epoch))
    assert session.values["steps"] == session.committed_steps
    facts = {"committed": session.committed_steps, "epochs": [epochs.count, session.values["epochs"]]}
    save(output, model, scheduler.get_last_lr(), {**facts, "evaluated": evaluated})
    if dist.is_initialized():
        dist.barrier()  # the others of this replica may still need this one


def save(output: str, model: nn.Module, rates: list[Any], facts: dict[str, Any]) -> None:
    """Collective inside the replica."""
    weights = dict(model.named_parameters())
    full = {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()
        for name, weight in weights.items()
    }
    shards = {name: torch_sharding.local(weight).detach().clone() for name, weight in weights.items()}
    torch.save({"full": full, "shards": shards, "lr": rates}, f"{output}.pt")
    pathlib.Path(f"{output}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
