"""Trains a small convolutional network to read handwritten digits, with any number of workers, which may change while
it runs.

    python train.py                                         # one process
    torchrun --nproc-per-node 2 train.py                    # two; elasticrun takes the same flags
    kubectl apply -f elasticjob.yaml                        # a cluster

The data are scikit-learn's digits: 1797 real images of 8 x 8 pixels, every fifth of them held out as the test set. It
is an ordinary script for DistributedDataParallel except for four things, each marked with its number below:

1. It resumes from the newest checkpoint, which any number of workers may have written.
2. The sampler distributes the rest of the epoch over the current workers: no image is lost or repeated.
3. The batch size is that of all workers together, so that the loss does not depend on their number.
4. On SIGTERM it saves once more and exits.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import load_checkpoint, report_progress, save_checkpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM: 0 would mean that training is done."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600, help="steps to train")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.1,
        help="minimum time of a step: simulates the compute of a real model",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, of all workers together")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="learning rate of SGD with momentum 0.9")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the order of the images")
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"),
        help="folder for checkpoints, read at the start and written during training",
    )
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--print-every", type=int, default=10, help="steps between lines of output")
    parser.add_argument("--test-every", type=int, default=100, help="steps between tests")
    return parser.parse_args()


@dataclasses.dataclass
class Data:
    images: torch.Tensor
    """float32, n x 1 x 8 x 8, from 0 to 1."""
    labels: torch.Tensor
    """int64, n."""


def find_digits() -> Path:
    """scikit-learn's file of digits, found without importing scikit-learn, which takes seconds."""
    package = importlib.util.find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or ["sklearn"]
    path = Path(os.environ.get("DIGITS_CSV") or Path(folders[0], "datasets", "data", "digits.csv.gz"))
    if not path.is_file():
        sys.exit(f"No images at {path}: install scikit-learn, or set DIGITS_CSV to the path of its digits.csv.gz.")
    return path


def read_digits() -> tuple[Data, Data]:
    """Training set and test set."""
    path = find_digits()
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        rows = torch.tensor([[float(number) for number in line.split(",")] for line in file])
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    held_out = torch.arange(len(rows)) % 5 == 0
    return Data(images[~held_out], labels[~held_out]), Data(images[held_out], labels[held_out])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class Training:
    """Everything that a checkpoint contains, and one training step."""

    def __init__(self, arguments: argparse.Namespace, data: Data, rank: int, world: int) -> None:
        torch.manual_seed(arguments.seed)
        self.data = data
        self.world = world
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=arguments.learning_rate, momentum=0.9)
        self.sampler = ElasticDistributedSampler(data.labels, world, rank, seed=arguments.seed)
        self.batch_size = arguments.batch_size
        self.step = 0
        self.reduced = torch.zeros(())
        """Last argument of all_reduce. torch 2.6 hangs if gloo has the last reference to it when the group ends."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        self.step = state["step"]

    def train_step(self, model: nn.Module, indices: list[int]) -> torch.Tensor:
        """One optimizer step on this worker's share of the batch; returns the share's part of the loss."""
        samples = min(self.batch_size, len(self.data.labels) - self.sampler.consumed)
        loss: torch.Tensor = (
            cross_entropy(model(self.data.images[indices]), self.data.labels[indices], reduction="sum") / samples
        )
        self.optimizer.zero_grad()
        (loss * self.world).backward()  # (3) DDP averages over the workers: this makes it the mean over the batch
        self.optimizer.step()
        self.sampler.advance(samples)
        self.step += 1
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, test: Data) -> float:
        right = self.model(test.images).argmax(1) == test.labels
        return float(right.float().mean())


def start(training: Training, directory: str, rank: int) -> None:
    """(1) Rank 0 reads the newest checkpoint and broadcasts it, so that all workers resume from the same one."""
    found = [load_checkpoint(directory) if rank == 0 else None]
    if training.world > 1:
        dist.broadcast_object_list(found)
    (state,) = found
    if state is not None:
        training.load_state_dict(state)
    if rank == 0:
        word = "started" if state is None else "resumed"
        print(f"{word} step={training.step} epoch={training.sampler.epoch} world={training.world}", flush=True)


def train(training: Training, test: Data, arguments: argparse.Namespace, rank: int, stop: threading.Event) -> None:
    """Trains until all steps are done or `stop` is set."""
    model = DistributedDataParallel(training.model) if training.world > 1 else training.model
    metrics: dict[str, float] = {}
    while training.step < arguments.steps:
        for indices in training.sampler.batches(training.batch_size):  # (2)
            if training.step == arguments.steps or stop.is_set():
                return
            began = time.monotonic()
            loss = training.train_step(model, indices)
            if training.step % arguments.print_every == 0:
                if training.world > 1:
                    training.reduced = loss
                    dist.all_reduce(loss)
                metrics["loss"] = loss.item()
            if rank == 0:
                look_after(training, test, arguments, metrics)
            stop.wait(began + arguments.step_seconds - time.monotonic())
        training.sampler.set_epoch(training.sampler.epoch + 1)


def look_after(training: Training, test: Data, arguments: argparse.Namespace, metrics: dict[str, float]) -> None:
    """After a step on rank 0: saves a checkpoint, prints, and reports progress to the agent."""
    step = training.step
    if step % arguments.checkpoint_every == 0:
        save_checkpoint(arguments.checkpoint_dir, training.state_dict())
    if step % arguments.print_every == 0:
        print(
            f"step={step} epoch={training.sampler.epoch} world={training.world} loss={metrics['loss']:.4f}", flush=True
        )
    if step % arguments.test_every == 0:
        metrics["accuracy"] = training.accuracy(test)
        print(f"accuracy={metrics['accuracy']:.4f}", flush=True)
    report_progress(step, **metrics)


def finish(training: Training, test: Data, arguments: argparse.Namespace) -> None:
    """Writes the last checkpoint, and the last line if all steps are done."""
    save_checkpoint(arguments.checkpoint_dir, training.state_dict())
    if training.step < arguments.steps:
        print(f"stopped by SIGTERM step={training.step}", flush=True)
        return
    accuracy = training.accuracy(test)
    report_progress(training.step, accuracy=accuracy)
    print(f"finished step={training.step} epoch={training.sampler.epoch} world={training.world}", flush=True)
    print(f"accuracy={accuracy:.4f}", flush=True)


def main() -> None:
    arguments = parse_arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    torch.set_num_threads(1)  # the worker processes are the parallelism
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    train_set, test_set = read_digits()
    training = Training(arguments, train_set, rank, world)
    start(training, arguments.checkpoint_dir, rank)
    try:
        train(training, test_set, arguments, rank, stop)
    except RuntimeError:
        if not stop.is_set():
            raise
        # (4) The others left during this step: it did not count, and the state is that of the step before.
    if rank == 0:
        finish(training, test_set, arguments)
    if training.step < arguments.steps:
        sys.exit(TERMINATED)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
