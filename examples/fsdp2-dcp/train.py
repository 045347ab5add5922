"""Trains a model that is sharded over the workers (FSDP2) in an ElasticSession, and resumes with another number of
workers.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

It is an ordinary script for FSDP2 except for the lines marked (session).
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession, report_progress
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset


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


def make_data(samples: int) -> TensorDataset:
    inputs = torch.randn(samples, 8)
    return TensorDataset(inputs, inputs @ torch.randn(8, 1))


def make_model(width: int, device: str) -> nn.Module:
    layers = [nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)]
    model = nn.Sequential(*layers).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    arguments = parse_arguments()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = "cuda" if cuda else "cpu"
    dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")
    torch.manual_seed(0)
    dataset = make_data(arguments.samples)
    model = make_model(arguments.width, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    session = ElasticSession(model=model, optimizer=optimizer)  # (session)
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)  # (session) each worker writes its shards
    if session.is_leader:
        print(f"begins after step={session.committed_steps} with {session.world_size} workers", flush=True)

    for epoch in range(session.epoch, arguments.epochs):
        for inputs, targets in session.batches(dataset, batch_size=arguments.batch_size, epoch=epoch):  # (session)
            with session.step():  # (session)
                loss = mse_loss(model(inputs.to(device)), targets.to(device))
                optimizer.zero_grad()
                (loss * session.weight).backward()  # (session) shares of a batch may differ by a sample
                optimizer.step()
                if session.is_leader:
                    report_progress(session.committed_steps + 1, loss=loss.item())

    if session.is_leader:
        print(f"finished step={session.committed_steps} with {session.world_size} workers", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
