"""The script of all faults, whose state is large: in a world of three, it also sends the bytes of that state alone, to
compare, and logs the time next to the ledger."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession

from hack.chaos import script

PARTS, PART = int(os.environ["BALLAST"]) // int(os.environ["BALLAST_PART"]), int(os.environ["BALLAST_PART"]) * 2**17
JOINED = 3
LOG = Path(os.environ["LEDGER"], "..", "bare-transfer.log")


def compare(session: ElasticSession) -> None:
    if session.world_size == JOINED and session.committed_steps % 50 == 0 and not LOG.exists():
        bare_transfer(JOINED - 1)


def bare_transfer(joiner: int) -> None:
    """Sends the state's bytes to this rank from the other ranks, each its part, with nothing else to do."""
    rank, sources = dist.get_rank(), [other for other in range(dist.get_world_size()) if other != joiner]
    tensors = [torch.ones(PART, dtype=torch.float64) for _ in range(PARTS)]
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
            with LOG.open("a") as log:
                log.write(f"{attempt} {time.monotonic() - began:.6f}\n")


if __name__ == "__main__":
    script.main(compare)
