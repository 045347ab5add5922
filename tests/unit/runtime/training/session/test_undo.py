"""What an interrupted step has changed is put back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.interruption import OVER, OverError
from elasticjob_runtime.training.session.parts import LARGE_BUFFER, Parts
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.undo import Undo

from tests.unit.runtime.training.session.engines import QuietEngine


class Model(torch.nn.Module):
    small: torch.Tensor
    large: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("small", torch.zeros(4))
        self.register_buffer("large", torch.zeros(LARGE_BUFFER))
        self.register_buffer("mask", torch.ones(LARGE_BUFFER))


@pytest.fixture
def model() -> Model:
    return Model()


def test_a_step_that_changes_a_large_buffer_again_and_again_is_undone(model: Model) -> None:
    parts = Parts({"model": model})
    for step in range(3):
        undo = Undo(parts)
        model.large += 1
        model.small += 1
        if step == 2:
            assert undo.restore()
    assert model.large.unique().tolist() == [2.0]
    assert model.small.unique().tolist() == [2.0]


def test_what_a_step_does_to_parameters_without_gradients_is_undone() -> None:
    online, momentum = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1).requires_grad_(False)
    before = momentum.weight.clone()
    undo = Undo(Parts({"online": online, "momentum": momentum}))
    momentum.weight.lerp_(online.weight, 0.5)
    assert undo.restore()
    assert torch.equal(momentum.weight, before)


def test_the_first_change_of_a_large_buffer_cannot_be_undone(model: Model) -> None:
    parts = Parts({"model": model})
    for _ in range(3):
        Undo(parts)
    undo = Undo(parts)
    model.large += 1
    assert not undo.restore(), "the process takes the state from another one"


def test_the_first_step_is_undone_whatever_it_changes(model: Model) -> None:
    parts = Parts({"model": model})
    undo = Undo(parts)
    model.large += 1
    model.small -= 1
    assert undo.restore()
    assert model.large.unique().tolist() == [0.0]
    assert model.small.unique().tolist() == [0.0]


@pytest.mark.parametrize("interrupted_in", [1, 2])
def test_parameters_that_a_script_changes_before_its_optimizer_are_undone_from_the_second_step_on(
    interrupted_in: int,
) -> None:
    """With sharpness-aware minimization, say. The first such step cannot be: the process takes another one's state."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = Parts({"model": model, "optimizer": optimizer})
    engine = QuietEngine(completes_early=True)
    state = TrainingState(parts, snapshots=False)
    state.tear = lambda: lost.append(True)  # type: ignore[method-assign]
    steps = Steps(parts, state, cast(Engine, engine))
    lost: list[bool] = []
    committed = 0

    def commit() -> None:
        nonlocal committed
        committed += 1

    def lose(*_: Any, **__: Any) -> None:
        raise OverError(OVER)

    for number in (1, 2):
        before = model.weight.detach().clone()
        with steps.take(commit):
            with torch.no_grad():
                model.weight.add_(1.0)
            if number == interrupted_in:
                engine.wait_for_collectives = lose  # type: ignore[method-assign]
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        if number == interrupted_in:
            break
    assert committed == interrupted_in - 1
    assert steps.repeats
    assert bool(lost) is (interrupted_in == 1)
    assert torch.equal(model.weight, before) is (interrupted_in == 2)


def test_large_buffers_that_no_step_changes_are_not_copied(model: Model) -> None:
    parts = Parts({"model": model})
    Undo(parts)
    model.small += 1
    assert parts.is_constant(model.mask)
    assert not parts.is_constant(model.small)
    parts.apply(parts.collect())  # another process's state
    assert not parts.is_constant(model.mask)
    assert parts.is_constant(model.mask)


def test_an_optimizer_that_only_wraps_another_one_is_refused_by_name() -> None:
    """Such as Accelerate's: torch cannot register hooks on it."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"optimizer wraps another optimizer \(Wrapper\).* ElasticAccelerator"):
        Parts({"optimizer": Wrapper()})


@pytest.mark.parametrize(
    ("kind", "completes_early", "closure", "copies"),
    [
        pytest.param(torch.optim.SGD, False, None, False, id="Accelerate calls optimizer.step(None)"),
        pytest.param(torch.optim.SGD, False, lambda: 0.0, False, id="the closure fails before anything changes"),
        pytest.param(torch.optim.SGD, True, lambda: 0.0, True, id="what the closure communicates fails later"),
        pytest.param(torch.optim.LBFGS, False, lambda: 0.0, True, id="the closure is called again"),
    ],
)
def test_an_optimizer_is_copied_before_its_step_only_if_communication_may_follow(
    kind: type[torch.optim.Optimizer],
    completes_early: bool,
    closure: Callable[[], float] | None,
    copies: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[torch.optim.Optimizer] = []
    monkeypatch.setattr(Undo, "keep", lambda _, optimizer: kept.append(optimizer))
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer: Any = kind([parameter])  # type: ignore[call-arg]
    parts = Parts({"optimizer": optimizer})
    engine = QuietEngine(completes_early=completes_early)
    with Steps(parts, TrainingState(parts, snapshots=False), cast(Engine, engine)).take(lambda: None):
        optimizer.step(closure)
    assert bool(kept) is copies


def test_modules_and_buffers_that_a_script_adds_later_are_undone_too(model: Model) -> None:
    parts = Parts({"model": model})
    Undo(parts)
    model.later = torch.nn.BatchNorm1d(2)
    undo = Undo(parts)
    model.later(torch.randn(4, 2))
    model.eval()
    assert undo.restore()
    assert model.later.running_mean is not None
    assert (model.later.running_mean.tolist(), model.later.training) == ([0.0, 0.0], True)


def test_a_large_buffer_that_two_modules_share_is_undone(model: Model) -> None:
    other = torch.nn.Module()
    other.register_buffer("large", model.large)
    model.other = other
    undo = Undo(Parts({"model": model}))
    model.large += 1
    assert undo.restore()
    assert model.large.unique().tolist() == [0.0]


def test_a_step_that_is_taken_again_draws_the_same_random_numbers(model: Model) -> None:
    undo = Undo(Parts({"model": model}))
    drawn = (random.random(), torch.rand(1).item())
    assert undo.restore()
    assert (random.random(), torch.rand(1).item()) == drawn


def test_the_state_of_an_optimizer_with_other_groups_of_parameters_is_refused_with_a_sentence() -> None:
    """A script has added a group in the training, and a joiner comes without it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    parts = Parts({"model": model, "optimizer": optimizer})
    optimizer.add_param_group({"params": list(model[1].parameters())})
    state = parts.collect()
    joiner = Parts({"model": model, "optimizer": torch.optim.SGD(model[0].parameters(), lr=0.1)})
    with pytest.raises(ValueError, match=r"groups of \[2, 2\] parameters in the state, and of \[2\] in this process"):
        joiner.apply(state)
