"""`load_checkpoint(from_any_rank=True)`: a checkpoint on one machine serves all ranks."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training import CheckpointError, load_checkpoint, save_checkpoint
from elasticjob_runtime.training.checkpoint import any_rank
from elasticjob_runtime.training.checkpoint.any_rank import choose
from elasticjob_runtime.training.checkpoint.order import NOTHING, State

from tests.unit.runtime.training.sharded.worlds import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def found(step: int, round_number: int = 1) -> State:
    return State(step=step, job="this", fence=Fence(1, 0, round_number))


@pytest.mark.parametrize(
    ("each", "chosen", "reason"),
    [
        pytest.param([NOTHING, NOTHING], None, "no rank has a checkpoint", id="none"),
        pytest.param([found(5), found(5)], None, "all ranks have the checkpoint of step 5", id="a shared directory"),
        pytest.param(
            [NOTHING, found(5), NOTHING],
            1,
            "rank 1 sends the checkpoint of step 5, which these ranks lack: 0, 2",
            id="whichever rank has one",
        ),
        pytest.param(
            [found(4), found(5), found(5)],
            1,
            "rank 1 sends the checkpoint of step 5, which these ranks lack: 0",
            id="the highest step",
        ),
        pytest.param(
            [found(9, 1), found(5, 2)],
            1,
            "rank 1 sends the checkpoint of step 5, which these ranks lack: 0",
            id="a later group, even at an earlier step",
        ),
        pytest.param(
            [State(step=9, job="other", fence=Fence(7, 0, 7)), found(5)],
            1,
            "rank 1 sends the checkpoint of step 5, which these ranks lack: 0",
            id="this job's, whatever another one has left",
        ),
        pytest.param(
            [State(step=3), State(step=9)],
            1,
            "rank 1 sends the checkpoint of step 9, which these ranks lack: 0",
            id="without agents, the highest step",
        ),
    ],
)
def test_all_ranks_continue_from_the_newest_checkpoint_of_any(
    each: list[State], chosen: int | None, reason: str
) -> None:
    choice = choose(each, "this")
    assert (choice.rank, choice.reason) == (chosen, reason)


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
    assert [each[0] for each in run(2, load, tmp_path, tmp_path)] == [7, 7]


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
