"""Trains on nodes that may be taken back at any time: saves when the node is reclaimed, and continues elsewhere.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

The lines marked (1) to (3) are what a script needs to lose no step to a reclaimed node.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import load_checkpoint, report_progress, save_checkpoint
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"), help="folder"
    )
    return parser.parse_args()


def join() -> torch.device:
    """Joins the process group, and returns this worker's device."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    return device


def make_data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(samples, 8)
    return inputs, inputs @ torch.randn(8, 1)


def save(directory: str, step: int, **parts: Any) -> None:
    save_checkpoint(directory, {"step": step, **{name: part.state_dict() for name, part in parts.items()}})


def resume(directory: str, rank: int, **parts: Any) -> int:
    """(2) Every worker continues from the same checkpoint, at any number of workers. Returns its step, or 0."""
    found = [load_checkpoint(directory) if rank == 0 else None]
    dist.broadcast_object_list(found)
    state = found[0] or {"step": 0}
    for name, part in parts.items():
        if name in state:
            part.load_state_dict(state[name])
    return int(state["step"])


def main() -> None:
    arguments = parse_arguments()
    reclaimed = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: reclaimed.set())  # (1) finish the step first
    device = join()
    rank, world = dist.get_rank(), dist.get_world_size()

    inputs, targets = make_data(arguments.samples)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = ElasticDistributedSampler(inputs)
    step = resume(arguments.checkpoint_dir, rank, model=model, optimizer=optimizer, sampler=sampler)
    if rank == 0:
        print(f"begins after step={step} with {world} workers", flush=True)

    parallel = DistributedDataParallel(model)
    any_reclaimed = torch.zeros(1, device=device)
    for epoch in range(sampler.epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(arguments.batch_size):
            any_reclaimed.fill_(reclaimed.is_set())
            dist.all_reduce(any_reclaimed)
            if any_reclaimed.item():  # (3) all workers leave after the same step, and rank 0 saves it
                if rank == 0:
                    save(arguments.checkpoint_dir, step, model=model, optimizer=optimizer, sampler=sampler)
                sys.exit(128 + signal.SIGTERM)  # not 0, which would mean that training is done
            samples = min(arguments.batch_size, arguments.samples - sampler.consumed)
            loss = mse_loss(parallel(inputs[indices].to(device)), targets[indices].to(device), reduction="sum")
            optimizer.zero_grad()
            (loss * world / samples).backward()  # DDP averages over the workers: this makes it the batch's mean
            optimizer.step()
            sampler.advance(samples)
            step += 1
            if rank == 0:
                report_progress(step, loss=loss.item() / max(1, len(indices)))
                if step % arguments.save_every == 0:
                    save(arguments.checkpoint_dir, step, model=model, optimizer=optimizer, sampler=sampler)
    if rank == 0:
        print(f"finished step={step} with {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
