"""A worker process that only steps: one all-reduce per step, until the file `stop` exists.

Files in $FOLDER control it and record what it did:

steps/<member>    appended: "<step> <rank> <world size> <pid>"
step              the last step of rank 0: its checkpoint
fences            appended by rank 0: the fencing token of its round
crash-<member>    that member's worker process exits with 3 (once)
fail-<member>     that member's worker process raises (every time)
stop              all exit with 0
"""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from light_train import end_of_step, folder, member, saved  # type: ignore[import-not-found]  # next to this script


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        with (folder / "fences").open("a") as fences:
            fences.write(os.environ["ELASTICJOB_FENCE"] + "\n")
    start = torch.tensor([int(saved.read_text()) if rank == 0 and saved.exists() else 0])
    dist.broadcast(start, 0)
    step = int(start)
    with (folder / "steps" / member).open("a", buffering=1) as log:
        while True:
            sums = torch.tensor([1, int(rank == 0 and (folder / "stop").exists())])
            dist.all_reduce(sums)
            if int(sums[0]) != world:
                raise RuntimeError(f"{int(sums[0])} workers stepped in a world of {world}")
            if int(sums[1]):
                break
            step += 1
            end_of_step(step, log)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
