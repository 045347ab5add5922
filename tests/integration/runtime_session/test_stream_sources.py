"""Streams of real packages: every sample once over a restart, with the source's own state where it has one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = pathlib.Path(__file__).with_name("stream_sources.py")
EXPECTED = sorted(f"{shard}-{item}" for shard in range(8) for item in range(40))


@pytest.mark.parametrize("loaders", ["0", pytest.param("2", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "source",
    ["hugging_face", "shuffled_hugging_face", "torchdata_nodes", "torchdata_loader", "parquet", "webdataset"],
)
def test_every_sample_of_a_real_source_is_trained_on_once_over_a_restart(
    source: str, loaders: str, tmp_path: pathlib.Path
) -> None:
    python = framework_environments.interpreter(framework_environments.SOURCES)
    done = subprocess.run(
        [str(python), str(SCRIPT), source, str(tmp_path), loaders],
        env={**os.environ, **framework_environments.environment(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert len(first) == 96
    assert sorted(first + second) == EXPECTED
    forgets = source == "shuffled_hugging_face"  # its buffer
    assert ("the state of its source does not restore it" in done.stderr) is forgets
