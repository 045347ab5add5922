"""Hugging Face's Trainer, the real package, continues in place under real agents: weights, optimizer, scheduler and the
logged losses are those of an undisturbed run, bit by bit, through logs, evaluations and checkpoints."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.runtime_session import hugging_face
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.session_job import LONG, START, SessionJob

SCRIPT = pathlib.Path(__file__).with_name("trainer_script.py")

OFTEN = {**LONG, "EVAL_STEPS": "1"}
"""An evaluation after each step."""
RARE = {**OFTEN, "SNAPSHOT_EVERY": "7"}
"""A large state, or one on a busy machine, is not kept in memory after each step."""

pytestmark = [pytest.mark.torch, pytest.mark.transformers, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The checkpoints of an undisturbed run."""
    return tmp_path_factory.mktemp("undisturbed") / "saved"


@pytest.fixture(scope="session")
def undisturbed(saved: pathlib.Path) -> Run:
    return hugging_face.train_undisturbed(SCRIPT, {**LONG, "CHECKPOINTS": str(saved)}, saved.with_name("plain"))


@pytest.fixture
def trainer_job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    environment = hugging_face.environment({**LONG, "CHECKPOINTS": str(tmp_path / "saved")})
    job = SessionJob(etcd, tmp_path, python=str(hugging_face.python()), script=SCRIPT, environment=environment)
    yield job
    job.close()


def assert_same_reports(job: SessionJob, undisturbed: Run, *members: str) -> None:
    """All processes have logged the same, so any of them could have been the one that reports."""
    for name in members:
        facts = Run.read(job.directory / f"{name}-0").facts
        assert facts["losses"] == undisturbed.facts["losses"]
        assert facts["evaluations"] == undisturbed.facts["evaluations"]
        assert (facts["epoch"], facts["best"]) == (undisturbed.facts["epoch"], undisturbed.facts["best"])


@pytest.mark.nightly
def test_trainer_continues_from_its_checkpoint_if_processes_must_restart(
    trainer_job: SessionJob, tmp_path: pathlib.Path
) -> None:
    """Also with the evaluation that is due at the planned change."""
    undisturbed = hugging_face.train_undisturbed(
        SCRIPT, {**OFTEN, "CHECKPOINTS": str(tmp_path / "plain")}, tmp_path / "undisturbed"
    )
    job = trainer_job
    for name in "ab":
        job.start(name, "--in-place=off", nnodes="2:3", **RARE)
    job.wait_for_world(2, "a", "b", timeout=START)
    job.start("c", "--in-place=off", nnodes="2:3", **RARE)
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    steps = [step for step, _ in job.steps("a")]
    assert steps == list(range(1, len(steps) + 1)), "a planned change repeats no step"
    os.kill(job.pids("b")[-1], signal.SIGKILL)
    job.assert_finished(undisturbed, "a", "b", "c")
    assert_same_reports(job, undisturbed, "a", "b", "c")


def _language(folder: pathlib.Path, name: str, *launcher: str, **settings: str) -> dict[str, Any]:
    environment = {**os.environ, **hugging_face.environment({"OUTPUT": str(folder / name), **settings})}
    command = [str(hugging_face.python()), *launcher, str(SCRIPT.with_name("language_script.py"))]
    subprocess.run(command, env=environment, check=True)
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.nightly
def test_losses_are_those_of_trainer_whatever_the_shares_and_micro_batches_of_processes(tmp_path: pathlib.Path) -> None:
    """Of a language model, whose loss is the mean over the words of a global batch."""
    expected = _language(tmp_path, "plain", TRAINER="plain", MICRO="10")
    one = _language(tmp_path, "one", TRAINER="elastic", MICRO="10")
    three = ("-m", "elasticjob_runtime", "--standalone", "--nproc-per-node=3")
    several = _language(tmp_path, "several", *three, TRAINER="elastic", MICRO="2", OMP_NUM_THREADS="1")
    assert one == expected
    assert several["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert several["weights"] == pytest.approx(expected["weights"], abs=1e-5)  # the loss is of float32
    assert several["operations"] == expected["operations"]
    assert several["evaluations"] == expected["evaluations"]


REFUSED = """
import torch
from elasticjob_runtime.training.integrations.trainer import ElasticTrainer
from transformers import TrainingArguments

class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield {}

class Grouped(ElasticTrainer):
    def get_train_dataloader(self):
        return []

def message(dataset=(1, 2), trainer=ElasticTrainer, **arguments):
    given = TrainingArguments(use_cpu=True, report_to="none", max_steps=1, **arguments)
    try:
        trainer(torch.nn.Linear(1, 1), given, train_dataset=dataset, global_batch_size=2)
    except ValueError as error:
        return str(error)

print(message(gradient_accumulation_steps=2))
print(message(Rows()))
print(message(train_sampling_strategy="group_by_length"))
print(message(include_num_input_tokens_seen=True))
print(message(eval_on_start=True))
print(message(trainer=Grouped))
print(message())
"""


def test_what_elastic_trainer_does_not_support_is_refused_with_the_way_out(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, **hugging_face.environment({})}
    command = [str(hugging_face.python()), "-c", REFUSED]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=tmp_path)
    *refused, accepted = found.stdout.splitlines()
    for message, why in zip(
        refused,
        (
            "gradient_accumulation_steps must be 1: the number of micro-batches follows from global_batch_size",
            "train_dataset needs a length",
            "train_sampling_strategy must be random or sequential",
            "include_num_input_tokens_seen is not supported",
            "eval_on_start is not supported",
            "get_train_dataloader() is overridden, and not called",
        ),
        strict=True,
    ):
        assert message.startswith(f"ElasticTrainer: {why}")
        assert message.endswith("Trainer with ElasticCallback can do that, and restarts all processes at each change")
    assert accepted == "None"
