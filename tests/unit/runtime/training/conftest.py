"""What the tests of saved states share."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from elasticjob_runtime.training.checkpoint import directory


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process remembers about its training ends with each test."""
    monkeypatch.setattr(directory._process, "choice", 0)


@pytest.fixture
def tight_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)
