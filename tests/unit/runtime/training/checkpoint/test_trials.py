"""No kill and no I/O error, in whatever moment of a save or a load, loses a checkpoint."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAY = "from tests.unit.runtime.training.checkpoint import trials; [trials.run(seed, {}, {}) for seed in range({})]"


def test_random_histories_of_kills_and_errors_lose_no_checkpoint() -> None:
    """In a process of its own: it forks, and has no threads."""
    subprocess.run([sys.executable, "-c", PLAY.format(15, "trials.History", 10)], check=True, timeout=120)


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(240)
def test_random_histories_of_kills_and_errors_lose_no_sharded_checkpoint() -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", PLAY.format(25, "trials.ShardedHistory", 2)], check=True, timeout=200)
