"""Trains a network with tensor parallelism in an ElasticSession: when a replica is lost or joins, the others continue
where they are.

    torchrun --nproc-per-node 2 train.py                    # one replica of two; elasticrun takes the same flags
    torchrun --nproc-per-node 4 train.py --tensor 2         # 2-D: FSDP2 over two groups of two
    kubectl apply -k .                                      # a cluster: each worker pod is a replica of two processes

It is an ordinary script for tensor parallelism except for the lines marked (session).
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss, silu
from torch.utils.data import TensorDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensor", type=int, default=0, help="ranks that share each layer (default: all of a replica)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--width", type=int, default=64, help="width of the model")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="simulates the compute of a larger model")
    parser.add_argument("--print-every", type=int, default=10, help="steps")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))
    return parser.parse_args()


def make_data(samples: int) -> TensorDataset:
    """Points, and a smooth function of them that the network learns."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = hidden + self.down(silu(self.up(self.norm(hidden))))
        return result


def announce(session: ElasticSession) -> None:
    """Every process prints this in each new world. Those that remain keep their process ID."""
    print(
        f"pid={os.getpid()} replica={session.replica} rank={session.rank} trains with {session.replicas} replicas "
        f"after step={session.committed_steps}",
        flush=True,
    )


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("gloo")  # of this replica
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the worker processes are the parallelism
    ranks = dist.get_world_size()
    tensor = arguments.tensor or ranks
    mesh = init_device_mesh("cpu", (ranks // tensor, tensor), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(8, arguments.width), *(Block(arguments.width) for _ in range(4)))
    model.append(nn.Linear(arguments.width, 1))
    for block in model[1:-1]:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if ranks > tensor:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # plain and distributed parameters
    dataset = make_data(arguments.samples)

    # (session) The ranks along "data" take different samples, those along "tensor" the same ones.
    session = ElasticSession(model=model, optimizer=optimizer, data_parallel=mesh["data"])
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)  # (session) for when all workers are lost
    session.on_change(announce)  # (session)
    announce(session)

    for epoch in range(session.epoch, arguments.epochs):
        for inputs, targets in session.batches(dataset, batch_size=arguments.batch_size, epoch=epoch):  # (session)
            with session.step():  # (session)
                time.sleep(arguments.step_seconds)
                loss = mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                (loss * session.weight).backward()  # (session) shares of a batch may differ by a sample
                session.reduce_gradients()  # (session) over the replicas; nothing without them
                optimizer.step()
                # Within the step: what follows it also runs after a step that was interrupted.
                step = session.committed_steps + 1
                if session.is_leader and step % arguments.print_every == 0:
                    print(f"step={step} epoch={epoch} loss={loss.item():.4f}", flush=True)

    if session.is_leader:
        print(f"finished step={session.committed_steps} with {session.replicas} replicas", flush=True)
    dist.barrier()  # the others of this replica may still need this process
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
