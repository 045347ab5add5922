"""What all tests share: an environment that no test changes for the next one, and signals as in a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.gpu import skip_without_gpus

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # started in a shell's background: what tests start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_gpus(item)


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    """Code that is made for a process of its own, such as the torchrun plug-in, sets variables that programs started by
    a later test would inherit."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
