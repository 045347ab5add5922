"""Trains a small network in an ElasticSession: when a worker is lost or joins, the others continue where they are.

    python train.py                                         # one process
    torchrun --nproc-per-node 2 train.py                    # two; elasticrun takes the same flags
    kubectl apply -k .                                      # a cluster

It is an ordinary script for DistributedDataParallel except for the lines marked (session).
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="simulates the compute of a larger model")
    parser.add_argument("--print-every", type=int, default=10, help="steps")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))
    return parser.parse_args()


def make_data(samples: int) -> TensorDataset:
    """Points, and a smooth function of them that the network learns."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def announce(session: ElasticSession) -> None:
    """Every process prints this in each new world. Those that remain keep their process ID."""
    print(
        f"pid={os.getpid()} rank={session.rank} trains with {session.world_size} workers "
        f"after step={session.committed_steps}",
        flush=True,
    )


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the worker processes are the parallelism
    model: nn.Module = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    if "RANK" in os.environ:  # started by elasticrun or torchrun
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = make_data(arguments.samples)

    session = ElasticSession(model=model, optimizer=optimizer)  # (session)
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)  # (session) for when all workers are lost
    session.on_change(announce)  # (session)
    announce(session)

    for epoch in range(session.epoch, arguments.epochs):
        for inputs, targets in session.batches(dataset, batch_size=arguments.batch_size, epoch=epoch):  # (session)
            with session.step():  # (session)
                time.sleep(arguments.step_seconds)
                loss = mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                # Within the step: what follows it also runs after a step that was interrupted.
                step = session.committed_steps + 1
                if session.is_leader and step % arguments.print_every == 0:
                    print(f"step={step} epoch={epoch} loss={loss.item():.4f}", flush=True)

    if session.is_leader:
        print(f"finished step={session.committed_steps} with {session.world_size} workers", flush=True)


if __name__ == "__main__":
    main()
