"""Trains with a session until the epoch that the file BENCH_FOLDER/epochs names, and logs every step as
`benchmarks.recovery.ledger` describes. All sums of gradients are exact in worlds of one to four processes, so that the
weights at the end are the same, bit by bit, in whatever worlds the training took place.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["BENCH_FOLDER"])
STEP_SECONDS = float(os.environ.get("BENCH_STEP_SECONDS", "0.05"))
"""Minimum time of a step, in place of a real model's computation."""
SAMPLES, BATCH, WIDTH = 1000, 16, 8
"""The last batch of an epoch has 8 samples."""


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *((index * k) % 13 for k in range(1, WIDTH + 1))])


class Model(torch.nn.Module):
    """`seen` counts how often each sample was trained on. `weights` has gradients that depend on the weights and the
    samples, but are whole numbers. `passes` is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.weights = torch.nn.ParameterList(torch.zeros(WIDTH, dtype=torch.float64) for _ in range(4))
        self.passes: torch.Tensor
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        self.passes += 1
        loss = self.seen[batch[:, 0]].sum() / len(batch)
        for weights in self.weights:
            gradients = torch.remainder(torch.floor(weights * 64).detach() * 3 + batch[:, 1:], 17) - 8
            loss = loss + (weights * (gradients.sum(0) / len(batch))).sum()
        return loss


def epochs() -> float:
    try:
        return int((FOLDER / "epochs").read_text())
    except FileNotFoundError:
        return float("inf")


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model = Model()
    trained = DistributedDataParallel(model, bucket_cap_mb=0.001) if dist.is_initialized() else model
    counter = torch.optim.SGD([model.seen], lr=BATCH)
    adam = torch.optim.AdamW(model.weights.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, 500, gamma=0.99)
    session = ElasticSession(model=trained, optimizer=adam, scheduler=scheduler, counter=counter)
    session.checkpoint(FOLDER / "checkpoints", every=10**9)  # only when all members leave
    process = f"{os.environ.get('BENCH_MEMBER', 'undisturbed')}.{time.time():.3f}.{os.getpid()}"
    waits_for_commit = ""
    with (FOLDER / "steps" / f"{process}.log").open("a", buffering=1) as log:
        for epoch in itertools.count(session.epoch):
            if epoch >= epochs():
                break
            for batch in session.batches(Samples(), batch_size=BATCH, epoch=epoch):
                if waits_for_commit and session.committed_steps >= int(waits_for_commit.split(" ")[2]):
                    log.write(waits_for_commit)  # another process committed it, and this one has its state
                step, until = session.committed_steps + 1, time.monotonic() + STEP_SECONDS
                world = f"{session.round} {session.world_size}"
                log.write(f"t {step} {session.round} {','.join(str(int(sample)) for sample in batch[:, 0])}\n")
                committed = False
                with session.step():
                    counter.zero_grad()
                    adam.zero_grad()
                    trained(batch).backward()
                    counter.step()
                    adam.step()
                    scheduler.step()
                    committed = True
                line = f"c {time.time():.6f} {step} {world}\n"
                waits_for_commit = "" if committed else line
                if committed:
                    log.write(line)
                time.sleep(max(0.0, until - time.monotonic()))
    parts: dict[str, Any] = {"model": model, "adam": adam, "scheduler": scheduler, "counter": counter}
    path = FOLDER / "states" / f"{process}.pt"
    torch.save({name: part.state_dict() for name, part in parts.items()}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main()
