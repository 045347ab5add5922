"""A step whose collectives may not be done changes nothing, wherever the script would use their results first.

The engine's part of this is played: it says that the world is over where NCCL would, once kernels are aborted.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.interruption import OVER, OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps

from tests.unit.runtime.training.session.engines import QuietEngine

pytestmark = pytest.mark.timeout(60)


class Aborted(QuietEngine):
    """Its world ends after `waits` waits for collectives."""

    def __init__(self, waits: int) -> None:
        super().__init__(completes_early=True)
        self.waits = waits

    def wait_for_collectives(self) -> None:
        if not self.waits:
            raise OverError(OVER)
        self.waits -= 1


class Training:
    def __init__(self, waits: int, *, optimizers: int = 1, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        self.model = torch.nn.Linear(2, 1, bias=False)
        self.optimizers = [kind(self.model.parameters(), lr=0.1) for _ in range(optimizers)]  # type: ignore[call-arg]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        named: dict[str, Any] = {f"optimizer_{index}": each for index, each in enumerate(self.optimizers)}
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

    def assert_nothing_changed(self) -> None:
        assert torch.equal(self.model.weight, self.before)
        assert self.model.weight.grad is None
        assert self.scaler.state_dict() == self.scale_before
        assert self.committed == 0
        assert self.steps.broken == OVER


def test_an_optimizer_never_uses_gradients_of_a_world_that_is_over() -> None:
    training = Training(waits=0)
    with training.steps.take(training.commit):
        training.loss().backward()
        training.optimizers[0].step()
    training.assert_nothing_changed()


def test_a_scaler_never_looks_at_gradients_of_a_world_that_is_over() -> None:
    """It would skip the optimizer if they are not finite, and the script would lower the scale."""
    training = Training(waits=0)
    with training.steps.take(training.commit):
        (training.loss() * float("inf")).backward()
        training.scaler.step(training.optimizers[0])
        training.scaler.update()
    training.assert_nothing_changed()


def test_a_second_optimizer_waits_for_what_was_communicated_since_the_first() -> None:
    training = Training(waits=1, optimizers=2)
    with training.steps.take(training.commit):
        training.loss().backward()
        training.optimizers[0].step()
        training.loss().backward()
        training.optimizers[1].step()
    training.assert_nothing_changed()


def test_an_optimizer_that_computes_gradients_itself_is_undone() -> None:
    training = Training(waits=1, kind=torch.optim.LBFGS)

    def closure() -> float:
        loss = training.loss()
        loss.backward()
        return loss.item()

    with training.steps.take(training.commit):
        training.optimizers[0].step(closure)
    training.assert_nothing_changed()


def test_a_step_without_an_optimizer_counts_only_if_its_collectives_are_done() -> None:
    training = Training(waits=0)
    with training.steps.take(training.commit):
        training.loss().backward()
    training.assert_nothing_changed()


def test_an_evaluation_gives_no_number_of_a_world_that_is_over() -> None:
    with pytest.raises(OverError):
        Training(waits=0).steps.evaluate(lambda: 0.7)
    assert Training(waits=1).steps.evaluate(lambda: 0.7) == 0.7


def test_an_evaluation_in_a_replica_is_no_vote_and_a_planned_change_waits_for_it() -> None:
    training = Training(waits=0)
    training.engine.votes = True
    assert training.steps.evaluate(lambda: training.engine.evaluates) is True


def test_a_step_whose_collectives_are_done_counts() -> None:
    training = Training(waits=2)
    with training.steps.take(training.commit):
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

    def closure() -> float:
        loss = training.loss()
        loss.backward()
        return loss.item()

    with training.steps.take(training.commit, trial=True):
        torch.rand(3)
        values["steps"] += 1
        closure()
        optimizer.step(closure if kind is torch.optim.LBFGS else None)
        logged.append(training.committed)
    assert torch.equal(training.model.weight, training.before)
    assert training.model.weight.grad is None
    assert optimizer.state_dict() == settings
    assert torch.equal(torch.get_rng_state(), random)
    assert (training.committed, training.steps.repeats, training.steps.broken) == (0, True, "")
    assert (values, logged) == ({"steps": 7}, [])


def test_an_error_of_the_script_in_a_trial_is_its_own() -> None:
    training = Training(waits=9)
    with pytest.raises(ZeroDivisionError), training.steps.take(training.commit, trial=True):
        1 / 0  # noqa: B018


def test_the_state_of_an_optimizer_is_received_in_the_memory_that_a_trial_has_used() -> None:
    training = Training(waits=9, kind=torch.optim.AdamW)
    with training.steps.take(training.commit, trial=True):
        training.loss().backward()
        training.optimizers[0].step()
    memory = training.parts.spare[id(training.optimizers[0])][training.model.weight]["exp_avg"]
    training.parts.use_spares()
    assert training.parts.collect()["optimizer_0"]["state"][0]["exp_avg"] is memory
    assert not training.parts.spare
