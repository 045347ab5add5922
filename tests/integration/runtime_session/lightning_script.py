"""Trains with Lightning and an ElasticStrategy. As in script.py, all sums of gradients are exact, and so are all values
that ranks combine: whatever is lost, repeated or forgotten shows, bit by bit.

Environment: as of script.py, and VALIDATE_SECONDS (how long a validation batch takes), EVERY (batches between two
validations), CHECKPOINTS (folder), SAVE_EVERY (steps), SAVES_AT_END (with an ElasticCallback). The file in KILL_AT
holds a place; the process that creates KILLED there first dies.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import signal
import sys
import time
import warnings
from typing import Any

sys.path.append(os.environ["LIGHTNING"])
warnings.filterwarnings("ignore")

import lightning  # noqa: E402
import torch  # noqa: E402
from elasticjob_runtime.training.integrations.lightning import ElasticCallback, ElasticStrategy  # noqa: E402
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402

WIDTH = 8
SLOW = os.environ.get("SLOW", "")
LOCAL_RANK = os.environ.get("ELASTICJOB_LOCAL_RANK", "0")
OUTPUT = os.environ.get("OUTPUT", "/tmp/lightning").replace("{local_rank}", LOCAL_RANK)


def setting(name: str, default: str) -> float:
    return float(os.environ.get(name, default))


SAMPLES, BATCH = int(setting("SAMPLES", "512")), int(setting("BATCH", "16"))


def die_at(place: str) -> None:
    """Kills this process if it is the first that comes to the place that a test has named."""
    orders = pathlib.Path(os.environ.get("KILL_AT", "/nonexistent"))
    try:
        ordered = orders.read_text().split()
    except FileNotFoundError:  # or the one that they were for has taken them
        return
    if ordered != [place, os.environ.get("WORKER_NAME", "")]:
        return
    orders.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def note(kind: str, line: str) -> None:
    with pathlib.Path(f"{OUTPUT}.{kind}").open("a") as file:
        file.write(f"{line}\n")


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *((index * k) % 13 for k in range(1, WIDTH + 1))])


class Model(lightning.LightningModule):
    """`seen` has minus the number of times that each sample was trained on. `weights` has gradients that depend on the
    weights and the samples, but are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.weights = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self.more = torch.nn.ParameterList(torch.zeros(WIDTH, dtype=torch.float64) for _ in range(3))
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.validated: list[float] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        time.sleep(setting("SLOW_SECONDS" if os.path.exists(SLOW) else "STEP_SECONDS", "0"))
        die_at("step")
        self.steps += 1
        count = torch.zeros(SAMPLES, dtype=torch.float64).index_add_(
            0, batch[:, 0], torch.ones(len(batch), dtype=torch.float64)
        )
        loss = (self.seen * (count / len(batch))).sum()
        for weights in (self.weights, *self.more):
            gradients = torch.remainder(torch.floor(weights * 64).detach() * 3 + batch[:, 1:], 17) - 8
            loss = loss + (weights * (gradients.sum(0) / len(batch))).sum()
        self.log(
            "samples", torch.tensor(float(len(batch))), on_step=True, on_epoch=True, sync_dist=True, reduce_fx="sum"
        )
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        time.sleep(setting("VALIDATE_SECONDS", "0"))
        if index == 1:
            die_at("validation")
        self.validated += batch[:, 0].tolist()
        self.log("weight", self.weights.detach().sum().abs(), sync_dist=True, reduce_fx="max")
        self.log("validated", torch.tensor(float(len(batch))), sync_dist=True, reduce_fx="sum")

    def on_validation_epoch_end(self) -> None:
        self.validated.clear()

    def configure_optimizers(self) -> Any:
        groups = [{"params": [self.seen], "lr": float(BATCH)}, {"params": [self.weights, *self.more], "lr": 1 / 64}]
        optimizer = torch.optim.SGD(groups, momentum=0.0)
        halves = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda step: 2.0 ** -(step // 40)])
        return [optimizer], [{"scheduler": halves, "interval": "step"}]


class Ledger(Callback):
    """Writes down what has happened, as this process sees it."""

    def __init__(self) -> None:
        self.validations = 0
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.validations, self.epochs = state["validations"], state["epochs"]

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        note("steps", f"{time.monotonic()} {trainer.global_step} {trainer.world_size}")

    def on_validation_end(self, trainer: Any, _: Any) -> None:
        if not trainer.sanity_checking:
            self.validations += 1
            note("events", f"validation {trainer.global_step} {trainer.callback_metrics['validated'].item()}")

    def on_train_epoch_end(self, trainer: Any, _: Any) -> None:
        die_at("epoch")
        self.epochs += 1
        note("events", f"epoch {trainer.current_epoch} {trainer.global_step}")


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    note("pids", str(os.getpid()))
    ledger = Ledger()
    folder = os.environ.get("CHECKPOINTS", f"{OUTPUT}-checkpoints")
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=ElasticStrategy(global_batch_size=BATCH, bucket_cap_mb=0.001),
        max_epochs=int(setting("EPOCHS", "2")),
        val_check_interval=int(setting("EVERY", "20")),
        callbacks=[
            ledger,
            ModelCheckpoint(
                folder, monitor="weight", save_last=True, every_n_train_steps=int(setting("SAVE_EVERY", "10"))
            ),
            EarlyStopping("weight", patience=1000),
            *([ElasticCallback(folder)] if "SAVES_AT_END" in os.environ else []),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(
        model,
        torch.utils.data.DataLoader(Samples(SAMPLES), shuffle=True, num_workers=int(setting("LOADERS", "0"))),
        torch.utils.data.DataLoader(Samples(24), batch_size=2),
        ckpt_path="last" if "CHECKPOINTS" in os.environ else None,
    )
    state = {
        "model": model.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "loops": trainer.fit_loop.epoch_progress.state_dict(),
        "batches": trainer.fit_loop.epoch_loop.batch_progress.state_dict(),
    }
    torch.save(state, f"{OUTPUT}.pt")
    facts = {
        "rank": trainer.global_rank,
        "committed": trainer.global_step,
        "validations": ledger.validations,
        "epochs": ledger.epochs,
        "samples": trainer.callback_metrics["samples_epoch"].item(),
    }
    pathlib.Path(f"{OUTPUT}.json").write_text(json.dumps(facts))


main()
