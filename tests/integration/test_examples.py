"""Examples that run here rather than, or as well as, on a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.images.recipe import ROOT
from hack.support import eventually


def run(example: str, workers: int, directory: Path, *arguments: str) -> str:
    """What the example printed to its end."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "elasticjob_runtime", "--standalone", f"--nproc-per-node={workers}"),
            *(str(ROOT / "examples" / example / "train.py"), *arguments),
        ],
        env={**os.environ, "ELASTICJOB_CHECKPOINT_DIRECTORY": str(directory)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_sharded_training_continues_at_another_size_and_skips_an_incomplete_checkpoint(tmp_path: Path) -> None:
    small = ("--samples=3000", "--epochs=1", "--save-every=20")
    log = run("fsdp2-dcp", 2, tmp_path, *small)
    assert "begins after step=0 with 2 workers" in log
    assert "finished step=47 with 2 workers" in log
    max(tmp_path.glob("step-*.ckpt")).unlink()  # as a crash while it was written leaves it: without a manifest
    log = run("fsdp2-dcp", 3, tmp_path, *small)
    assert "begins after step=20 with 3 workers" in log
    assert "finished step=47 with 3 workers" in log


ENTERED = re.compile(r"^pid=(\d+) rank=(\d+) trains with 3 workers after step=(\d+)$", re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.torch
def test_the_session_example_continues_in_place_when_a_process_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = [str(ROOT / "examples" / "session" / "train.py"), "--epochs=3", "--print-every=1", "--save-every=100000"]
    with log.open("wb") as file:
        agent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "elasticjob_runtime",
                "--standalone",
                "--max-restarts=3",
                "--nproc-per-node=3",
                *script,
            ],
            env={**os.environ, "ELASTICJOB_CHECKPOINT_DIRECTORY": str(tmp_path)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "step=20 " in log.read_text(), 120, what="it trains")
        first = {int(rank): int(pid) for pid, rank, _ in ENTERED.findall(log.read_text())}
        os.kill(first[2], signal.SIGKILL)
        assert agent.wait(180) == 0, log.read_text()
    finally:
        agent.kill()
    text = log.read_text()
    last = {int(rank): int(pid) for pid, rank, step in ENTERED.findall(text) if int(step) > 0}
    assert (last[0], last[1]) == (first[0], first[1]), "those that remain do not restart"
    assert last[2] != first[2]
    steps = [int(step) for step in re.findall(r"^step=(\d+) ", text, re.MULTILINE)]
    assert steps == list(range(1, 301)), "no step is lost, and none is taken twice"


@pytest.mark.torch
@pytest.mark.parametrize(
    "launcher",
    ["", pytest.param("-m torch.distributed.run --standalone --nproc-per-node=2", marks=pytest.mark.nightly)],
)
def test_the_session_example_runs_without_an_agent(launcher: str, tmp_path: Path) -> None:
    script = [str(ROOT / "examples" / "session" / "train.py"), "--epochs=1", "--samples=640", "--step-seconds=0"]
    done = subprocess.run(
        [sys.executable, *launcher.split(), *script, f"--checkpoint-dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"finished step=10 with {2 if launcher else 1} workers" in done.stdout, done.stderr
