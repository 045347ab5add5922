"""Fine-tunes a causal language model with Hugging Face's Trainer: when a worker is lost or joins, the others continue
where they are.

    elasticrun --standalone --nproc-per-node 2 train.py
    kubectl apply -k .

Without --model and --text it trains a tiny random model on random tokens, so it needs neither network nor data. The
lines marked (1) to (3) are what a Trainer script needs to continue in place.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from elasticjob_runtime.training.integrations.trainer import ElasticTrainer
from elasticjob_runtime.training.integrations.transformers import newest_checkpoint
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    TrainingArguments,
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model of the Hugging Face hub, or a folder; default: a tiny random one")
    parser.add_argument("--text", help="a text file to train on; default: random tokens")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per step, of all workers together")
    parser.add_argument("--length", type=int, default=32, help="tokens per sequence")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--output", default=os.environ.get("ELASTICJOB_CHECKPOINT_DIRECTORY", "checkpoints"))
    return parser.parse_args()


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `length` tokens from one long tensor of tokens."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self._rows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def make_model(name: str | None) -> PreTrainedModel:
    if name:
        return AutoModelForCausalLM.from_pretrained(name)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def make_tokens(arguments: argparse.Namespace) -> torch.Tensor:
    if arguments.text and arguments.model:
        text = Path(arguments.text).read_text(encoding="utf-8")
        return torch.tensor(AutoTokenizer.from_pretrained(arguments.model)(text)["input_ids"])
    if arguments.text:
        return torch.frombuffer(bytearray(Path(arguments.text).read_bytes()), dtype=torch.uint8).long()
    return torch.randint(256, (100_000,), generator=torch.Generator().manual_seed(0))


def main() -> None:
    arguments = parse_arguments()
    trainer = ElasticTrainer(  # (1) instead of Trainer
        model=make_model(arguments.model),
        args=TrainingArguments(
            output_dir=arguments.output,
            max_steps=arguments.steps,
            per_device_train_batch_size=8,
            save_steps=arguments.save_every,  # for when all workers are lost at once
            save_total_limit=2,
            logging_steps=10,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend="nccl" if torch.cuda.is_available() else "gloo",  # or it may choose MPI on CPUs
            ddp_find_unused_parameters=False,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Sequences(make_tokens(arguments), arguments.length),
        global_batch_size=arguments.batch_size,  # (2) of all workers together, whatever their number
    )
    checkpoint = newest_checkpoint(arguments.output)  # (3) continues, at any number of workers
    if trainer.is_world_process_zero():
        print(f"begins after {checkpoint or 'nothing'} with {trainer.args.world_size} workers", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        print(f"finished step={trainer.state.global_step} with {trainer.args.world_size} workers", flush=True)


if __name__ == "__main__":
    main()
