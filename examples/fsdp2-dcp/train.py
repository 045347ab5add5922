"""Trains a model that is sharded over the workers (FSDP2), saves it sharded (DCP), and resumes with another number of
workers.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

The lines marked (1) to (4) are what a script with sharded checkpoints needs to be elastic.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import report_progress
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--width", type=int, default=256, help="width of the model")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"),
        help="folder that all workers share",
    )
    return parser.parse_args()


class Training(dcp.stateful.Stateful):
    """What a checkpoint contains."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step = 0
        self.epoch = 0
        self.consumed = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        position = torch.tensor([self.step, self.epoch, self.consumed])
        return {"model": model, "optimizer": optimizer, "position": position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step, self.epoch, self.consumed = (int(number) for number in state["position"])


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint: DCP writes .metadata last, so one without it was cut off."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def save(training: Training, folder: Path, rank: int) -> None:
    """(1) Every worker writes its shards."""
    path = folder / f"step-{training.step}"
    if rank == 0 and path.exists():  # an earlier round was cut off while it wrote this one
        shutil.rmtree(path)
    dist.barrier()
    dcp.save({"training": training}, checkpoint_id=path)
    if rank == 0:
        for old in sorted(folder.glob("step-*"), key=lambda path: int(path.name.rpartition("-")[2]))[:-2]:
            shutil.rmtree(old)


def resume(training: Training, folder: Path, rank: int) -> None:
    """(2) Every worker reads what its own shards need, however many workers wrote the checkpoint."""
    found = [newest(folder) if rank == 0 else None]
    dist.broadcast_object_list(found)  # all workers read the same one
    if found[0] is not None:
        dcp.load({"training": training}, checkpoint_id=found[0])


def main() -> None:
    arguments = parse_arguments()
    folder = Path(arguments.checkpoint_dir)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = "cuda" if cuda else "cpu"
    dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    inputs = torch.randn(arguments.samples, 8)
    targets = inputs @ torch.randn(8, 1)
    width = arguments.width
    layers = [torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
    mesh = init_device_mesh(device, (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    resume(training, folder, rank)
    if rank == 0:
        print(f"begins after step={training.step} with {world} workers", flush=True)

    sampler = ElasticDistributedSampler(inputs)  # (3) distributes the rest of an epoch over the current workers
    sampler.set_epoch(training.epoch)
    sampler.advance(training.consumed)
    for epoch in range(training.epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        for indices in sampler.batches(arguments.batch_size):
            samples = min(arguments.batch_size, arguments.samples - sampler.consumed)
            loss = mse_loss(model(inputs[indices].to(device)), targets[indices].to(device), reduction="sum")
            (loss * world / samples).backward()  # FSDP averages over the workers: this makes it the batch's mean
            training.optimizer.step()
            training.optimizer.zero_grad()
            sampler.advance(samples)
            training.step, training.epoch, training.consumed = training.step + 1, epoch, sampler.consumed
            if rank == 0:
                report_progress(training.step, loss=loss.item() / max(1, len(indices)))
            if training.step % arguments.save_every == 0:  # (4) what is lost after a crash
                save(training, folder, rank)
    if rank == 0:
        print(f"finished step={training.step} with {world} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
