"""No kill and no I/O error, in whatever moment of a save or a load, loses a checkpoint."""

from __future__ import annotations

import subprocess
import sys


def test_random_histories_of_kills_and_errors_lose_no_checkpoint() -> None:
    """In a process of its own: it forks, and has no threads."""
    run = "from tests.unit.runtime.training.checkpoint import trials; [trials.run(seed, 40) for seed in range(10)]"
    subprocess.run([sys.executable, "-c", run], check=True, timeout=120)
