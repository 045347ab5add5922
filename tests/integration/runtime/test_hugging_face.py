"""A script with Hugging Face's Trainer, unchanged: transformers' own callback reports to the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from elasticjob_runtime.contract import ProgressValue

from hack.support import eventually
from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE, Job

SCRIPT = """
import sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.05)
        tokens = torch.randint(0, 50, (8,))
        return {"input_ids": tokens, "labels": tokens}

config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1)
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=120, per_device_train_batch_size=1, logging_steps=1, save_strategy="no",
    use_cpu=True, disable_tqdm=True, report_to="none",
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Words()).train()
"""


def progress(job: Job) -> ProgressValue | None:
    kv = job.client.get(job.keys.progress)
    return ProgressValue.from_json(kv.value) if kv else None


@pytest.mark.torch
@pytest.mark.transformers
@pytest.mark.timeout(600)
def test_hugging_faces_trainer_shows_percentage_time_left_and_loss_without_a_change(job: Job, tmp_path: Path) -> None:
    python = framework_environments.interpreter(framework_environments.TRANSFORMERS)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["--no-python", str(python), str(script), str(tmp_path / "output")]
    for name in ("a", "b"):
        job.start(name, nnodes="2", script=command, environment=framework_environments.environment(SOURCE))

    def during() -> ProgressValue | None:
        found = progress(job)
        return found if found is not None and found.step and found.remaining_seconds else None

    found = eventually(during, timeout=300, what=f"progress during the training; logs:\n{job.logs}")
    assert found is not None
    assert found.percent is not None
    assert 0 < found.percent < 100
    assert found.percent == int(100 * found.step / 120)
    assert found.total_steps == 120
    assert {"loss", "learning_rate", "grad_norm"} <= set(found.metrics)
    for agent in job.agents:
        assert agent.exit_code(timeout=200) == 0
    end = progress(job)
    assert end is not None
    assert (end.percent, end.remaining_seconds) == (100, 0)
    assert "train_loss" in end.metrics
