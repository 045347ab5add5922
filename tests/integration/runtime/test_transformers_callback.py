"""Hugging Face's Trainer with `ElasticCallback`: a join loses no step, and the result is that of an undisturbed run."""

from __future__ import annotations

import collections
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.runtime import transformers_environment
from tests.integration.runtime.agents import SOURCE, Job

STEPS, BATCH = 300, 12

SCRIPT = f"""
import json, os, pathlib, sys, time
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from elasticjob_runtime.training.integrations.transformers import ElasticCallback, newest_checkpoint

here = pathlib.Path(sys.argv[1])
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
ledger = (here / f"ledger-{{os.getpid()}}").open("a", buffering=1)
torch.manual_seed(0)

class Rows(torch.utils.data.Dataset):
    inputs = torch.randn(600, 4, dtype=torch.float64)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {{"inputs": self.inputs[index], "index": index}}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Linear(4, 1).double()

    def forward(self, inputs, index):
        self.used = index.tolist()
        return {{"loss": (self.network(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()}}

class Ledger(TrainerCallback):
    def on_step_end(self, args, state, control, model, **kwargs):
        entry = {{"step": state.global_step, "world": world, "rank": rank, "used": model.used}}
        ledger.write(json.dumps(entry) + "\\n")
        if not (here / "hurry").exists():
            time.sleep(0.1)

arguments = TrainingArguments(
    output_dir=str(here / "output"), max_steps={STEPS}, per_device_train_batch_size={BATCH} // world,
    save_strategy="no", learning_rate=0.01, use_cpu=True, ddp_backend="gloo" if world > 1 else None,
    disable_tqdm=True, report_to="none",
)
model = Model()
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Ledger(), ElasticCallback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(here / "output"))
if rank == 0:
    (here / "result").write_text(json.dumps(torch.nn.utils.parameters_to_vector(model.parameters()).tolist()))
"""


def steps(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Step -> what each rank did in it."""
    found: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for file in folder.glob("ledger-*"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found[entry["step"]].append(entry)
    return found


def undisturbed(python: Path, script: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "hurry").touch()
    subprocess.run(
        [python, script, folder],
        env={**os.environ, **transformers_environment.environment(SOURCE)},
        check=True,
        timeout=200,
        capture_output=True,
    )


@pytest.mark.torch
@pytest.mark.transformers
@pytest.mark.timeout(600)
def test_a_join_loses_no_step_of_hugging_faces_trainer(job: Job, tmp_path: Path) -> None:
    python = transformers_environment.interpreter()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    reference, folder = tmp_path / "undisturbed", tmp_path / "elastic"
    undisturbed(python, script, reference)
    folder.mkdir()

    def start(name: str) -> None:
        job.start(
            name,
            script=["--no-python", str(python), str(script), str(folder)],
            environment=transformers_environment.environment(SOURCE),
        )

    def in_world(size: int) -> bool:
        return any(entry["world"] == size for entries in steps(folder).values() for entry in entries)

    start("a")
    start("b")
    eventually(lambda: in_world(2), 200, what=f"two members train; logs:\n{job.logs}")
    start("c")
    eventually(lambda: in_world(3), 200, what=f"three members train; logs:\n{job.logs}")
    (folder / "hurry").touch()
    assert [agent.exit_code(timeout=200) for agent in job.agents] == [0, 0, 0], job.logs

    expected, found = steps(reference), steps(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    for step, entries in found.items():
        world = entries[0]["world"]
        assert sorted(entry["rank"] for entry in entries) == list(range(world)), f"step {step}: {entries}"
        assert sorted(index for entry in entries for index in entry["used"]) == sorted(expected[step][0]["used"]), step
    weights, undisturbed_weights = (json.loads((each / "result").read_text()) for each in (folder, reference))
    assert weights == pytest.approx(undisturbed_weights, abs=1e-9)
