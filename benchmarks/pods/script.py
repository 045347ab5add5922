"""The script of the job: DistributedDataParallel over gloo, a checkpoint per step, and a line with the
time of every step of every rank.

An ordinary script: it does not know which launcher runs it. Checkpoint and lines go to BENCH_FOLDER.
"""

from __future__ import annotations

import time

BEGAN = time.time()

import json  # noqa: E402 - the time for imports is the script's share, not the launcher's
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

FOLDER = Path(os.environ["BENCH_FOLDER"])
STEP_SECONDS = float(os.environ.get("BENCH_STEP_SECONDS", "0.05"))
"""Minimum time of a step, in place of a real model's computation."""
CHECKPOINT = FOLDER / "checkpoint.pt"


def save(state: dict[str, Any]) -> None:
    aside = CHECKPOINT.with_suffix(f".{os.getpid()}")
    torch.save(state, aside)
    aside.rename(CHECKPOINT)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    found = [torch.load(CHECKPOINT) if rank == 0 and CHECKPOINT.exists() else None]
    dist.broadcast_object_list(found)
    step = 0
    if found[0] is not None:
        network.load_state_dict(found[0]["network"])
        step = found[0]["step"]
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    (FOLDER / "steps").mkdir(parents=True, exist_ok=True)
    head = {
        "member": os.environ["BENCH_MEMBER"],
        "pid": os.getpid(),
        "rank": rank,
        "world": world,
        "began": BEGAN,
        "resumed": step,
    }
    # With the time, since a replaced pod has the same name and perhaps the same pids.
    with (FOLDER / "steps" / f"{head['member']}.{BEGAN:.6f}.{os.getpid()}.log").open("a", buffering=1) as log:
        log.write(json.dumps(head) + "\n")
        while True:
            until = time.monotonic() + STEP_SECONDS
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            log.write(f"{time.time():.6f} {step}\n")
            if rank == 0:
                save({"network": network.state_dict(), "step": step})
            time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
