"""Snapshots of shards, in the memory of agents."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")

from elasticjob_runtime.training import load_sharded_checkpoint, save_sharded_checkpoint

from tests.unit.runtime.training.sharded.worlds import Training, needs_fsdp2, run

Agents = tuple[str, str, str]

pytestmark = [needs_fsdp2, pytest.mark.torch, pytest.mark.timeout(240)]


def train(path: pathlib.Path, last: int, *durable: int) -> dict[str, Any]:
    """Each step is in memory, and those of `durable` also on the disk."""
    training = Training()
    for step in range((load_sharded_checkpoint(path, training.parts) or 0) + 1, last + 1):
        training.step(step)
        save_sharded_checkpoint(path, training.parts, step=step, durable=step in durable)
    return training.whole()


def resume(path: pathlib.Path) -> tuple[int | None, dict[str, Any]]:
    training = Training()
    return load_sharded_checkpoint(path, training.parts), training.whole()


def places(agents: Agents, *counts: int) -> list[tuple[str, int]]:
    """Socket and local rank of each rank, for so many ranks at each agent."""
    return [(agent, rank) for agent, count in zip(agents, counts, strict=False) for rank in range(count)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2,), (2, 2)),
        pytest.param((2, 1), (2, 1), marks=pytest.mark.nightly),
        pytest.param((1, 1), (1, 1, 1), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_training_continues_from_memory_whatever_the_number_of_ranks(
    tmp_path: pathlib.Path, agents: Agents, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    saved = run(sum(before), train, tmp_path, tmp_path / "c", 3, agents=places(agents, *before))
    found = run(sum(after), resume, tmp_path, tmp_path / "c", agents=places(agents, *after), round_number=2)
    assert found == [(3, saved[0])] * sum(after)
    assert not (tmp_path / "c").exists()


def test_training_from_memory_ends_like_an_undisturbed_one(tmp_path: pathlib.Path, agents: Agents) -> None:
    undisturbed = run(2, train, tmp_path, tmp_path / "d", 5)
    for round_number, last in enumerate((2, 4, 5), start=1):
        found = run(2, train, tmp_path, tmp_path / "c", last, agents=places(agents, 1, 1), round_number=round_number)
    assert found == undisturbed


def test_storage_is_used_if_it_is_newer_or_memory_is_lost(tmp_path: pathlib.Path, agents: Agents) -> None:
    run(2, train, tmp_path, tmp_path / "c", 3, 2, agents=places(agents, 1, 1))
    lost = [places(agents, 1, 1)[0], (agents[1], 1)]  # no process of this local rank has been there
    assert run(2, resume, tmp_path, tmp_path / "c", agents=lost, round_number=2)[0][0] == 2
    assert run(2, resume, tmp_path, tmp_path / "c", agents=places(agents, 1, 1), round_number=3)[0][0] == 3
