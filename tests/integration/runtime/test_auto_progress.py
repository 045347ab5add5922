"""The steps of a script that reports nothing: real agents, which fork or execute its processes."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.contract import ExitCode, ProgressValue

from tests.integration.runtime.agents import SOURCE, Job
from tests.integration.runtime.small_torch import write_small_torch

SCRIPT = """
import os, pathlib, subprocess, sys
from torch.optim import Optimizer

optimizer = Optimizer()
for _ in range(120):
    optimizer.step()
if not os.fork():  # a child that trains a model of its own
    optimizer.step()
    os._exit(0)
os.wait()
print("own sitecustomize:", hasattr(sys, "of_the_user"), flush=True)
print("search path:", os.environ["PYTHONPATH"], [each for each in sys.path if "exec_hooks" in each], flush=True)
"""


@pytest.fixture
def script(job: Job) -> str:
    path = job.directory / "unmodified.py"
    path.write_text(SCRIPT)
    users = job.directory / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("import sys\nsys.of_the_user = True\n")
    return str(path)


def search_path(folder: pathlib.Path) -> str:
    return f"{write_small_torch(folder)}:{folder}/users:{SOURCE}"


def published(job: Job) -> ProgressValue | None:
    kv = job.client.get(job.keys.progress)
    return ProgressValue.from_json(kv.value) if kv else None


@pytest.mark.parametrize("method", ["spawn", "zygote"])
def test_the_steps_of_an_unmodified_script_are_counted(job: Job, script: str, method: str) -> None:
    path = search_path(job.directory)
    flags = ("--start-method", method, "--nproc-per-node", "2")
    agent = job.start("a", *flags, nnodes="1", script=[script], environment={"PYTHONPATH": path})
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    progress = published(job)
    assert progress is not None, "the last count is published before the agent ends"
    assert progress.optimizer_steps == 120, agent.output
    assert f"search path: {path} []" in agent.output
    assert "own sitecustomize: True" in agent.output


def test_nothing_is_counted_if_the_user_says_so(job: Job, script: str) -> None:
    environment = {"PYTHONPATH": search_path(job.directory)}
    agent = job.start("a", "--no-auto-progress", nnodes="1", script=[script], environment=environment)
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    assert published(job) is None
