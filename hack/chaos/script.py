"""The training script of the chaos suite: a small DistributedDataParallel job that records everything it does.

Each worker process has its own file in CHAOS_LEDGER, with one JSON object per line (hack/chaos/ledger.py reads it):

    begin     member, process id, rank, world, round: of this process
    group     the group's token, which rank 0 draws and sends to all: two groups never have the same, whatever their
              round numbers
    load      rank 0 is about to read the newest checkpoint
    restore   it read one (step, digest), or none (step 0)
    work      this rank is about to train on these samples
    done      rank 0: the step is complete on all ranks
    saving    rank 0 is about to commit a checkpoint (step, digest)
    saved     it is committed
    refused   it was not: the error
    end       all steps are done

Times are CLOCK_MONOTONIC: the same clock for all containers of one machine, unaffected by changes of the time of day.

CHAOS_ORDERS is a folder in which the suite leaves files: `<member>` with one word (exit, hog, fill), and `finish` with
the last step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import CheckpointError, load_checkpoint, report_progress, save_checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES = int(os.environ.get("CHAOS_SAMPLES", "480"))
BATCH = 16
FEATURES = 32
STEP_SECONDS = float(os.environ.get("CHAOS_STEP_SECONDS", "0.1"))
CHECKPOINT_EVERY = int(os.environ.get("CHAOS_CHECKPOINT_EVERY", "5"))
MEMBER = os.environ.get("ELASTICJOB_MEMBER_ID", "member")
CHECKPOINTS = Path(os.environ["CHAOS_CHECKPOINTS"])
LEDGER = Path(os.environ["CHAOS_LEDGER"])
ORDERS = Path(os.environ["CHAOS_ORDERS"])


class Ledger:
    """Appends complete lines, with one write each, so that in a killed process at most the last one is incomplete."""

    def __init__(self) -> None:
        LEDGER.mkdir(parents=True, exist_ok=True)
        path = LEDGER / f"{MEMBER}.{time.monotonic_ns()}.{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n").encode())


class Training:
    """What a checkpoint contains."""

    def __init__(self, rank: int, world: int) -> None:
        torch.manual_seed(0)
        self.features = torch.randn(SAMPLES, FEATURES)
        self.targets = self.features @ torch.randn(FEATURES, 1)
        self.model = nn.Linear(FEATURES, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.sampler = ElasticDistributedSampler(self.targets, world, rank, seed=0)
        self.world = world
        self.step = 0

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "step": self.step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        self.step = state["step"]

    def digest(self) -> str:
        """A digest of everything that training depends on."""
        found = hashlib.sha256(json.dumps([self.step, self.sampler.state_dict()], sort_keys=True, default=str).encode())
        for tensor in (*self.model.parameters(), *(each["momentum_buffer"] for each in self.optimizer.state.values())):
            found.update(tensor.detach().numpy().tobytes())
        return found.hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    ledger = Ledger()
    ledger.write(
        "begin",
        member=MEMBER,
        process=os.getpid(),
        rank=rank,
        world=world,
        round=int(os.environ.get("ELASTICJOB_ROUND", "0")),
        run=os.environ.get("TORCHELASTIC_RUN_ID", ""),
        fence=os.environ.get("ELASTICJOB_FENCE", ""),
    )
    if world > 1:
        dist.init_process_group("gloo")
    training = Training(rank, world)
    start(training, ledger, rank)
    train(training, ledger, rank)
    ledger.write("end", step=training.step)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def start(training: Training, ledger: Ledger, rank: int) -> None:
    """All ranks resume from what rank 0 reads, under the token that it draws."""
    told: list[Any] = [None, None]
    if rank == 0:
        ledger.write("load")
        told = [uuid.uuid4().hex[:12], load_checkpoint(CHECKPOINTS)]
    if training.world > 1:
        dist.broadcast_object_list(told)
    token, state = told
    ledger.write("group", token=token)
    if state is not None:
        training.restore(state)
    if rank == 0:
        ledger.write("restore", step=training.step, digest=training.digest())
        print(f"{'started' if state is None else 'resumed'} step={training.step} world={training.world}", flush=True)


def train(training: Training, ledger: Ledger, rank: int) -> None:
    model = DistributedDataParallel(training.model) if training.world > 1 else training.model
    last = last_step()
    while last is None or training.step < last:
        for samples in training.sampler.batches(BATCH):
            began = time.monotonic()
            obey(ledger)
            ledger.write("work", step=training.step + 1, epoch=training.sampler.epoch, samples=samples)
            train_step(training, model, samples)
            if rank == 0:
                ledger.write("done", step=training.step)
                save(training, ledger)
                report_progress(training.step)
                if training.step % 10 == 0:
                    print(f"step={training.step} world={training.world}", flush=True)
            last = last_step()
            if last is not None and training.step >= last:
                return
            time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))
        training.sampler.set_epoch(training.sampler.epoch + 1)


def train_step(training: Training, model: nn.Module, samples: list[int]) -> None:
    count = min(BATCH, SAMPLES - training.sampler.consumed)
    error = ((model(training.features[samples]) - training.targets[samples]) ** 2).sum() / count
    training.optimizer.zero_grad()
    (error * training.world).backward()
    training.optimizer.step()
    training.sampler.advance(count)
    training.step += 1


def save(training: Training, ledger: Ledger) -> None:
    if training.step % CHECKPOINT_EVERY:
        return
    ledger.write("saving", step=training.step, digest=training.digest())
    try:
        save_checkpoint(CHECKPOINTS, training.state())
    except CheckpointError as error:
        ledger.write("refused", step=training.step, error=str(error))
        raise
    ledger.write("saved", step=training.step)


def last_step() -> int | None:
    """The step after which all ranks end; None: not set yet. It is far enough ahead that every rank reads it in
    time."""
    with contextlib.suppress(OSError, ValueError):
        return int((ORDERS / "finish").read_text())
    return None


def obey(ledger: Ledger) -> None:
    """Carries out the suite's order to this member, once."""
    order = ORDERS / MEMBER
    if not order.exists():
        return
    word = order.read_text().strip()
    with contextlib.suppress(OSError):
        order.unlink()
    ledger.write("order", word=word)
    if word == "exit":
        sys.exit(7)
    elif word == "hog":
        kept = []
        while True:
            kept.append(bytearray(b"x" * 16_000_000))
    elif word == "fill":
        with contextlib.suppress(OSError), open(CHECKPOINTS.parent / "filler", "wb") as filler:
            while True:
                filler.write(b"x" * 65536)
                filler.flush()


if __name__ == "__main__":
    main()
