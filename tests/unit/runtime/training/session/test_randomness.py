"""A session that continues from a checkpoint draws the random numbers that it would have drawn."""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.session import randomness, state
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.unit.runtime.training.sharded.worlds import needs_fsdp2, run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests draw, too."""
    found = randomness.state()
    yield
    randomness.restore(found)


def draw() -> list[float]:
    numpy: Any = pytest.importorskip("numpy")
    return [random.random(), float(torch.rand(1)), float(numpy.random.random()), float(numpy.random.normal())]


def train(
    path: pathlib.Path, steps: int, seed: int, sharded: bool = False, *, save_last: bool = False
) -> list[list[float]]:
    """What this rank draws in each step. save_last: at the end, as before all members leave."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)
    pytest.importorskip("numpy").random.seed(seed + rank)
    draw()
    model = nn.Linear(1, 1)
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    session = ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    session.checkpoint(path, every=3)
    drawn = []
    for _ in session.batches(range(40), batch_size=4, collate_fn=list):
        with session.step():
            drawn.append(draw())
        steps -= 1
        if not steps:
            break
    if save_last:
        session._state.save_last()
    return drawn


def test_random_numbers_go_on_after_a_restart(tmp_path: pathlib.Path) -> None:
    undisturbed = train(tmp_path / "a", 6, seed=1)
    train(tmp_path / "b", 4, seed=1)
    assert train(tmp_path / "b", 3, seed=2) == undisturbed[3:]


def test_the_checkpoint_before_a_planned_change_has_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = train(tmp_path / "a", 6, seed=1)
    calls = itertools.count(1)
    monkeypatch.setattr(state, "session_ends", lambda: next(calls) == 4)
    train(tmp_path / "b", 4, seed=1)
    assert train(tmp_path / "b", 2, seed=2) == undisturbed[4:]


def test_the_checkpoint_of_a_process_that_leaves_alone_has_them(tmp_path: pathlib.Path) -> None:
    undisturbed = train(tmp_path / "a", 6, seed=1)
    train(tmp_path / "b", 4, seed=1, save_last=True)
    assert train(tmp_path / "b", 2, seed=2) == undisturbed[4:]


@needs_fsdp2
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
def test_each_rank_goes_on_with_its_own_if_there_are_as_many(tmp_path: pathlib.Path, sharded: bool) -> None:
    def each(path: str, steps: int, seed: int, size: int = 2) -> list[Any]:
        return run(size, train, tmp_path, tmp_path / path, steps, seed, sharded)

    undisturbed = each("a", 6, 1)
    each("b", 4, 1)
    resumed = each("b", 3, 2)
    assert resumed == [drawn[3:] for drawn in undisturbed]
    assert resumed[0] != resumed[1]
    assert each("b", 1, 2, size=1)[0][0] not in [drawn[0] for drawn in resumed], "another number of ranks"


def test_random_numbers_of_numpy_are_kept_as_plain_data(tmp_path: pathlib.Path) -> None:
    numpy: Any = pytest.importorskip("numpy")
    numpy.random.normal()  # it keeps a second one
    torch.save(randomness.state(), tmp_path / "state")
    expected = draw()
    randomness.restore(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == expected
