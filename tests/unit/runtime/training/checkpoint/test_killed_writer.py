"""A writer that is killed with SIGKILL, as a lost pod is: real processes, real files."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys
import textwrap

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


def test_a_writer_killed_during_a_save_leaves_the_previous_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
    command = [sys.executable, "-c", textwrap.dedent(HALF_WRITTEN), str(tmp_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        assert len(list(tmp_path.glob(".*.tmp"))) == 1
        checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
        assert len(list(tmp_path.glob(".*.tmp"))) == 1, "its writer is alive"
    finally:
        writer.kill()
        writer.communicate()
    found = checkpoint.load(tmp_path, pickle.load)
    assert found is not None
    assert found.state == "one"
    checkpoint.save(tmp_path, 2, lambda file: pickle.dump("two", file))
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert list(tmp_path.glob(".*")) == [], "the dead writer's files are removed"


def test_a_full_disk_is_reported_and_keeps_the_previous_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, 1, lambda file: pickle.dump("one", file))
    with (
        full_disk(50_000),
        pytest.raises(checkpoint.CheckpointError, match=r"Cannot write the checkpoint .*File too large"),
    ):
        checkpoint.save(tmp_path, 2, lambda file: file.write(b"x" * 100_000))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.ckpt"]
