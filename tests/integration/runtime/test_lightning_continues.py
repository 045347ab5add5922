"""Lightning continues after any step with the batches and weights of an undisturbed training, bit by bit.

No agents: the script decides itself when to save.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE

SCRIPT = """
import json, sys, tempfile, warnings
warnings.filterwarnings("ignore")
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from elasticjob_runtime.training.integrations.lightning import callback as integration

settings, saves = json.loads(sys.argv[1]), json.loads(sys.argv[2])
generator = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(34), torch.randn(34, 3, generator=generator))

class Model(lightning.LightningModule):
    def __init__(self, ledger):
        super().__init__()
        torch.manual_seed(0)
        self.network, self.ledger = torch.nn.Linear(3, 1), ledger

    def training_step(self, batch, index):
        self.ledger.append((self.global_step, self.current_epoch, index, batch[0].tolist()))
        return (self.network(batch[1]) - batch[1].sum(1, keepdim=True)).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

class Saved(BaseException):
    pass

def fit(folder, ledger, save_after=0):
    calls = 0

    def wanted():
        nonlocal calls
        calls += 1
        if save_after and calls > save_after:
            raise Saved
        return calls == save_after

    integration.checkpoint_wanted = wanted
    elastic, model = integration.ElasticCallback(folder), Model(ledger)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[elastic, ModelCheckpoint(folder, save_last=True, every_n_epochs=1000)],
        use_distributed_sampler=False, **settings,
    )
    loader = torch.utils.data.DataLoader(data, batch_sampler=elastic.batch_sampler(data, 4))
    try:
        trainer.fit(model, loader, ckpt_path="last")
    except Saved:
        return None
    return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()

expected = []
weights = fit(tempfile.mkdtemp(), expected)
assert len(expected) == 24
for save in saves:
    found, folder = [], tempfile.mkdtemp()
    assert fit(folder, found, save) is None
    assert len(found) < 24
    assert fit(folder, found) == weights, save
    assert found == expected, save
"""


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.lightning
@pytest.mark.parametrize(
    ("settings", "saves"),
    [
        pytest.param({"max_epochs": 3}, [1, 7, 8, 9, 16, 17], id="by-epochs"),
        pytest.param({"max_epochs": -1, "max_steps": 24}, [1, 7, 8, 9, 16, 17], id="by-steps"),
        pytest.param({"max_epochs": 3, "accumulate_grad_batches": 3}, [1, 2, 3, 4], id="accumulated"),
    ],
)
def test_lightning_continues_after_any_step_of_an_epoch(
    settings: dict[str, int], saves: list[int], tmp_path: Path
) -> None:
    python = framework_environments.interpreter(framework_environments.LIGHTNING)
    done = subprocess.run(
        [python, "-c", SCRIPT, json.dumps(settings), json.dumps(saves)],
        env={**os.environ, **framework_environments.environment(SOURCE), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
