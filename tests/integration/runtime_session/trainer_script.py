"""Trains what script.py trains, with Hugging Face's Trainer: with logs, evaluations and checkpoints in the middle."""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import torch
from elasticjob_runtime.training.integrations.trainer import ElasticTrainer
from elasticjob_runtime.training.integrations.transformers import newest_checkpoint
from elasticjob_runtime.training.memory import Pace
from transformers import TrainerCallback, TrainingArguments

from hack.chaos.script import BATCH, SLOW, Model, Samples, setting

TESTED = 10


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"batch": Samples()[index]}


class Network(Model):
    def forward(self, batch: torch.Tensor, return_loss: bool = True) -> dict[str, torch.Tensor]:  # type: ignore[override]  # noqa: ARG002
        """return_loss: tells Trainer that this returns a loss in evaluations, too. They leave the buffer as it is."""
        steps = self.steps.clone()
        loss = super().forward(batch)
        if not self.training:
            self.steps.copy_(steps)
        return {"loss": loss}


class Steps(TrainerCallback):  # type: ignore[misc]
    def __init__(self, output: str) -> None:
        self._path = pathlib.Path(f"{output}.steps")
        self.epochs: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(setting("SLOW_SECONDS" if os.path.exists(SLOW) else "STEP_SECONDS", "0"))

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        with self._path.open("a") as file:
            file.write(f"{time.monotonic()} {state.global_step} {args.world_size}\n")

    def on_epoch_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.epochs.append(state.epoch)


def main() -> None:
    torch.set_num_threads(1)
    if every := int(setting("SNAPSHOT_EVERY", "0")):  # as if each took so long
        setattr(Pace, "interval", every)  # noqa: B010 mypy
    local_rank = os.environ.get("ELASTICJOB_LOCAL_RANK", "0")
    output = os.environ["OUTPUT"].replace("{local_rank}", local_rank)
    with pathlib.Path(f"{output}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    model = Network()
    optimizer = torch.optim.SGD([
        {"params": [model.seen], "lr": BATCH}, {"params": [model.weights, *model.more], "lr": 0.05, "momentum": 0.9}
    ])  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda step: 0.99**step])
    arguments = TrainingArguments(
        output_dir=os.environ["CHECKPOINTS"], num_train_epochs=int(setting("EPOCHS", "2")), max_grad_norm=0.0,
        per_device_train_batch_size=BATCH, per_device_eval_batch_size=2,
        logging_steps=7, eval_strategy="steps", eval_steps=int(setting("EVAL_STEPS", "9")),
        save_steps=int(setting("SAVE_STEPS", "18")), save_total_limit=2, metric_for_best_model="loss", use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        ddp_find_unused_parameters=False, disable_tqdm=bool(setting("QUIET", "1")), report_to="none",
    )  # fmt: skip
    steps = Steps(output)
    trainer = ElasticTrainer(
        model,
        arguments,
        train_dataset=Rows(int(setting("SAMPLES", "512"))),
        eval_dataset=Rows(TESTED),
        optimizers=(optimizer, scheduler),
        callbacks=[steps],
        global_batch_size=BATCH,
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(state, f"{output}.pt")
    history = trainer.state.log_history
    facts = {
        "committed": trainer.state.global_step,
        "losses": [(item["step"], item["loss"], item["learning_rate"]) for item in history if "loss" in item],
        "evaluations": [(item["step"], item["eval_loss"]) for item in history if "eval_loss" in item],
        "epoch": trainer.state.epoch,
        "best": trainer.state.best_global_step,
        "epochs_ended": steps.epochs,
    }
    pathlib.Path(f"{output}.json").write_text(json.dumps(facts))


main()
