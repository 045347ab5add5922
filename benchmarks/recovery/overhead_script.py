"""A script that takes the same step with a session and without one, in turn, and logs the time of each.

Each model has 1 million parameters. The step of 50 ms is 50 ms of sleep, in place of computation, and what
DistributedDataParallel takes for them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["LEDGER"]).parent
BLOCKS = 12
BLOCK = 25
"""Steps, of which the first is not counted."""
STEP_SECONDS = 0.05


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 1000), nn.ReLU(), nn.Linear(1000, 950), nn.ReLU(), nn.Linear(950, 1))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    data = torch.utils.data.TensorDataset(torch.randn(100_000, 32))
    in_session = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(in_session.parameters(), lr=1e-9)
    session = ElasticSession(model=in_session, optimizer=optimizer)
    batches = session.batches(data, batch_size=32)

    def with_session() -> None:
        (batch,) = next(batches)
        with session.step():
            time.sleep(STEP_SECONDS)
            in_session(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with_session()  # the session's group exists from now on
    bare = DistributedDataParallel(network())
    bare_optimizer = torch.optim.SGD(bare.parameters(), lr=1e-9)
    sampler: torch.utils.data.DistributedSampler[torch.Tensor] = torch.utils.data.DistributedSampler(data)
    loader = iter(torch.utils.data.DataLoader(data, batch_size=32 // dist.get_world_size(), sampler=sampler))

    def without() -> None:
        (batch,) = next(loader)
        time.sleep(STEP_SECONDS)
        bare(batch).square().mean().backward()
        bare_optimizer.step()
        bare_optimizer.zero_grad()

    with (FOLDER / f"overhead-{dist.get_rank()}.log").open("w", buffering=1) as log:
        for block in range(BLOCKS):
            step, name = ((with_session, "session"), (without, "bare"))[block % 2]
            for number in range(BLOCK):
                began = time.monotonic()
                step()
                if number:
                    log.write(f"{name} {time.monotonic() - began:.6f}\n")
        log.write("end 0\n")
    time.sleep(3600)


if __name__ == "__main__":
    main()
