"""`load_checkpoint(from_any_rank=True)`: a checkpoint on one machine serves all ranks."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training import CheckpointError, load_checkpoint, save_checkpoint
from elasticjob_runtime.training.checkpoint import any_rank
from elasticjob_runtime.training.checkpoint.__main__ import main

from tests.unit.runtime.training.sharded.worlds import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((3, 1 << 10), float(step)), "names": ["a", ("b", 1)]}


def own_disk(folder: pathlib.Path) -> pathlib.Path:
    return folder / f"disk-{dist.get_rank()}"


def load(folder: pathlib.Path) -> tuple[int, float, list[Any]] | None:
    any_rank.PIECE = 1000
    loaded = load_checkpoint(own_disk(folder), from_any_rank=True)
    return None if loaded is None else (loaded["step"], float(loaded["weights"].sum()), loaded["names"])


def test_a_checkpoint_on_one_machines_disk_serves_all_ranks(tmp_path: pathlib.Path) -> None:
    save_checkpoint(tmp_path / "disk-1", state(7))
    assert run(3, load, tmp_path, tmp_path) == [(7, 7.0 * (3 << 10), ["a", ("b", 1)])] * 3


def test_an_older_checkpoint_on_the_own_disk_is_not_used(tmp_path: pathlib.Path) -> None:
    save_checkpoint(tmp_path / "disk-0", state(6))
    save_checkpoint(tmp_path / "disk-1", state(7))
    assert [item[0] for item in run(2, load, tmp_path, tmp_path)] == [7, 7]


def test_a_checkpoint_that_a_person_has_chosen_on_one_machine_outranks_what_the_others_have(
    tmp_path: pathlib.Path,
) -> None:
    save_checkpoint(tmp_path / "disk-0", state(5))
    for step in (6, 7):
        save_checkpoint(tmp_path / "disk-0", state(step))
        save_checkpoint(tmp_path / "disk-1", state(step))
    assert main([str(tmp_path / "disk-0"), "--use", "step-000000000005.ckpt"]) == 0
    assert [item[0] for item in run(2, load, tmp_path, tmp_path)] == [5, 5]
    assert run(2, load_and_save_on_the_other, tmp_path, tmp_path, 6) == [None, None]
    assert [item[0] for item in run(2, load, tmp_path, tmp_path)] == [6, 6]


def load_and_save_on_the_other(folder: pathlib.Path, step: int) -> None:
    load(folder)
    if dist.get_rank() == 1:
        save_checkpoint(own_disk(folder), state(step))


def test_without_any_checkpoint_all_ranks_begin(tmp_path: pathlib.Path) -> None:
    assert run(2, load, tmp_path, tmp_path) == [None, None]


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: pathlib.Path) -> None:
    (tmp_path / "disk-1").write_text("a file")
    outcomes = run(2, load, tmp_path, tmp_path)
    assert [kind for kind, _ in outcomes] == ["CheckpointError"] * 2
    assert all(message.startswith("Rank 1: Cannot read the checkpoint directory") for _, message in outcomes)


def test_one_process_needs_no_process_group(tmp_path: pathlib.Path) -> None:
    save_checkpoint(tmp_path, state(3))
    loaded = load_checkpoint(tmp_path, from_any_rank=True)
    assert loaded is not None
    assert loaded["step"] == 3


def test_ranks_without_a_process_group_are_told_to_make_one_first(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match=r"after torch\.distributed\.init_process_group"):
        load_checkpoint(tmp_path, from_any_rank=True)


def test_a_checkpoint_that_one_rank_cannot_read_is_taken_from_one_that_can(tmp_path: pathlib.Path) -> None:
    for disk in ("disk-0", "disk-1"):
        save_checkpoint(tmp_path / disk, state(7))
    (unreadable,) = (tmp_path / "disk-0").glob("*.ckpt")
    unreadable.unlink()
    unreadable.symlink_to("not-mounted")
    assert [item[0] for item in run(2, load, tmp_path, tmp_path)] == [7, 7]
    save_checkpoint(tmp_path / "disk-1", state(6))
    next((tmp_path / "disk-1").glob("*7.ckpt")).unlink()
    for kind, message in run(2, load, tmp_path, tmp_path):
        assert kind == "CheckpointError"
        assert message.startswith("Rank 0: Cannot read the checkpoint")
