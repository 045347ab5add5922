"""An ordinary script for torchrun: it knows nothing of ElasticJob, and imports nothing of it.

torchrun --standalone --nproc-per-node 2 train.py
kubectl apply -k .
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = 0
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    if rank == 0:
        print(f"begins after step={first} with {world} workers", flush=True)

    parallel = DistributedDataParallel(model)
    for step in range(first + 1, arguments.steps + 1):
        inputs = torch.randn(32, 8, device=device)
        loss = mse_loss(parallel(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % arguments.save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            partial = arguments.checkpoint.with_suffix(".partial")
            torch.save(state, partial)
            partial.rename(arguments.checkpoint)  # in one step: a crash leaves the old checkpoint or the new one
    if rank == 0:
        print(f"finished step={arguments.steps} with {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
