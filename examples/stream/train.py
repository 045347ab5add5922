"""Trains from tar shards, in the layout of WebDataset, in an ElasticSession: no sample is lost or repeated when workers
are lost or join, although nothing knows how many samples there are.

    python train.py                                         # one process
    torchrun --nproc-per-node 2 train.py                    # two; elasticrun takes the same flags
    kubectl apply -k .                                      # a cluster

It makes its own shards. Replace `open_stream` with what reads yours.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STREAMS = 12  # a multiple of all numbers of workers: 1, 2, 3, 4, 6


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=Path, default=Path(tempfile.gettempdir()) / "shards", help="folder of .tar")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48, help="samples per step, of all workers together")
    parser.add_argument("--loaders", type=int, default=0, help="processes that read, per worker")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="simulates the compute of a larger model")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--ledger", type=Path, help="folder for a record of which samples each worker has trained on")
    parser.add_argument("--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))
    return parser.parse_args()


def make_shards(folder: Path, shards: int = 24, samples: int = 40) -> None:
    """Each sample is a file of JSON. Every worker pod makes the same ones."""
    if folder.exists():
        return
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    for shard in range(shards):
        with tarfile.open(new / f"{shard:05}.tar", "w") as archive:
            for number in range(shard * samples, (shard + 1) * samples):
                inputs = torch.randn(8, generator=torch.Generator().manual_seed(number)).tolist()
                data = json.dumps({"number": number, "inputs": inputs, "target": sum(inputs)}).encode()
                entry = tarfile.TarInfo(f"{number:08}.json")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    try:
        new.rename(folder)
    except OSError:  # another process was faster
        assert folder.exists()


def record(folder: Path, session: ElasticSession, epoch: int, numbers: torch.Tensor) -> None:
    """Before the step, so that no committed one is missing. One that is interrupted comes again in a later round."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"round": session.round, "step": session.committed_steps + 1, "epoch": epoch, "samples": numbers.tolist()}
    with (folder / f"{socket.gethostname()}-{os.getpid()}.jsonl").open("a") as ledger:
        print(json.dumps(entry), file=ledger)


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the worker processes are the parallelism
    make_shards(arguments.shards)
    shards = sorted(arguments.shards.glob("*.tar"))
    model: nn.Module = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    if "RANK" in os.environ:  # started by elasticrun or torchrun
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = ElasticSession(model=model, optimizer=optimizer)
    session.checkpoint(arguments.checkpoint_dir, every=arguments.save_every)
    print(f"begins after step={session.committed_steps} with {session.world_size} workers", flush=True)

    def open_stream(stream: int, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
        """The same samples in the same order for the same arguments; shuffled by shard."""
        own = shards[stream::STREAMS]
        for index in torch.randperm(len(own), generator=torch.Generator().manual_seed(epoch)):
            with tarfile.open(own[index]) as archive:
                for entry in archive:
                    content = archive.extractfile(entry)
                    assert content is not None
                    yield {name: torch.tensor(value) for name, value in json.load(content).items()}

    for epoch in range(session.epoch, arguments.epochs):
        for batch in session.stream(
            open_stream,
            streams=STREAMS,
            batch_size=arguments.batch_size,
            epoch=epoch,
            num_workers=arguments.loaders,
        ):
            with session.step():
                if arguments.ledger:
                    record(arguments.ledger, session, epoch, batch["number"])
                time.sleep(arguments.step_seconds)
                loss = mse_loss(model(batch["inputs"]).squeeze(1), batch["target"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step = session.committed_steps + 1
                if session.is_leader and step % 10 == 0:
                    print(f"step={step} epoch={epoch} loss={loss.item():.4f}", flush=True)

    print(f"finished step={session.committed_steps} with {session.world_size} workers", flush=True)


if __name__ == "__main__":
    main()
