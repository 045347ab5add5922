"""How DDP communicates in a session, whatever the size of its gradients."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training.session import torch_private, torch_reducer
from elasticjob_runtime.training.session.feed import Cursor, Share
from elasticjob_runtime.training.session.gradients import WAIT_TOGETHER, ShareWeight, interruptible
from elasticjob_runtime.training.session.interruption import Interruption
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.timeout(60)

SMALL, LARGE = 100, WAIT_TOGETHER // 2
"""Features of a model: with this many, gradients are waited for together, or for each bucket."""


class Trained:
    """A model, and the session's part of its communication."""

    def __init__(self, features: int) -> None:
        self.model = DistributedDataParallel(torch.nn.Linear(features, 1), bucket_cap_mb=1)
        self.weight = ShareWeight([self.model])
        self.interruption = Interruption()
        self.guarded = 0
        interruptible([self.model], self.weight, self._communicate, self.interruption.wait)
        torch_reducer.rebuild(self.model)
        self.inputs = torch.randn(4, features)

    def _communicate(self, begin: Any) -> Any:
        self.guarded += 1
        return self.interruption.guard(begin())

    def gradients(self) -> list[torch.Tensor]:
        self.model.zero_grad()
        self.model(self.inputs).mean().backward()
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def enter_pair(self, *, rank: int) -> Any:
        """A world of two, in which this process has `rank`. Returns the group of the other one."""
        store = PrefixStore("pair", HashStore())
        with ThreadPoolExecutor(2) as pool:
            groups = list(pool.map(lambda rank: torch_private.connect(store, rank, 2, 30.0), range(2)))
        torch_private.replace_group(groups[rank], store, rank, 2, 30.0)
        torch_reducer.rebuild(self.model)
        return groups[1 - rank]

    def assert_ends_soon(self) -> None:
        threading.Timer(0.1, self.interruption.end).start()
        with pytest.raises(RuntimeError) as raised:
            self.gradients()
        assert torch_private.is_link_error(raised.value)

    def weigh(self, samples: int, batch: int, world_size: int) -> None:
        share = Share(positions=tuple(range(samples)), samples=samples, batch=batch, next=Cursor())
        self.weight.begin(share, world_size)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("features", [SMALL, LARGE])
def test_gradients_are_weighted_in_each_step(features: int) -> None:
    trained = Trained(features)
    expected = [2 * trained.inputs.mean(0, keepdim=True) / 5, torch.tensor([2 / 5])]
    trained.weigh(2, 5, 3)
    for _ in range(3):  # DDP lays its buckets out again after the first
        assert all(map(torch.allclose, trained.gradients(), expected))
    trained.weigh(5, 5, 1)
    assert all(torch.allclose(got, 5 * want / 2) for got, want in zip(trained.gradients(), expected, strict=True))


@pytest.mark.usefixtures("group")
def test_a_layer_that_is_frozen_when_the_world_changes_is_reduced_once_it_is_trained_again() -> None:
    trained = Trained(SMALL)
    trained.model.module.weight.requires_grad_(False)
    torch_reducer.rebuild(trained.model)
    assert not trained.model.module.weight.requires_grad
    trained.model.module.weight.requires_grad_(True)
    trained.weigh(2, 5, 3)
    expected = [2 * trained.inputs.mean(0, keepdim=True) / 5, torch.tensor([2 / 5])]
    assert all(map(torch.allclose, trained.gradients(), expected))


@pytest.mark.usefixtures("group")
def test_only_large_gradients_need_python_in_the_thread_of_gloo() -> None:
    small, large = Trained(SMALL), Trained(LARGE)
    small.gradients(), large.gradients()
    assert small.guarded == 0 < large.guarded


@pytest.mark.parametrize("features", [SMALL, LARGE])
@pytest.mark.usefixtures("group")
def test_a_backward_pass_ends_with_its_world(features: int) -> None:
    trained = Trained(features)
    _silent = trained.enter_pair(rank=0)
    trained.assert_ends_soon()


@pytest.mark.usefixtures("group")
def test_what_a_reducer_exchanges_besides_gradients_ends_with_its_world() -> None:
    """Rank 0 sends how it lays out the buckets before the second step. C++ waits for it."""
    trained = Trained(SMALL)
    other = trained.enter_pair(rank=1)
    first = other.allreduce([torch.zeros(SMALL + 1)])
    trained.gradients()
    first.wait()
    trained.assert_ends_soon()


def test_a_model_that_does_not_use_all_parameters_trains_and_keeps_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    dist.init_process_group("gloo", store=PrefixStore("script", store), rank=0, world_size=1)
    layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    monkeypatch.setattr(layers, "forward", layers[0].forward)
    waited: list[Any] = []

    def wait(work: Any) -> None:
        waited.append(work)
        work.wait()

    interruptible([model], ShareWeight([model]), lambda begin: begin(), wait)
    for name in ("first", "second"):
        gloo = torch_private.connect(PrefixStore(f"{name}/group", store), 0, 1, 5.0)
        torch_private.replace_group(gloo, PrefixStore(name, store), 0, 1, 5.0)
        torch_reducer.rebuild(model)
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
        assert len(waited) == 4, "gradients, and which parameters were used, in each step"
        waited.clear()
    dist.destroy_process_group()
    alive = weakref.ref(gloo)
    del model, gloo
    assert alive() is None
