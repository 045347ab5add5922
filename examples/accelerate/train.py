"""Trains with Hugging Face Accelerate: when a worker is lost or joins, the others continue where they are.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

The lines marked (1) to (4) are what an Accelerate script needs to continue in place.
"""

from __future__ import annotations

import argparse
import os

import torch
from accelerate.utils import InitProcessGroupKwargs
from elasticjob_runtime.training import report_progress
from elasticjob_runtime.training.integrations.accelerate import ElasticAccelerator
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset


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


def main() -> None:
    arguments = parse_arguments()
    cuda = torch.cuda.is_available()
    backend = InitProcessGroupKwargs(backend="nccl" if cuda else "gloo")  # or Accelerate may choose MPI on CPUs
    accelerator = ElasticAccelerator(cpu=not cuda, kwargs_handlers=[backend])  # (1) instead of Accelerator
    torch.manual_seed(0)
    inputs = torch.randn(arguments.samples, 8)
    dataset = TensorDataset(inputs, inputs @ torch.randn(8, 1))
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=1e-3))

    session = accelerator.session(model=model, optimizer=optimizer)  # (2) what a joining worker receives
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)  # for when all workers are lost at once
    if session.is_leader:  # accelerator.print would print once for each worker pod
        print(f"begins after step={session.committed_steps} with {session.world_size} workers", flush=True)

    for epoch in range(session.epoch, arguments.epochs):
        for rows, targets in session.batches(dataset, batch_size=arguments.batch_size, epoch=epoch):  # (3)
            with session.step():  # (4) taken again if a worker is lost in the middle of it
                loss = mse_loss(model(rows), targets)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                if session.is_leader:
                    report_progress(session.committed_steps + 1, loss=loss.item())
    if session.is_leader:
        print(f"finished step={session.committed_steps} with {session.world_size} workers", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
