"""A script's own values are committed, undone, saved and received with the rest of the training."""

from __future__ import annotations

import collections
import copy
import io
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.feed import Cursor, Share
from elasticjob_runtime.training.session.interruption import OVER, OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.values import LARGE_TENSOR, Values

from tests.unit.runtime.training.session.engines import QuietEngine


class Training:
    """One process of a training, with an engine that is never asked."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        parts = Parts({"model": self.model, "optimizer": self.optimizer})
        parts.others = []  # as if the model were in DistributedDataParallel
        self.state = TrainingState(parts, snapshots=False)
        self.steps = Steps(parts, self.state, cast(Engine, QuietEngine()))
        self.values = self.state.values

    def step(self, change: Callable[[Values], object], *, trains: bool = False, interrupted: bool = False) -> None:
        taken = Share(positions=(0,), samples=1, batch=1, next=Cursor(consumed=1))
        with self.steps.take(lambda: self.state.commit(taken)):
            if trains:
                self.model(torch.ones(1, 2)).sum().backward()
                self.optimizer.step()
            change(self.values)
            if interrupted:
                raise OverError(OVER)


@pytest.fixture
def training() -> Training:
    return Training()


def plain() -> dict[str, Any]:
    return {
        "best": 0.5, "bad": 3, "done": False, "name": "run", "none": None, "raw": b"x",
        "history": [1, [2, {"deep": (3, torch.arange(3))}]], "ema": {"w": torch.ones(2, 3), 7: 1},
    }  # fmt: skip


def test_values_are_a_dict(training: Training) -> None:
    values = training.values
    values["a"] = 1
    values.update({"b": 2}, c=3)
    assert values.setdefault("a", 9) == 1
    assert values.setdefault("d", []) is values["d"]
    del values["b"]
    assert (list(values), "c" in values, values.get("b", 0), len(values)) == (["a", "c", "d"], True, 0, 3)
    assert values == {"a": 1, "c": 3, "d": []}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda values: values.update(best=0.9, new=1), id="set"),
        pytest.param(lambda values: values.pop("best"), id="delete"),
        pytest.param(lambda values: values.clear(), id="clear"),
        pytest.param(lambda values: values["history"].append(4), id="append to a list"),
        pytest.param(lambda values: values["history"][1][1].clear(), id="clear a dict in a list in a list"),
        pytest.param(lambda values: values["history"][1][1]["deep"][1].add_(1), id="a tensor in a tuple"),
        pytest.param(lambda values: values["ema"]["w"].zero_(), id="a tensor in a dict"),
        pytest.param(lambda values: values["ema"]["w"].data.zero_(), id="a change hidden from torch"),
        pytest.param(lambda values: values["ema"].update(w=torch.ones(5)), id="another tensor"),
    ],
)
def test_a_step_that_is_interrupted_changes_no_value(training: Training, change: Callable[[Values], object]) -> None:
    training.values.update(plain())
    training.step(change, interrupted=True)
    assert_same(training.values, plain())
    training.values["bad"] += 1  # the code after the step, which runs again after the repetition
    training.values["history"].append("again")
    training.values.roll_back()
    assert_same(training.values, plain())
    assert training.state.committed == -1


def test_variables_of_the_script_remain_valid_after_an_undone_step(training: Training) -> None:
    history = training.values.setdefault("history", [1])
    ema = training.values.setdefault("ema", {"w": torch.ones(2)})
    weight = ema["w"]
    training.step(lambda _: (history.append(2), weight.zero_()), interrupted=True)
    assert history is training.values["history"]
    assert weight is ema["w"] is training.values["ema"]["w"]
    assert (history, weight.tolist()) == ([1], [1.0, 1.0])


def test_large_tensors_are_undone_and_not_copied_again_until_they_change(training: Training) -> None:
    large = training.values["best"] = torch.zeros(LARGE_TENSOR)
    training.step(lambda _: None)
    copies = {id(copied) for _, _, copied in training.values._copies.values()}
    training.step(lambda _: None)
    assert {id(copied) for _, _, copied in training.values._copies.values()} == copies
    training.step(lambda _: large.add_(1))
    training.step(lambda _: large.add_(1), interrupted=True)
    assert large.unique().tolist() == [1.0]


def test_a_step_that_may_have_changed_values_is_whole_or_taken_again(training: Training) -> None:
    """Communication after optimizer.step() is interrupted: what follows it in the block was left out here, and may not
    have been on other ranks."""
    training.step(lambda values: values.update(seen=1), trains=True)
    assert training.state.committed == 0
    training.step(lambda _: None, trains=True, interrupted=True)
    assert training.state.committed < -1, "incomplete: the process takes the state from another one"


def test_values_that_only_change_between_steps_tear_no_step(training: Training) -> None:
    training.values["best"] = 1
    training.step(lambda _: None, trains=True)
    training.values["best"] = 2
    training.step(lambda _: None, trains=True, interrupted=True)
    assert (training.state.committed, training.values["best"]) == (1, 2)


@pytest.mark.parametrize("saved", [False, True], ids=["sent", "saved"])
def test_another_process_gets_all_values(training: Training, saved: bool) -> None:
    training.values.update(plain())
    state = training.state.collect()
    if saved:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    other = Training()
    history = other.values.setdefault("history", [9])
    weight = other.values.setdefault("ema", {"w": torch.zeros(2, 3)})["w"]
    other.values["gone"] = 1
    other.state.apply(copy.deepcopy(state))
    assert_same(other.values, plain())
    assert history is other.values["history"]
    assert weight is other.values["ema"]["w"]


def test_values_that_share_a_tensor_here_do_not_mix_those_of_another_process(training: Training) -> None:
    training.values.update(last=torch.ones(2), best=torch.zeros(2))
    other = Training()
    same = torch.full((2,), 5.0)
    other.values.update(last=same, best=same)
    other.state.apply(training.state.collect())
    assert_same(other.values, {"last": torch.ones(2), "best": torch.zeros(2)})


def test_the_best_model_is_a_copy_of_the_model(training: Training) -> None:
    training.values["best"] = training.model.state_dict()
    training.step(lambda _: None, trains=True)
    training.values["moments"] = training.optimizer.state_dict()
    before = copy.deepcopy(dict(training.values))
    training.step(lambda _: None, trains=True)
    assert_same(training.values, before)
    assert not torch.equal(training.values["best"]["weight"], training.model.weight)


def test_a_loss_is_kept_without_its_graph(training: Training) -> None:
    training.values["loss"] = training.model(torch.ones(1, 2)).sum()
    with torch.inference_mode():
        training.values["accuracy"] = torch.ones(1)
    training.step(lambda values: values["accuracy"].add_(1))
    assert training.values["loss"].grad_fn is None
    training.step(lambda values: values["accuracy"].add_(1), interrupted=True)
    assert training.values["accuracy"].tolist() == [2.0]


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Custom(), r"session\.values\['x'\] is of the type .*test_values\.Custom\. Values are None, bool, int, float"),
        ({1, 2}, r"session\.values\['x'\] is of the type set\."),
        ([0, {"deep": Custom()}], r"session\.values\['x'\]\[1\]\['deep'\] is of the type .*Custom\."),
        ({("a",): 1}, r"session\.values: \('a',\) is a key of a dict"),
        (collections.Counter("ab"), r"is of the type collections\.Counter\."),
        (torch.eye(2).to_sparse(), r"is of the type torch\.Tensor\. Values are .* dense tensors"),
    ],
)
def test_a_value_that_cannot_be_kept_is_named_with_its_key(training: Training, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        training.values["x"] = value
    training.values["list"] = []
    with pytest.raises(TypeError, match=r"session\.values\['list'\]\[0\].* is of the type|is a key"):
        training.step(lambda values: values["list"].append(value))
    assert training.state.committed == -1


def test_a_number_of_numpy_is_refused_with_what_to_write(training: Training) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"\['x'\] is of the type numpy\.float64\. .*; its item\(\) is plain"):
        training.values["x"] = numpy.float64(0.5)


def test_a_part_of_the_model_in_a_list_is_named(training: Training) -> None:
    training.values["best"] = []
    message = r"session\.values\['best'\]\[0\] shares memory with the model or the optimizer: keep a copy"
    with pytest.raises(ValueError, match=message):
        training.step(lambda values: values["best"].append(training.model.weight.detach()))


def test_keys_are_strings(training: Training) -> None:
    with pytest.raises(TypeError, match="the key 1 is not a string"):
        cast(Any, training.values)[1] = 1


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other
