"""A driver, and the weights of an undisturbed run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.integration.runtime_session.driver import SCRIPT, Driver

SETTINGS = {"SAMPLES": "1000", "BATCH": "16", "EPOCHS": "2", "STEP_SECONDS": "0.01"}
"""The last batch of an epoch has 8 samples. With up to 6 ranks, all means of shares are exact."""
STEPS = 126


@dataclasses.dataclass(frozen=True)
class Run:
    """What one process of a run left."""

    state: dict[str, Any]
    facts: dict[str, Any]

    @classmethod
    def read(cls, output: pathlib.Path) -> Run:
        return cls(
            torch.load(f"{output}.pt", map_location="cpu"), json.loads(pathlib.Path(f"{output}.json").read_text())
        )

    def assert_same_training(self, other: Run) -> None:
        """Bit by bit: every weight, all optimizer states, the scheduler's, and the buffers."""
        assert self.facts["committed"] == other.facts["committed"]
        _assert_equal(self.state, other.state, "state")


def _assert_equal(one: Any, other: Any, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), f"{where}: {one} != {other}"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            _assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            _assert_equal(first, second, f"{where}[{index}]")
    else:
        assert one == other, where


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, plain python, without DDP."""
    output = tmp_path_factory.mktemp("undisturbed") / "plain"
    environment = {**os.environ, **SETTINGS, "STEP_SECONDS": "0", "OUTPUT": str(output)}
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env=environment, check=True)
    return Run.read(output)


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> Iterator[Driver]:
    with contextlib.closing(Driver(tmp_path, SETTINGS)) as driver:
        yield driver
