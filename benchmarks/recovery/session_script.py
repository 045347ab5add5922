"""The script that continues in place: an `ElasticSession` around DistributedDataParallel over gloo.

It logs every step as `ledger` describes, into BENCH_FOLDER.
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

FOLDER = Path(os.environ["BENCH_FOLDER"])
STEP_SECONDS = 0.02
"""Minimum time of a step, in place of a real model's computation."""
STATE_MIB = int(os.environ.get("BENCH_STATE_MIB", "0"))
"""Size of the parameters that are not trained: state to send, without gradients."""
JOINED = 3
"""The world size in which the bytes of that state alone are sent, to compare."""
BATCH = 8


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((32,), float(index))


def network() -> nn.Module:
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    for number in range(STATE_MIB // 8):
        layers.register_parameter(f"frozen_{number}", nn.Parameter(torch.ones(2 * 2**20), requires_grad=False))
    return layers


def bare_transfer(joiner: int) -> None:
    """Sends the state's bytes to this rank from the other ranks, each its part, with nothing else to do."""
    rank, sources = dist.get_rank(), [other for other in range(dist.get_world_size()) if other != joiner]
    tensors = [torch.ones(2 * 2**20) for _ in range(STATE_MIB // 8)]
    mine = [(index, sources[index % len(sources)]) for index in range(len(tensors))]
    for attempt in range(5):
        dist.barrier()
        began = time.monotonic()
        if rank == joiner:
            works = [dist.irecv(tensors[index], source) for index, source in mine]
        else:
            works = [dist.isend(tensors[index], joiner) for index, source in mine if source == rank]
        for work in works:
            assert work is not None
            work.wait()
        if rank == joiner:
            with (FOLDER / "bare-transfer.log").open("a") as log:
                log.write(f"{attempt} {time.monotonic() - began:.6f}\n")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-9)
    session = ElasticSession(model=model, optimizer=optimizer)
    process = f"{os.environ['BENCH_MEMBER']}.{time.time():.3f}.{os.getpid()}"
    waits_for_commit, compared = "", False
    with (FOLDER / "steps" / f"{process}.log").open("a", buffering=1) as log:
        for batch in session.batches(Numbers(), batch_size=BATCH, shuffle=False):
            if waits_for_commit and session.committed_steps >= int(waits_for_commit.split(" ")[2]):
                log.write(waits_for_commit)  # on another process, which then counts for all
            step, until = session.committed_steps + 1, time.monotonic() + STEP_SECONDS
            generation, world = str(session.round), session.world_size
            log.write(f"t {step} {generation} {','.join(str(int(sample)) for sample in batch[:, 0])}\n")
            finished = False
            with session.step():
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if STATE_MIB and world == JOINED and step % 50 == 0 and not compared:
                    bare_transfer(world - 1)
                    compared = True
                optimizer.step()
                finished = True
            line = f"c {time.time():.6f} {step} {generation} {world}\n"
            waits_for_commit = "" if finished else line
            if finished:
                log.write(line)
            time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
