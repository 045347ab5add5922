"""Frameworks: a join loses no step, and the training ends with the weights of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from elasticjob_runtime.contract import ProgressValue

from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import Job
from tests.integration.runtime.framework_training import BATCH, STEPS, assert_a_join_loses_no_step

TRANSFORMERS = f"""
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
    save_strategy="no", logging_steps=1, learning_rate=0.01, use_cpu=True, ddp_backend="gloo" if world > 1 else None,
    disable_tqdm=True, report_to="none",
)
model = Model()
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Ledger(), ElasticCallback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(here / "output"))
if rank == 0:
    (here / "result").write_text(json.dumps(torch.nn.utils.parameters_to_vector(model.parameters()).tolist()))
"""

LIGHTNING = f"""
import json, os, pathlib, sys, time
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from elasticjob_runtime.training.integrations.lightning import ElasticCallback

here = pathlib.Path(sys.argv[1])
world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
ledger = (here / f"ledger-{{os.getpid()}}").open("a", buffering=1)

class Rows(torch.utils.data.Dataset):
    inputs = torch.randn(600, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Linear(4, 1).double()

    def training_step(self, batch, _):
        inputs, index = batch
        entry = {{"step": self.global_step + 1, "world": world, "rank": self.global_rank, "used": index.tolist()}}
        ledger.write(json.dumps(entry) + "\\n")
        if not (here / "hurry").exists():
            time.sleep(0.1)
        return (self.network(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

folder = str(here / "checkpoints")
elastic, model, data = ElasticCallback(folder), Model(), Rows()
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=local, num_nodes=world // local, max_steps={STEPS}, max_epochs=-1,
    callbacks=[elastic, ModelCheckpoint(folder, save_last=True, every_n_epochs=1000)], use_distributed_sampler=False,
    logger=False, enable_progress_bar=False, enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(data, batch_sampler=elastic.batch_sampler(data, {BATCH}))
trainer.fit(model, loader, ckpt_path="last")
if trainer.is_global_zero:
    (here / "result").write_text(json.dumps(torch.nn.utils.parameters_to_vector(model.parameters()).tolist()))
"""


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.transformers
@pytest.mark.timeout(600)
def test_a_join_loses_no_step_of_hugging_faces_trainer(job: Job, tmp_path: Path) -> None:
    python = framework_environments.interpreter(framework_environments.TRANSFORMERS)
    assert_a_join_loses_no_step(job, tmp_path, python, TRANSFORMERS)
    kv = job.client.get(job.keys.progress)
    assert kv is not None
    progress = ProgressValue.from_json(kv.value)
    assert (progress.total_steps, progress.percent, progress.remaining_seconds) == (STEPS, 100, 0)
    assert {"loss", "learning_rate", "grad_norm", "train_loss"} <= set(progress.metrics), "transformers reports it"


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.lightning
@pytest.mark.timeout(600)
def test_a_join_loses_no_step_of_lightning(job: Job, tmp_path: Path) -> None:
    python = framework_environments.interpreter(framework_environments.LIGHTNING)
    assert_a_join_loses_no_step(job, tmp_path, python, LIGHTNING)
