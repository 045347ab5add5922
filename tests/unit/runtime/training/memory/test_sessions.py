"""A session takes the newest state for which its job is responsible, in memory or on storage."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.checkpoint import CheckpointError, reading
from elasticjob_runtime.training.checkpoint.__main__ import main

from hack.support import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]

NewProcess = Callable[[int], None]


def train(path: pathlib.Path, steps: int, *, every: int = 0, snapshot: bool = False) -> int:
    """Returns after which step a new process continues."""
    model = torch.nn.Linear(1, 1)
    session = ElasticSession(model=model)
    session.checkpoint(path, every=every)
    began = session.committed_steps
    for _, _ in zip(range(steps), session.batches(range(1000), batch_size=1), strict=False):
        with session.step():
            pass
    if snapshot:
        session._state.take_snapshot()
    return began


@pytest.fixture
def other_job(new_process: NewProcess, monkeypatch: pytest.MonkeyPatch) -> NewProcess:
    """From here on, this process belongs to another job, of that run, whose agent is elsewhere."""

    def start(run: int) -> None:
        new_process(1)
        monkeypatch.setenv(Env.FENCE, f"{run}.0.3")
        monkeypatch.setenv(Env.MEMORY_SNAPSHOTS, "0")

    return start


@pytest.fixture
def own_job(new_process: NewProcess, monkeypatch: pytest.MonkeyPatch) -> NewProcess:
    def start(round_number: int) -> None:
        monkeypatch.delenv(Env.MEMORY_SNAPSHOTS, raising=False)
        new_process(round_number)

    return start


def test_memory_is_newer_than_the_checkpoint_of_another_job_from_which_it_continued(
    tmp_path: pathlib.Path, own_job: NewProcess, other_job: NewProcess
) -> None:
    other_job(50)
    assert train(tmp_path, 2, every=1) == 0
    own_job(1)
    assert train(tmp_path, 3, snapshot=True) == 2
    own_job(2)
    assert train(tmp_path, 0) == 5


def test_a_checkpoint_that_another_job_has_saved_since_is_newer_than_memory(
    tmp_path: pathlib.Path, own_job: NewProcess, other_job: NewProcess
) -> None:
    own_job(1)
    assert train(tmp_path, 2, every=1) == 0
    assert train(tmp_path, 7, snapshot=True) == 2
    other_job(50)
    assert train(tmp_path, 2, every=1) == 2
    own_job(2)
    assert train(tmp_path, 0) == 4


@pytest.mark.parametrize("released", [False, True], ids=["chosen", "chosen, and the claim released"])
def test_a_checkpoint_that_a_person_chooses_is_newer_than_memory(
    tmp_path: pathlib.Path, own_job: NewProcess, released: bool
) -> None:
    own_job(1)
    train(tmp_path, 4, every=2, snapshot=True)
    (chosen,) = tmp_path.glob("step-*2-*.ckpt")
    assert main([str(tmp_path), "--use", chosen.name]) == 0
    if released:
        assert main([str(tmp_path), "--release"]) == 0
    own_job(2)
    assert train(tmp_path, 3, snapshot=True) == 2
    own_job(3)
    assert train(tmp_path, 0) == 5


def make_unreadable(file: pathlib.Path) -> None:
    file.unlink()
    file.symlink_to("not-mounted")


def test_a_file_that_cannot_be_read_does_not_stop_a_session_that_has_something_newer_in_memory(
    tmp_path: pathlib.Path, own_job: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAUSE", 0.0)
    own_job(1)
    train(tmp_path, 4, every=2)
    own_job(2)
    assert train(tmp_path, 3, snapshot=True) == 4
    make_unreadable(max(tmp_path.glob("*.ckpt")))
    own_job(3)
    assert train(tmp_path, 0) == 7


def test_a_file_that_cannot_be_read_stops_a_session_if_what_is_in_memory_is_older(
    tmp_path: pathlib.Path, own_job: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAUSE", 0.0)
    own_job(1)
    train(tmp_path, 4, every=2, snapshot=True)
    monkeypatch.setenv(Env.MEMORY_SNAPSHOTS, "0")
    own_job(2)
    train(tmp_path, 2, every=2)
    newest = eventually(lambda: next(tmp_path.glob("step-*6-*.ckpt"), None), what="the last checkpoint is written")
    assert newest
    make_unreadable(newest)
    own_job(3)
    with pytest.raises(CheckpointError, match=f"Cannot read the checkpoint {newest}"):
        train(tmp_path, 0)
