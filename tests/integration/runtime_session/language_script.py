"""Trains a small language model, whose labels differ in number, with Hugging Face's Trainer or ElasticTrainer.

OUTPUT; TRAINER ("plain": Trainer itself); MICRO: samples of a micro-batch."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import torch
from elasticjob_runtime.training.integrations.trainer import ElasticTrainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SAMPLES, BATCH = 41, 10
"""The last batch has one sample: two of three processes have none."""


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 20, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": torch.where(torch.arange(8) < 2 + index % 6, words, -100)}


def measure(prediction: Any) -> dict[str, float]:
    words = prediction.label_ids[:, 1:]
    right = prediction.predictions[:, :-1].argmax(-1) == words
    return {"right": float(right[words != -100].sum()), "samples": float(len(words))}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = GPT2LMHeadModel(config).double()
    output = os.environ["OUTPUT"]
    arguments = TrainingArguments(
        output_dir=f"{output}.saved", num_train_epochs=3, per_device_train_batch_size=int(os.environ["MICRO"]),
        train_sampling_strategy="sequential", logging_steps=1, save_strategy="no", eval_strategy="epoch",
        learning_rate=0.01, use_cpu=True, ddp_backend="gloo" if "RANK" in os.environ else None, disable_tqdm=True,
        report_to="none",
    )  # fmt: skip
    given: dict[str, Any] = {"model": model, "args": arguments, "train_dataset": Words(), "eval_dataset": Words()}
    given["compute_metrics"] = measure
    trainer = Trainer(**given) if os.environ["TRAINER"] == "plain" else ElasticTrainer(**given, global_batch_size=BATCH)
    trainer.train()
    if arguments.process_index == 0:
        facts = {
            "weights": torch.nn.utils.parameters_to_vector(model.parameters()).tolist(),
            "losses": [item["loss"] for item in trainer.state.log_history if "loss" in item],
            "evaluations": [
                (item["eval_right"], item["eval_samples"])  # Trainer's loss is a mean over batches, whatever they have
                for item in trainer.state.log_history
                if "eval_loss" in item
            ],
            "operations": trainer.state.total_flos,
        }
        pathlib.Path(f"{output}.json").write_text(json.dumps(facts))


main()
