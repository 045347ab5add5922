"""Lightning with an ElasticStrategy: whatever is lost or joins, and wherever the training is, no surviving process
restarts, and the end is that of an undisturbed training, bit by bit."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import torch

from hack.support import eventually
from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import Driver
from tests.integration.runtime_session.history import begin, finish, steps_of, wait_for_step, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.lightning, pytest.mark.timeout(400)]

SCRIPT = pathlib.Path(__file__).with_name("lightning_script.py")
SETTINGS = {"SAMPLES": "1000", "BATCH": "16", "EPOCHS": "2", "EVERY": "20", "STEP_SECONDS": "0.01"}
STEPS = 126
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""As an agent gives them to processes that start for a job that continues in place."""


@pytest.fixture(scope="session")
def installed() -> str:
    """Where lightning is."""
    return framework_environments.site_packages(framework_environments.LIGHTNING)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, installed: str) -> Run:
    return train_undisturbed(tmp_path_factory.mktemp("undisturbed") / "plain", {**SETTINGS, "LIGHTNING": installed})


def train_undisturbed(output: pathlib.Path, settings: Mapping[str, str]) -> Run:
    """One process, plain python."""
    environment = {
        **os.environ, **settings, "STEP_SECONDS": "0", "OUTPUT": str(output), "PYTHONPATH": str(SOURCE),
    }  # fmt: skip
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=True)
    return Run.read(output)


@pytest.fixture
def driver(tmp_path: pathlib.Path, installed: str) -> Iterator[Driver]:
    environment = {**SETTINGS, **ALONE, "LIGHTNING": installed, "KILL_AT": str(tmp_path / "kill")}
    driver = Driver(tmp_path, environment, SCRIPT)
    yield driver
    driver.close()


def assert_same(run: Run, undisturbed: Run) -> None:
    run.assert_same_training(undisturbed)
    for fact in ("validations", "epochs"):
        assert run.facts[fact] == undisturbed.facts[fact]


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["step", "validation", "epoch"])
def test_a_process_killed_anywhere_and_one_that_joins_leave_no_trace(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run, place: str
) -> None:
    a, b, c, d = begin(driver, "a", "b", "c", later=["d"])
    wait_for_step(driver, tmp_path, a, 10)
    (tmp_path / "kill").write_text(f"{place} c")
    wait_until(driver, lambda: c.process.poll() is not None, f"c is killed in a {place}")
    driver.plan([a, b])
    last = max(step for _, step, _ in steps_of(tmp_path, c))
    wait_for_step(driver, tmp_path, a, last + 10)
    driver.plan([b, a, d], step_grace=0.5)  # rank 0 changes hands, too
    runs = finish(driver, tmp_path, [a, b, d])
    assert len(runs) == 3
    for run in runs:
        assert_same(run, undisturbed)
    for worker in (a, b):
        assert [step for _, step, _ in steps_of(tmp_path, worker)] == list(range(1, STEPS + 1))
    assert {size for _, _, size in steps_of(tmp_path, d)} == {3}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "place",
    ["validation", "step", "epoch"],
)
def test_a_checkpoint_of_lightning_continues_in_the_middle_of_the_data(
    tmp_path: pathlib.Path, installed: str, undisturbed: Run, place: str
) -> None:
    environment = {
        **os.environ, **SETTINGS, "OUTPUT": str(tmp_path / "plain"), "PYTHONPATH": str(SOURCE), "LIGHTNING": installed,
        "CHECKPOINTS": str(tmp_path / "checkpoints"), "KILL_AT": str(tmp_path / "kill"), "WORKER_NAME": "plain",
    }  # fmt: skip
    with subprocess.Popen([sys.executable, os.fspath(SCRIPT)], env=environment) as process:
        steps = tmp_path / "plain.steps"
        eventually(lambda: steps.exists() and len(steps.read_text().splitlines()) > 44, 60, what="45 steps")
        (tmp_path / "kill").write_text(f"{place} plain")
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=False)
    assert done.returncode == 0
    found = Run.read(tmp_path / "plain")
    assert found.facts["committed"] == STEPS
    for name, weights in undisturbed.state["model"].items():
        assert torch.equal(found.state["model"][name], weights), name
    assert len(steps.read_text().splitlines()) < 2 * STEPS - 30, "it has not begun again"


REFUSALS = """
import sys
sys.path.append(sys.argv[1])
import lightning, torch
from lightning.pytorch import callbacks, demos
from elasticjob_runtime.training.integrations.lightning import ElasticStrategy

Rows = torch.utils.data.TensorDataset
loader = torch.utils.data.DataLoader(Rows(torch.ones(8, 32)))
manual = demos.BoringModel()
manual.automatic_optimization = False

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.ones(8, 32))

def refused(sentence, model=None, loader=loader, **options):
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, strategy=ElasticStrategy(global_batch_size=4), max_steps=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, limit_val_batches=0, **options,
    )
    try:
        trainer.fit(model or demos.BoringModel(), loader)
    except (TypeError, ValueError) as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(sentence)

refused("manual optimization may keep gradients", model=manual)
refused("raise global_batch_size, not accumulate_grad_batches", accumulate_grad_batches=2)
refused("give val_check_interval as a number of batches", val_check_interval="00:00:01:00")
refused("WeightAveraging has weights of its own", callbacks=[callbacks.StochasticWeightAveraging(0.1)])
refused("and an ElasticCallback, all processes restart", reload_dataloaders_every_n_epochs=1)
refused("of a data set with a length", loader=torch.utils.data.DataLoader(Stream()))
refused("one DataLoader for the training: got 2", loader=[loader, loader])
seeds = torch.utils.data.DataLoader(Rows(torch.ones(8, 32)), worker_init_fn=print)
refused("does not support worker_init_fn", loader=seeds)
sampler = torch.utils.data.WeightedRandomSampler([1.0] * 8, 8)
refused(
    "must not have a sampler of its own", loader=torch.utils.data.DataLoader(Rows(torch.ones(8, 32)), sampler=sampler),
    use_distributed_sampler=False,
)
try:
    ElasticStrategy(global_batch_size=0)
except ValueError:
    print("all refused")
"""


def test_what_cannot_continue_in_place_is_refused_with_a_sentence(installed: str, tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, installed],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, cwd=tmp_path, check=False, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.endswith("all refused\n"), done.stdout + done.stderr
