"""Trains with Lightning while worker pods come and go: the processes that remain continue, and no step is lost.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

It is an ordinary Lightning script except for the lines marked (elastic).
"""

from __future__ import annotations

import argparse
import glob
import os

import lightning
import torch
from elasticjob_runtime.training.integrations.lightning import ElasticCallback, ElasticStrategy
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


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

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        inputs, targets = batch
        return mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def make_data(samples: int = 10_000) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 8, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(8, 1, generator=generator))


def main() -> None:
    arguments = parse_arguments()
    saved = glob.glob(os.path.join(arguments.checkpoint_dir, "last*.ckpt"))  # when all workers are lost, or stopped
    resume = max(saved, key=os.path.getmtime, default=None)
    trainer = lightning.Trainer(
        max_steps=arguments.steps,
        strategy=ElasticStrategy(global_batch_size=arguments.batch_size),  # (elastic)
        callbacks=[
            ElasticCallback(arguments.checkpoint_dir),  # (elastic) saves before the job is suspended
            ModelCheckpoint(
                arguments.checkpoint_dir, every_n_train_steps=arguments.save_every, save_last=True, save_top_k=0
            ),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        step = torch.load(resume, map_location="cpu", weights_only=False)["global_step"] if resume else 0
        print(f"begins after step={step} with {trainer.world_size} workers", flush=True)
    trainer.fit(Regression(), DataLoader(make_data(), shuffle=True), ckpt_path=resume)
    if trainer.is_global_zero:
        print(f"finished step={trainer.global_step} with {trainer.world_size} workers", flush=True)


if __name__ == "__main__":
    main()
