"""Examples that run here rather than, or as well as, on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.images.recipe import ROOT


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
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_sharded_training_continues_at_another_size_and_skips_an_incomplete_checkpoint(tmp_path: Path) -> None:
    """Without replicas: all worker processes are one world."""
    small = ("--samples=3000", "--epochs=1", "--save-every=20", "--step-seconds=0")
    log = run("fsdp2", 2, tmp_path, *small)
    assert log.count("trains with 1 replicas after step=0") == 2
    assert "finished step=47 " in log
    max(tmp_path.glob("step-*.ckpt")).unlink()  # as a crash while it was written leaves it: without a manifest
    log = run("fsdp2", 3, tmp_path, *small)
    assert log.count("trains with 1 replicas after step=20") == 3
    assert "finished step=47 " in log


@pytest.mark.torch
@pytest.mark.parametrize(
    ("example", "processes", "arguments"),
    [
        pytest.param("fsdp2", 2, (), id="fsdp2"),
        pytest.param("tensor-parallel", 2, (), id="tensor-parallel", marks=pytest.mark.nightly),
        pytest.param("tensor-parallel", 4, ("--tensor=2",), id="tensor-parallel-2d"),
    ],
)
def test_an_example_of_replicas_is_one_replica_under_torchrun(
    example: str, processes: int, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    script = [str(ROOT / "examples" / example / "train.py"), "--epochs=1", "--samples=640", "--step-seconds=0"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
            *(*script, f"--checkpoint-dir={tmp_path}", *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "finished step=10 with 1 replicas" in done.stdout, done.stderr


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
        check=False,
    )
    assert f"finished step=10 with {2 if launcher else 1} workers" in done.stdout, done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("loaders", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_stream_example_reads_each_epoch_to_its_end_at_any_size(loaders: int, tmp_path: Path) -> None:
    """960 samples in batches of 48: 20 steps an epoch."""
    small = (f"--shards={tmp_path / 'shards'}", f"--loaders={loaders}", "--step-seconds=0", "--save-every=15")
    assert "finished step=20 with 2 workers" in run("stream", 2, tmp_path / "saved", *small, "--epochs=1")
    again = run("stream", 3, tmp_path / "saved", *small, "--epochs=3")
    assert "begins after step=15 with 3 workers" in again
    assert "finished step=60 with 3 workers" in again
