"""The script that torchrun and elasticrun run: DistributedDataParallel over gloo and a checkpoint every 25 steps.

An ordinary script: it does not know which launcher runs it. It logs every step as `ledger` describes, into
BENCH_FOLDER.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["BENCH_FOLDER"])
STEP_SECONDS = 0.02
"""Minimum time of a step, in place of a real model's computation."""
CHECKPOINT, CHECKPOINT_EVERY = FOLDER / "checkpoint.pt", 25
BATCH = 8


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    start = [(secrets.token_hex(4), torch.load(CHECKPOINT) if rank == 0 and CHECKPOINT.exists() else None)]
    dist.broadcast_object_list(start)
    (generation, saved), step, taken = start[0], 0, 0
    if saved is not None:
        network.load_state_dict(saved["network"])
        step, taken = saved["step"], saved["taken"]
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-9)
    # With the time, since the pid may be used again.
    process = f"{os.environ['BENCH_MEMBER']}.{time.time():.3f}.{os.getpid()}"
    with (FOLDER / "steps" / f"{process}.log").open("a", buffering=1) as log:
        while True:
            until = time.monotonic() + STEP_SECONDS
            samples = range(taken + rank, taken + BATCH, world)
            log.write(f"t {step + 1} {generation} {','.join(map(str, samples))}\n")
            batch = torch.tensor([[float(sample)] * 32 for sample in samples])
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step, taken = step + 1, taken + BATCH
            log.write(f"c {time.time():.6f} {step} {generation} {world}\n")
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                aside = CHECKPOINT.with_suffix(f".{os.getpid()}")
                torch.save({"network": network.state_dict(), "step": step, "taken": taken}, aside)
                aside.rename(CHECKPOINT)
            time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
