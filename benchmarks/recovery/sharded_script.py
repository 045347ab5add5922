"""One sharded model (FSDP2), trained in three ways; writes the ledger of hack/chaos/script.py.

MODE=session: in replicas, with an ElasticSession. MODE=checkpoint: HSDP over the whole world, and a checkpoint with DCP
in every EVERY steps, if CHECKPOINTS is a folder. MODE=torchft: HSDP as torchft 0.2 has it, a replica for each launcher.

Environment besides: PACE (s of sleep in each step, in place of a real model's computation), TURN (a file that names the
mode whose turn it is: two jobs take turns, so that both find the machine in the same state).
"""

from __future__ import annotations

import datetime
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from elasticjob_runtime.data import ElasticDistributedSampler
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from hack.chaos.script import BATCH, CHECKPOINTS, EVERY, MEMBER, PACE, SAMPLES, WIDTH, Ledger, Samples

MODE, TURN = os.environ["MODE"], os.environ.get("TURN", "")
SHARDS = int(os.environ["LOCAL_WORLD_SIZE"])
BLOCK = 25
"""Steps in a turn."""
OTHER = {"session": "checkpoint", "checkpoint": "session"}


class Training:
    def __init__(self, ledger: Ledger, mesh: DeviceMesh) -> None:
        self.ledger = ledger
        blocks = (nn.Sequential(nn.Linear(WIDTH, 256), nn.SiLU(), nn.Linear(256, WIDTH)) for _ in range(3))
        self.model = nn.Sequential(*blocks)
        for block in self.model:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def backward(self, batch: torch.Tensor, weight: float = 1.0) -> None:
        time.sleep(PACE)
        inputs = batch[:, 1:].float()
        ((self.model(inputs) - inputs.flip(1)).square().mean() * weight).backward()

    def work(self, step: int, samples: Sequence[int], generation: str, epoch: int = 0) -> None:
        self.ledger.write("work", step=step, epoch=epoch, samples=samples, generation=generation)


def take_turn(step: int, *, leads: bool) -> None:
    """Waits every BLOCK steps until it is this job's turn. `leads`: this process hands it over."""
    if not TURN or step % BLOCK:
        return
    if step and leads:
        Path(TURN).write_text(OTHER[MODE])
    while Path(TURN).read_text() != MODE:
        time.sleep(0.005)


def in_session(ledger: Ledger) -> None:
    from elasticjob_runtime.training import ElasticSession  # not where others are measured

    training = Training(ledger, init_device_mesh("cpu", (SHARDS,)))
    session = ElasticSession(model=training.model, optimizer=training.optimizer)
    waits: dict[str, Any] = {}
    epoch = session.epoch
    while True:
        for batch in session.batches(Samples(), batch_size=BATCH, epoch=epoch):
            take_turn(session.committed_steps, leads=session.replica == dist.get_rank() == 0)
            if waits and session.committed_steps >= waits["step"]:
                ledger.write("done", **waits)  # in another replica, which then counts for all
            step, generation = session.committed_steps + 1, str(session.round)
            training.work(step, batch[:, 0].tolist(), generation, epoch)
            waits = {"step": step, "generation": generation, "world": session.replicas * SHARDS}
            with session.step():
                training.backward(batch, session.weight)
                session.reduce_gradients()
                training.optimizer.step()
                training.optimizer.zero_grad()
                done, waits = waits, {}
            if not waits:
                ledger.write("done", **done)
        epoch += 1


def with_checkpoints(ledger: Ledger) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
    training = Training(ledger, mesh)
    sampler = ElasticDistributedSampler(range(SAMPLES), world, rank, seed=0)
    step, data = 0, Samples()

    def state() -> dict[str, Any]:
        model, optimizer = get_state_dict(training.model, training.optimizer)
        return {"model": model, "optimizer": optimizer, "step": step, "sampler": sampler.state_dict()}

    saved = [path.parent for path in Path(CHECKPOINTS).glob("*/.metadata")] if CHECKPOINTS else []
    told = [uuid.uuid4().hex[:12], str(max(saved, key=lambda path: int(path.name), default=""))]
    dist.broadcast_object_list(told)
    token, newest = told
    if newest:
        found = state()
        dcp.load(found, checkpoint_id=newest)
        set_state_dict(
            training.model,
            training.optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        sampler.load_state_dict(found["sampler"])
        step = found["step"]
    ledger.write("group", token=token)
    while True:
        for samples in sampler.batches(BATCH):
            take_turn(step, leads=rank == 0)
            training.work(step + 1, samples, token, sampler.epoch)
            training.backward(torch.stack([data[index] for index in samples]))
            training.optimizer.step()
            training.optimizer.zero_grad()
            sampler.advance(min(BATCH, SAMPLES - sampler.consumed))
            step += 1
            ledger.write("done", step=step, generation=token, world=world)
            if CHECKPOINTS and step % EVERY == 0:
                dcp.save(state(), checkpoint_id=str(Path(CHECKPOINTS, str(step))))
        sampler.set_epoch(sampler.epoch + 1)


def under_torchft(ledger: Ledger) -> None:
    """Its data loader continues where the rank's previous process ended, as if it was saved after every batch."""
    import torchft  # type: ignore[import-not-found]  # not among the project's packages: see systems.py
    from torchft.process_group import ManagedProcessGroup  # type: ignore[import-not-found]

    training = Training(ledger, init_device_mesh("cpu", (SHARDS,)))
    rank = dist.get_rank()
    training.backward(torch.zeros(1, WIDTH + 1))  # makes the optimizer's state, which that of another replica replaces
    training.optimizer.step()

    def state() -> list[torch.Tensor]:
        moments = [moment for found in training.optimizer.state.values() for moment in found.values()]
        tensors = [*training.model.parameters(), *moments]
        return [(tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach() for tensor in tensors]

    def load(found: list[torch.Tensor]) -> None:
        for mine, theirs in zip(state(), found, strict=True):
            mine.copy_(theirs)

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        replica_id=MEMBER,
        hostname="127.0.0.1",
        heartbeat_interval=datetime.timedelta(milliseconds=50),
        timeout=datetime.timedelta(seconds=10),
    )
    replicas = ManagedProcessGroup(manager)
    replicas.register("dp_replicate")

    def reduce(output: torch.Tensor) -> None:
        dist.all_reduce(output, group=replicas, op=dist.ReduceOp.AVG)

    for module in training.model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(reduce)
    optimizer = torchft.Optimizer(manager, training.optimizer)
    mine = [
        text
        for log in Path(os.environ["LEDGER"]).glob(f"{MEMBER}.*")
        if f'"rank": {rank},' in (text := log.read_text())
    ]
    drawn, share = sum(text.count('"event": "work"') for text in mine), BATCH // 3 // SHARDS
    first = (int(MEMBER.rpartition("-")[2]) * SHARDS + rank) * 10**9
    while True:
        step = manager.current_step() + 1
        samples = [first + share * drawn + number for number in range(share)]
        training.work(step, samples, "")
        drawn += 1
        optimizer.zero_grad()
        training.backward(torch.randn(share, WIDTH + 1))
        before = manager.current_step()
        optimizer.step()
        now = manager.current_step()
        if now > before and manager.is_participating():
            if now != step:  # it has received the state in between
                training.work(now, samples, "")
            world = manager.num_participants() * SHARDS
            ledger.write("done", step=now, generation=str(manager._quorum_id), world=world)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ledger = Ledger()
    dist.init_process_group("gloo")
    {"session": in_session, "checkpoint": with_checkpoints, "torchft": under_torchft}[MODE](ledger)


if __name__ == "__main__":
    main()
