"""load_checkpoint and save_checkpoint take memory first."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elasticjob_runtime.training import CheckpointError, checkpoint, load_checkpoint, progress, save_checkpoint

pytestmark = pytest.mark.torch

NewProcess = Callable[[int], None]


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> progress._State:
    monkeypatch.setattr(progress, "_state", progress._State())
    return progress._state


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((10,), float(step))}


def loaded_step(path: pathlib.Path) -> int | None:
    found = load_checkpoint(path)
    assert found is None or torch.equal(found["weights"], state(found["step"])["weights"])
    return None if found is None else int(found["step"])


def spoil(path: pathlib.Path) -> None:
    """Damages all files, so that only memory can have the state."""
    for file in path.glob("*.ckpt"):
        file.write_bytes(b"x" + file.read_bytes()[1:])


def test_the_newest_checkpoint_comes_from_memory(tmp_path: pathlib.Path, new_process: NewProcess) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, state(step))
    spoil(tmp_path)
    new_process(2)
    assert loaded_step(tmp_path) == 20
    assert progress._state.last_checkpoint_step == 20


def test_steps_that_are_only_in_memory_are_not_lost(tmp_path: pathlib.Path, new_process: NewProcess) -> None:
    save_checkpoint(tmp_path, state(10))
    for step in range(11, 18):
        save_checkpoint(tmp_path, state(step), durable=False)
    new_process(2)
    assert loaded_step(tmp_path) == 17
    assert checkpoint.steps(tmp_path) == [10]


@pytest.mark.parametrize("name", ["none", os.fsdecode(b"caf\xe9")], ids=["plain", "not UTF-8"])
def test_no_disk_is_needed(tmp_path: pathlib.Path, new_process: NewProcess, name: str) -> None:
    save_checkpoint(tmp_path / name, state(5), durable=False)
    new_process(2)
    assert loaded_step(tmp_path / name) == 5
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("round_number", "step"), [(1, 20), (2, 12)], ids=["of a higher step", "of a later group that went back"]
)
def test_a_checkpoint_that_was_saved_on_another_machine_since_wins(
    tmp_path: pathlib.Path, new_process: NewProcess, monkeypatch: pytest.MonkeyPatch, round_number: int, step: int
) -> None:
    save_checkpoint(tmp_path, state(10))
    for later in range(11, 18):
        save_checkpoint(tmp_path, state(later), durable=False)
    monkeypatch.setenv("ELASTICJOB_MEMORY_SNAPSHOTS", "0")
    new_process(round_number)
    save_checkpoint(tmp_path, state(step))
    monkeypatch.delenv("ELASTICJOB_MEMORY_SNAPSHOTS")
    new_process(round_number + 1)
    assert loaded_step(tmp_path) == step


def test_another_path_has_another_state(tmp_path: pathlib.Path, new_process: NewProcess) -> None:
    save_checkpoint(tmp_path / "one", state(10), durable=False)
    new_process(2)
    assert loaded_step(tmp_path / "two") is None
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert loaded_step(tmp_path / "link") == 10, "the same folder by another name"


def test_steps_that_other_machines_cannot_find_are_not_used(
    tmp_path: pathlib.Path, new_process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, ranks would start from different steps."""
    save_checkpoint(tmp_path, state(10))
    save_checkpoint(tmp_path, state(11), durable=False)
    new_process(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert loaded_step(tmp_path) == 10
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert loaded_step(tmp_path) == 11


def test_a_rejected_group_leaves_nothing_in_memory(tmp_path: pathlib.Path, new_process: NewProcess) -> None:
    save_checkpoint(tmp_path, state(1))
    new_process(3)
    save_checkpoint(tmp_path, state(2))
    new_process(2)
    with pytest.raises(CheckpointError, match="round 2"):
        save_checkpoint(tmp_path, state(50))
    new_process(4)
    assert loaded_step(tmp_path) == 2


def test_objects_are_refused_as_on_the_disk(tmp_path: pathlib.Path, new_process: NewProcess) -> None:
    save_checkpoint(tmp_path, {"step": 3, "path": pathlib.PurePosixPath("/a")})
    new_process(2)
    with pytest.raises(CheckpointError, match="weights_only=False"):
        load_checkpoint(tmp_path)
    spoil(tmp_path)
    found = load_checkpoint(tmp_path, weights_only=False)
    assert found is not None
    assert found["path"] == pathlib.PurePosixPath("/a")


def test_a_state_without_a_step_cannot_be_in_memory_only(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="durable=False needs a step"):
        save_checkpoint(tmp_path, {"a": 1}, durable=False)


def test_without_an_agent_only_the_disk_counts(tmp_path: pathlib.Path) -> None:
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2), durable=False)
    assert loaded_step(tmp_path) == 1
