"""Trains with Lightning while worker pods come and go.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

The lines marked (1) to (4) are what a Lightning script needs to be elastic.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import lightning
import torch
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training import report_progress
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset

Batch = tuple[torch.Tensor, torch.Tensor]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, of all workers together")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"), help="folder"
    )
    return parser.parse_args()


class Regression(lightning.LightningModule):
    """Learns a linear map with a small network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch: Batch, _index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = mse_loss(self.model(inputs), targets)
        if self.global_rank == 0:
            report_progress(self.global_step, loss=loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Batches(IterableDataset[Batch]):
    """This worker's share of every batch from step `first` on, one epoch after another."""

    def __init__(self, samples: int, batch_size: int, first: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(samples, 8, generator=generator)
        self._targets = self._inputs @ torch.randn(8, 1, generator=generator)
        self._batch_size = batch_size
        self._first = first

    def __iter__(self) -> Iterator[Batch]:
        sampler = ElasticDistributedSampler(self._inputs)  # (1) distributes an epoch over the current workers
        steps = len(self._inputs) // self._batch_size
        epoch, done = divmod(self._first, steps)
        while True:
            sampler.set_epoch(epoch)
            sampler.advance(done * self._batch_size)
            for indices in sampler.batches(self._batch_size):
                if done < steps:  # without the last, smaller batch of an epoch
                    yield self._inputs[indices], self._targets[indices]
                    sampler.advance(self._batch_size)
                    done += 1
            epoch, done = epoch + 1, 0


def main() -> None:
    arguments = parse_arguments()
    path = os.path.join(arguments.checkpoint_dir, "last.ckpt")
    resume = path if os.path.exists(path) else None  # (2) continues, at any number of workers
    first = torch.load(path, map_location="cpu", weights_only=False)["global_step"] if resume else 0
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        max_steps=arguments.steps,
        devices=local,
        num_nodes=world // local,  # (3) the workers of this round
        strategy="ddp",
        callbacks=[
            ModelCheckpoint(  # (4) what is lost after a crash; Lightning replaces last.ckpt in one step
                arguments.checkpoint_dir, every_n_train_steps=arguments.save_every, save_last=True, save_top_k=0
            )
        ],
        logger=False,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        print(f"begins after step={first} with {world} workers", flush=True)
    # No loader processes: the data set counts its own steps.
    trainer.fit(
        Regression(), DataLoader(Batches(10_000, arguments.batch_size, first), batch_size=None), ckpt_path=resume
    )
    if trainer.is_global_zero:
        print(f"finished step={trainer.global_step} with {world} workers", flush=True)


if __name__ == "__main__":
    main()
