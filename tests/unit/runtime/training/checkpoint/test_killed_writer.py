"""A writer that is killed with SIGKILL, as a lost pod is: real processes, real files."""

from __future__ import annotations

import pathlib
import pickle
import random
import subprocess
import sys
import textwrap
import time

import pytest
from elasticjob_runtime.training import checkpoint

from tests.unit.runtime.training.checkpoint.conftest import full_disk

HALF_WRITTEN = """
    import sys, time
    from elasticjob_runtime.training import checkpoint

    def half(file):
        file.write(b"x" * 100_000)
        print("half", flush=True)
        time.sleep(600)

    checkpoint.save(sys.argv[1], 2, half)
"""

ALWAYS_WRITING = """
    import pickle, sys
    from elasticjob_runtime.training import checkpoint

    step = int(sys.argv[2])
    while True:
        step += 1
        checkpoint.save(sys.argv[1], step, lambda file: pickle.dump([step] * 100_000, file))
        print(step, flush=True)
"""


def start(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *args], stdout=subprocess.PIPE, text=True)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> str:
    """Kills the process and returns the rest of its output."""
    process.kill()
    return process.communicate()[0]


def test_a_writer_killed_during_a_save_leaves_the_previous_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
    writer = start(HALF_WRITTEN, str(tmp_path))
    try:
        assert read_line(writer) == "half"
        assert len(list(tmp_path.glob(".*.tmp"))) == 1
        checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
        assert len(list(tmp_path.glob(".*.tmp"))) == 1, "its writer is alive"
    finally:
        kill(writer)
    found = checkpoint.load(tmp_path, pickle.load)
    assert found is not None
    assert found.state == "one"
    checkpoint.save(tmp_path, 2, lambda file: pickle.dump("two", file))
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert list(tmp_path.glob(".*")) == [], "the dead writer's files are removed"


def test_a_writer_killed_at_any_moment_loses_no_saved_checkpoint(tmp_path: pathlib.Path) -> None:
    step = 0
    for _ in range(8):
        writer = start(ALWAYS_WRITING, str(tmp_path), str(step))
        try:
            output = [read_line(writer)]
            time.sleep(random.uniform(0, 0.05))  # any moment will do
        finally:
            output += kill(writer).split()
        found = checkpoint.load(tmp_path, pickle.load)
        assert found is not None
        assert found.step >= int(output[-1])
        assert found.state == [found.step] * 100_000
        step = found.step


def test_a_full_disk_is_reported_and_keeps_the_previous_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
    with (
        full_disk(50_000),
        pytest.raises(checkpoint.CheckpointError, match=r"Cannot write the checkpoint .*File too large"),
    ):
        checkpoint.save(tmp_path, 2, lambda file: file.write(b"x" * 100_000))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.ckpt"]
