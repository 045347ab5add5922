"""What all tests share: an environment that no test changes for the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    """Code that is made for a process of its own, such as the torchrun plug-in, sets variables that programs started by
    a later test would inherit."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
