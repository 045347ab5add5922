"""Who saves, and a disk that is full."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.contract import Env


@pytest.fixture
def act_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets who this process is, as an agent does."""

    def act(token: str, job: str = "job", run_id: str = "job-1", *, operator: bool = True) -> None:
        values = {Env.FENCE: token, Env.JOB_UID: job, Env.RUN: token.partition(".")[0], "TORCHELASTIC_RUN_ID": run_id}
        for name, value in values.items():
            if value and (operator or name not in (Env.JOB_UID, Env.RUN)):
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)

    return act


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """As a full disk: the write of a file fails after `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
