"""The digits example under plain python, torchrun and elasticrun: stopped, and resumed at other world sizes."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Protocol

import pytest

from hack.support import eventually

pytestmark = pytest.mark.torch

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "digits" / "train.py"
PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1", "--nproc-per-node=2"]

ELASTICRUN = [sys.executable, "-m", "elasticjob_runtime", "--standalone", "--nproc-per-node=3"]


class Run:
    """One run of the script, with its output in a file."""

    def __init__(self, launcher: list[str], log: pathlib.Path, *options: str, **variables: str) -> None:
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [*launcher, str(SCRIPT), *options],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                cwd=log.parent,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def finish(self) -> str:
        code = self.process.wait()
        assert code == 0, f"exit code {code}; see {self.log}\n{self.output}"
        return self.output

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | bool:
            ended = self.process.poll() is not None  # first, so that everything it wrote before its end is read
            return re.search(pattern, self.output) or ended

        match = eventually(found, 120, what=f"{pattern} in {self.log}")
        assert isinstance(match, re.Match), f"ended before {pattern}; see {self.log}\n{self.output}"
        return match

    def workers(self) -> list[int]:
        """Pids of the launcher's worker processes."""
        return [
            int(word)
            for word in pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]


class Start(Protocol):
    def __call__(self, launcher: list[str], *options: str, **variables: str) -> Run: ...


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Starts runs, and ends them all."""
    runs: list[Run] = []

    def started(launcher: list[str], *options: str, **variables: str) -> Run:
        run = Run(launcher, tmp_path / f"run-{len(runs)}.log", "--print-every=1", *options, **variables)
        runs.append(run)
        return run

    yield started
    for run in runs:
        if run.process.poll() is None:
            for pid in [*run.workers(), run.process.pid]:
                os.kill(pid, signal.SIGKILL)
            run.process.wait()


def losses(output: str) -> dict[int, float]:
    return {
        int(step): float(loss)
        for step, loss in re.findall(r"^step=(\d+) epoch=\d+ world=\d+ loss=([\d.]+)$", output, re.MULTILINE)
    }


def accuracy(output: str) -> float:
    """The last one printed."""
    return float(re.findall(r"^accuracy=(\d\.\d{4})$", output, re.MULTILINE)[-1])


@pytest.mark.nightly
@pytest.mark.timeout(900)  # nine processes import torch, on a machine that may be busy
def test_training_takes_the_same_path_at_every_world_size(start: Start) -> None:
    """One process to the end, then the same training by one, two, three and one processes, each resumed in the middle
    of an epoch."""
    quick = ("--step-seconds=0", "--checkpoint-every=50")
    single = start(PYTHON, *quick, "--steps=300", "--checkpoint-dir=single").finish()
    assert "started step=0 epoch=0 world=1" in single
    assert accuracy(single) >= 0.97

    start(PYTHON, *quick, "--steps=50", ELASTICJOB_CHECKPOINT_DIRECTORY="changing").finish()
    two = start(TORCHRUN, *quick, "--steps=84", "--checkpoint-dir=changing").finish()
    assert "resumed step=50 epoch=2 world=2" in two
    three = start(ELASTICRUN, *quick, "--steps=115", "--checkpoint-dir=changing").finish()
    assert "resumed step=84 epoch=3 world=3" in three
    last = start(PYTHON, *quick, "--steps=300", "--checkpoint-dir=changing").finish()
    assert "resumed step=115 epoch=5 world=1" in last
    assert accuracy(last) >= 0.97

    expected, seen = losses(single), losses(two) | losses(three) | losses(last)
    assert sorted(seen) == list(range(51, 301))
    for step in range(51, 121):  # later, rounding errors have grown
        assert seen[step] == pytest.approx(expected[step], abs=0.01), f"step {step}"


def test_sigterm_saves_a_checkpoint_and_exits(start: Start) -> None:
    run = start(PYTHON, "--checkpoint-every=1000000", "--checkpoint-dir=stopped")
    run.wait_for(r"step=3 ")
    run.process.terminate()
    assert run.process.wait() == 143
    step = int(run.wait_for(r"stopped by SIGTERM step=(\d+)")[1])
    resumed = start(
        PYTHON, "--checkpoint-dir=stopped", "--step-seconds=0", "--checkpoint-every=50", f"--steps={step + 2}"
    ).finish()
    assert f"resumed step={step} " in resumed


def test_missing_images_are_reported_with_where_to_get_them(start: Start) -> None:
    run = start(PYTHON, DIGITS_CSV="/nowhere/digits.csv.gz")
    assert run.process.wait() == 1
    assert run.output.strip() == (
        "No images at /nowhere/digits.csv.gz: install scikit-learn, or set DIGITS_CSV to the path of its digits.csv.gz."
    )
