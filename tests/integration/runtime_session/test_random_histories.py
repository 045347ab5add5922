"""A short `make random-run`: kills, stops, joins and leaves, and the weights of an undisturbed run."""

from __future__ import annotations

import pathlib
import random

import pytest

from tests.integration.runtime_session import random_run

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(300)]


def test_random_faults_under_real_agents_leave_no_trace(tmp_path: pathlib.Path) -> None:
    random_run.run(tmp_path, seconds=12, every=3, chance=random.Random(4))
