"""Which ranks train on different samples."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.data_parallel import check_samples, place_of
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.world import SessionError
from elasticjob_runtime.training.sharded import ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.unit.runtime.training.sharded.worlds import needs_fsdp2

pytestmark = [pytest.mark.usefixtures("group"), pytest.mark.timeout(60), needs_fsdp2]


@pytest.fixture
def rank_2_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: 2)
    monkeypatch.setattr(ranks, "size", lambda: 4)


def place(model: nn.Module, data_parallel: Any = None, *, in_replica: bool = True) -> tuple[int, int] | None:
    return place_of(Parts({"model": model}), data_parallel, in_replica=in_replica)


def sharded() -> nn.Module:
    model = nn.Linear(2, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def tensor_parallel() -> nn.Module:
    return parallelize_module(nn.Linear(2, 1), init_device_mesh("cpu", (1,)), ColwiseParallel())


def test_ranks_of_fsdp_take_different_samples() -> None:
    assert place(sharded()) is None, "all of the process group"


@pytest.mark.usefixtures("rank_2_of_4")
def test_ranks_of_tensor_and_pipeline_parallelism_take_the_same_samples() -> None:
    assert place(tensor_parallel(), in_replica=True) == place(tensor_parallel(), in_replica=False) == (0, 1)
    stage = nn.Linear(2, 1)
    assert place(stage) == (0, 1)
    assert place(stage, in_replica=False) is None, "without replicas, a model that is not sharded is in DDP"


@pytest.mark.usefixtures("rank_2_of_4")
def test_a_model_that_is_sharded_in_two_ways_needs_to_say() -> None:
    model = sharded()  # over fewer ranks than there are
    with pytest.raises(TypeError, match="data_parallel=mesh"):
        place(model)
    assert place(model, (1, 2)) == (1, 2)
    assert place(model, init_device_mesh("cpu", (1,))) == (0, 1)


@pytest.mark.usefixtures("rank_2_of_4")
@pytest.mark.parametrize("wrong", [(2, 2), (0, 8), (-1, 2), "data", 3])
def test_a_data_parallel_place_that_is_none_is_named(wrong: object) -> None:
    with pytest.raises(TypeError, match="data_parallel"):
        place(nn.Linear(2, 1), wrong)


def together(given: list[Any], own: Any) -> list[Any]:
    """What the ranks before this one have given, and this one."""
    given.append(own)
    return given


@pytest.mark.parametrize(
    ("positions", "batch", "same"),
    [
        ((0, 2), {"input": torch.ones(2), "name": "b"}, True),
        ((1, 3), {"input": torch.ones(2), "name": "b"}, False),
        ((0, 2), {"input": torch.zeros(2), "name": "b"}, False),
        ((0, 2), {"input": torch.ones(2), "name": "c"}, False),
    ],
)
def test_ranks_of_one_layer_that_were_given_different_samples_are_told(
    monkeypatch: pytest.MonkeyPatch, positions: tuple[int, int], batch: Any, same: bool
) -> None:
    parts, given = Parts({"model": tensor_parallel()}), list[Any]()
    monkeypatch.setattr(ranks, "gather", functools.partial(together, given))
    check_samples(parts, (0, 2), {"input": torch.ones(2), "name": "b"})
    with contextlib.nullcontext() if same else pytest.raises(SessionError, match="given different samples"):
        check_samples(parts, positions, batch)


def test_ranks_at_different_places_of_fsdp_may_have_different_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "gather", lambda own: [((1,), "other"), own])
    check_samples(Parts({"model": sharded()}), (0, 2), torch.ones(2))


def test_a_mesh_of_two_dimensions_is_not_one_of_them() -> None:
    with pytest.raises(TypeError, match="of one dimension"):
        place(nn.Linear(2, 1), init_device_mesh("cpu", (1, 1)))
