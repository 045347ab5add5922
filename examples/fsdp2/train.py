"""Trains a small transformer that is sharded with FSDP2 in an ElasticSession: when a replica is lost or joins, the
others continue where they are.

    torchrun --nproc-per-node 2 train.py                    # one replica of two; elasticrun takes the same flags
    kubectl apply -k .                                      # a cluster: replicas of two worker pods

It is an ordinary script for FSDP2 except for the lines marked (session).
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

TOKENS, LENGTH = 64, 33


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--width", type=int, default=64, help="width of the model")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.05, help="simulates the compute of a larger model")
    parser.add_argument("--print-every", type=int, default=10, help="steps")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))
    return parser.parse_args()


def make_data(samples: int) -> TensorDataset:
    """Sequences of tokens at a constant distance, which the model learns to continue."""
    generator = torch.Generator().manual_seed(1)
    first, distance = torch.randint(TOKENS, (2, samples, 1), generator=generator)
    return TensorDataset((first + distance * torch.arange(LENGTH)) % TOKENS)


class Transformer(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.output = nn.Linear(width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        result: torch.Tensor = self.output(hidden)
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
    cuda = torch.cuda.is_available() and "ELASTICJOB_REPLICA" not in os.environ  # replicas train on CPUs so far
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = "cuda" if cuda else "cpu"
    dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")  # of this replica
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the worker processes are the parallelism
    model = Transformer(arguments.width, arguments.blocks).to(device)
    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = make_data(arguments.samples)

    session = ElasticSession(model=model, optimizer=optimizer)  # (session)
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)  # (session) for when all workers are lost
    session.on_change(announce)  # (session)
    announce(session)

    for epoch in range(session.epoch, arguments.epochs):
        for (tokens,) in session.batches(dataset, batch_size=arguments.batch_size, epoch=epoch):  # (session)
            with session.step():  # (session)
                time.sleep(arguments.step_seconds)
                sequences = tokens.to(device)
                logits = model(sequences[:, :-1])
                loss = cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
                optimizer.zero_grad()
                (loss * session.weight).backward()  # (session) shares of a batch may differ by a sample
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
