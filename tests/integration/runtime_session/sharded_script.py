"""Trains a sharded model (FSDP2) with a session.

Environment: OUTPUT (prefix of what it writes), STEPS, CHECKPOINTS (a directory), EVERY (steps) and BLOCK (0: save in
the background); SLOW (a file): steps take 0.1 s while it exists.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BATCH = 12
WIDTH = 7
"""Divides evenly by no number of ranks."""


def whole(tensor: object) -> object:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    output = os.environ["OUTPUT"].replace("{local_rank}", os.environ.get("LOCAL_RANK", "0"))
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).double()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    session = ElasticSession(model=model, optimizer=optimizer, scheduler=scheduler)
    if folder := os.environ.get("CHECKPOINTS"):
        block = os.environ.get("BLOCK") != "0"
        session.checkpoint(folder, every=int(os.environ.get("EVERY", "0")), block=block)

    last = int(os.environ["STEPS"])
    slow = pathlib.Path(os.environ.get("SLOW", "/nonexistent"))
    torch.manual_seed(1)
    inputs = torch.randn(BATCH * 20, 4, dtype=torch.float64)
    with pathlib.Path(f"{output}.steps").open("a", buffering=1) as steps:
        while session.committed_steps < last:
            for batch in session.batches(inputs, batch_size=BATCH):
                with session.step():
                    session.values["steps"] = session.values.get("steps", 0) + 1
                    loss = model(batch).square().mean() * session.weight
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    scheduler.step()
                steps.write(f"{time.monotonic()} {session.committed_steps} {session.world_size}\n")
                if session.committed_steps == last:
                    break
                if slow.exists():
                    time.sleep(0.1)
    assert session.values["steps"] == last
    weights = {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}
    moments = [whole(state["exp_avg_sq"]) for state in optimizer.state.values()]
    torch.save({"weights": weights, "moments": moments, "lr": scheduler.get_last_lr()}, f"{output}.pt")
    dist.destroy_process_group()


main()
