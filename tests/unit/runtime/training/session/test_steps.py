"""A step whose collectives may not be done changes nothing, wherever the script would use their results first.

The engine's part of this is played: it says that the world is over where NCCL would, once kernels are aborted.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.interruption import OVER, OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.world import SessionError
from torch.distributed.fsdp import fully_shard

from tests.unit.runtime.training.session.engines import QuietEngine

LINEAR = torch.nn.Linear

pytestmark = pytest.mark.timeout(60)


class Aborted(QuietEngine):
    """Its world ends after `waits` waits for collectives."""

    def __init__(self, waits: int) -> None:
        super().__init__(completes_early=True)
        self.waits = waits

    def wait_for_collectives(self, *, used: bool = True) -> None:  # noqa: ARG002
        if not self.waits:
            raise OverError(OVER)
        self.waits -= 1


class Training:
    def __init__(self, waits: int, *, optimizers: int = 1, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        self.model = torch.nn.Linear(2, 1, bias=False)
        self.optimizers = [kind(self.model.parameters(), lr=0.1) for _ in range(optimizers)]  # type: ignore[call-arg]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        named: dict[str, Any] = {f"optimizer_{index}": optimizer for index, optimizer in enumerate(self.optimizers)}
        self.parts = Parts({"model": self.model, "scaler": self.scaler, **named})
        self.engine = Aborted(waits)
        self.steps = Steps(self.parts, TrainingState(self.parts, snapshots=False), cast(Engine, self.engine))
        self.before = self.model.weight.detach().clone()
        self.scale_before = self.scaler.state_dict()
        self.committed = 0

    def commit(self) -> None:
        self.committed += 1

    def loss(self) -> torch.Tensor:
        return self.model(torch.ones(1, 2)).sum()  # type: ignore[no-any-return]

    def take(self, *, trial: bool = False) -> contextlib.AbstractContextManager[None]:
        return self.steps.take(self.commit, trial=trial)

    def train(self) -> None:
        """The backward pass, and a step of the first optimizer."""
        self.loss().backward()
        self.optimizers[0].step()

    def closure(self) -> float:
        loss = self.loss()
        loss.backward()
        return loss.item()

    def assert_nothing_changed(self) -> None:
        assert torch.equal(self.model.weight, self.before)
        assert self.model.weight.grad is None
        assert self.scaler.state_dict() == self.scale_before
        assert self.committed == 0
        assert self.steps.broken == OVER


def test_an_optimizer_never_uses_gradients_of_a_world_that_is_over() -> None:
    training = Training(waits=0)
    with training.take():
        training.train()
    training.assert_nothing_changed()


def use_a_scaler(training: Training) -> None:
    """It would skip the optimizer if gradients are not finite, and the script would lower the scale."""
    (training.loss() * float("inf")).backward()
    training.scaler.step(training.optimizers[0])
    training.scaler.update()


def use_two_optimizers(training: Training) -> None:
    training.train()
    training.loss().backward()
    training.optimizers[1].step()


def use_a_closure(training: Training) -> None:
    training.optimizers[0].step(training.closure)


@pytest.mark.parametrize(
    ("use", "training"),
    [
        pytest.param(use_a_scaler, {"waits": 0}, id="a scaler never looks at gradients"),
        pytest.param(use_two_optimizers, {"waits": 1, "optimizers": 2}, id="a second optimizer waits again"),
        pytest.param(use_a_closure, {"waits": 1, "kind": torch.optim.LBFGS}, id="a closure is undone"),
        pytest.param(lambda training: training.loss().backward(), {"waits": 0}, id="no optimizer, and no step counts"),
    ],
)
def test_a_step_whose_collectives_are_not_done_changes_nothing(
    use: Callable[[Training], None], training: dict[str, Any]
) -> None:
    lost = Training(**training)
    with lost.take():
        use(lost)
    lost.assert_nothing_changed()


def test_an_evaluation_gives_no_number_of_a_world_that_is_over() -> None:
    with pytest.raises(OverError):
        Training(waits=0).steps.evaluate(lambda: 0.7)
    assert Training(waits=1).steps.evaluate(lambda: 0.7) == 0.7


def test_an_evaluation_in_a_replica_is_no_vote_and_a_planned_change_waits_for_it() -> None:
    training = Training(waits=0)
    training.engine.votes = True
    assert training.steps.evaluate(lambda: training.engine.evaluates) is True


def accumulated() -> contextlib.AbstractContextManager[object]:
    return pytest.raises(SessionError, match="uses gradients of an earlier one")


@pytest.mark.parametrize("in_place", [True, False])
def test_gradients_accumulated_over_several_steps_end_the_training(in_place: bool) -> None:
    """An interrupted step would lose them, and so would a checkpoint."""
    training = Training(waits=9)
    if not in_place:
        training.steps = Steps(training.parts, TrainingState(training.parts, snapshots=False), None)
    with training.take():
        training.loss().backward()

    with accumulated(), training.take():
        training.train()
    assert torch.equal(training.model.weight, training.before)
    assert training.committed == 1


def test_gradients_that_no_optimizer_ever_uses_may_accumulate() -> None:
    """In a script that is tried without its optimizer's step, say."""
    training = Training(waits=9)
    for _ in range(3):
        with training.take():
            training.loss().backward()
    assert training.committed == 3


@pytest.mark.parametrize("zero_grad", ["optimizer", "in place", "model", "model in place", "at the end"])
def test_a_step_whose_gradients_are_left_out_may_be_followed_by_others(zero_grad: str) -> None:
    """The script has found that they are not finite, say."""
    training = Training(waits=9)
    zeroes = training.model if zero_grad.startswith("model") else training.optimizers[0]
    for steps in (False, True, False, True):
        with training.take():
            if zero_grad != "at the end":
                zeroes.zero_grad(set_to_none="in place" not in zero_grad)
            training.loss().backward()
            if steps:
                training.optimizers[0].step()
            if zero_grad == "at the end":
                zeroes.zero_grad(set_to_none=False)
    assert training.committed == 4


@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_a_step_that_does_not_train_may_stand_between_others(left_out: bool, closure: bool) -> None:
    """The gradients that it finds were used, or will be left out. Lightning validates so, and steps with a closure."""
    training = Training(waits=99)
    (optimizer,) = training.optimizers

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        return loss

    def train() -> None:
        with training.take():
            if closure:
                optimizer.step(compute)  # type: ignore[arg-type]
            else:
                compute()
                optimizer.step()

    train()
    if left_out:
        with training.take():
            compute()
    for _ in range(2):
        with training.take():
            pass
    train()
    assert training.committed == 4 + left_out


def test_gradients_accumulated_after_a_step_that_trained_end_the_training() -> None:
    training = Training(waits=9)
    for steps_left_out in range(3):
        with training.take():
            training.optimizers[0].zero_grad()
            training.loss().backward()
            if not steps_left_out:
                training.optimizers[0].step()

    with accumulated(), training.take():
        training.train()


def test_gradients_accumulated_after_the_smallest_parameter_was_frozen_end_the_training() -> None:
    model = LINEAR(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = Parts({"model": model, "optimizer": optimizer})
    steps = Steps(parts, TrainingState(parts, snapshots=False), None)

    def train(*, step: bool) -> None:
        with steps.take(lambda: None):
            model(torch.ones(1, 2)).sum().backward()
            if step:
                optimizer.step()
                optimizer.zero_grad()

    train(step=True)
    model.bias.requires_grad_(False)
    train(step=True)
    train(step=False)
    with accumulated():
        train(step=True)


def test_gradients_accumulated_for_one_of_two_optimizers_end_the_training() -> None:
    """The other one steps each time."""
    models = [LINEAR(2, 1), LINEAR(2, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    named = {"one": models[0], "other": models[1], "first": optimizers[0], "second": optimizers[1]}
    parts = Parts(named)
    steps = Steps(parts, TrainingState(parts, snapshots=False), None)

    def train(optimizer: torch.optim.Optimizer, *, zero: bool) -> None:
        with steps.take(lambda: None):
            if zero:
                optimizers[1].zero_grad()
            optimizers[0].zero_grad()
            sum(model(torch.ones(1, 2)).sum() for model in models).backward()
            optimizers[0].step()
            optimizer.step()

    train(optimizers[0], zero=False)
    train(optimizers[1], zero=True)  # what was left is not used
    train(optimizers[0], zero=True)
    with accumulated():
        train(optimizers[1], zero=False)


@pytest.fixture
def sharded(group: None, monkeypatch: pytest.MonkeyPatch) -> Training:  # noqa: ARG001
    """Its model is sharded by FSDP, over one rank."""
    monkeypatch.setattr(torch.nn, "Linear", lambda *args, **options: fully_shard(LINEAR(*args, **options)))
    return Training(waits=99)


def test_gradients_of_a_sharded_model_that_fsdp_keeps_end_the_training(sharded: Training) -> None:
    cast(Any, sharded.model).set_requires_gradient_sync(False)
    with accumulated(), sharded.take():
        sharded.loss().backward()


@pytest.mark.parametrize("zero", [False, True])
def test_gradients_of_a_sharded_model_are_left_out_by_zero_grad(sharded: Training, zero: bool) -> None:
    (optimizer,) = sharded.optimizers

    def train() -> None:
        with sharded.take():
            if zero:
                optimizer.zero_grad(set_to_none=False)
            sharded.loss().backward()
            optimizer.step()

    train()
    with sharded.take():
        optimizer.zero_grad()
        sharded.loss().backward()
    if zero:
        train()
        assert sharded.committed == 3
    else:
        with accumulated():
            train()


def test_an_optimizer_of_a_session_can_still_be_asked_for_its_arguments_and_copied(sharded: Training) -> None:
    (optimizer,) = sharded.optimizers
    assert "set_to_none" in inspect.signature(optimizer.zero_grad).parameters
    sharded.loss().backward()
    copy.deepcopy(optimizer).zero_grad()
    assert sharded.model.weight.grad is not None


def test_a_step_that_a_scaler_leaves_out_may_be_followed_by_others() -> None:
    training = Training(waits=9)
    for factor in (float("inf"), 1.0):
        with training.take():
            training.model.zero_grad(set_to_none=False)
            training.scaler.scale(training.loss() * factor).backward()
            training.scaler.step(training.optimizers[0])
            training.scaler.update()
    assert training.committed == 2


def test_a_step_whose_collectives_are_done_counts() -> None:
    training = Training(waits=2)
    with training.take():
        training.scaler.scale(training.loss()).backward()
        training.scaler.step(training.optimizers[0])
        training.scaler.update()
    assert training.committed == 1
    assert not torch.equal(training.model.weight, training.before)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
def test_a_trial_ends_after_the_optimizer_s_step_and_changes_nothing(kind: type[torch.optim.Optimizer]) -> None:
    training = Training(waits=9, kind=kind)
    optimizer = training.optimizers[0]
    settings = copy.deepcopy(optimizer.state_dict())
    values, random = training.steps._state.values, torch.get_rng_state()
    values["steps"] = 7
    logged: list[int] = []

    with training.take(trial=True):
        torch.rand(3)
        values["steps"] += 1
        training.closure()
        optimizer.step(training.closure if kind is torch.optim.LBFGS else None)
        logged.append(training.committed)
    assert torch.equal(training.model.weight, training.before)
    assert training.model.weight.grad is None
    assert optimizer.state_dict() == settings
    assert torch.equal(torch.get_rng_state(), random)
    assert (training.committed, training.steps.repeats, training.steps.broken) == (0, True, "")
    assert (values, logged) == ({"steps": 7}, [])


def test_an_error_of_the_script_in_a_trial_is_its_own() -> None:
    training = Training(waits=9)
    with pytest.raises(ZeroDivisionError), training.take(trial=True):
        1 / 0  # noqa: B018


def test_the_state_of_an_optimizer_is_received_in_the_memory_that_a_trial_has_used() -> None:
    training = Training(waits=9, kind=torch.optim.AdamW)
    with training.take(trial=True):
        training.train()
    memory = training.parts.spare[id(training.optimizers[0])][training.model.weight]["exp_avg"]
    training.parts.use_spares()
    assert training.parts.collect()["optimizer_0"]["state"][0]["exp_avg"] is memory
    assert not training.parts.spare
