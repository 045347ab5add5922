"""What an adapter for a framework can rely on, whichever framework: tests/integration/runtime_session/test_adapters.py
runs the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session import session as session_module
from elasticjob_runtime.training.session.adapter import AdapterSession
from elasticjob_runtime.training.session.interruption import OVER, Interruption, OverError

from tests.unit.runtime.training.session.engines import QuietEngine

pytestmark = pytest.mark.timeout(60)


class PlayedEngine(QuietEngine):
    """Of a world of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.interruption = Interruption()
        self.asked_to_save = False

    def enter(self, process_state: Callable[[], Any], agree: Callable[..., None], **_: object) -> None:
        agree(None, [process_state()], None)

    def communicate(self, begin: Callable[[], Any]) -> Any:
        return begin()

    def wait(self, work: Any) -> None:
        work.wait()

    def saves_at_end(self) -> None:
        self.asked_to_save = True


class Framework:
    """An adapter for a framework that counts its steps and its validations."""

    def __init__(self) -> None:
        self.counted = 0
        self.validations = 0
        self.worlds = 0
        self.remembered: list[bool] = []
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.session = AdapterSession(self, model=self.model, optimizer=self.optimizer, progress=self)

    def steps(self) -> int:
        return self.counted

    def entered(self) -> None:
        self.worlds += 1

    def remember(self, *, batch: bool) -> Callable[[], None]:
        self.remembered.append(batch)
        before = self.state_dict()
        return lambda: self.load_state_dict(before)

    def state_dict(self) -> dict[str, Any]:
        return {"counted": self.counted, "validations": self.validations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counted, self.validations = state["counted"], state["validations"]

    def batches(self) -> Iterator[Any]:
        return self.session.batches([torch.ones(1)] * 6, batch_size=2, shuffle=False)

    def train(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.counted += 1

    def take(self, batches: Iterator[Any]) -> bool:
        batch = next(batches)
        return self.session.take(lambda: self.train(batch))

    def validate(self) -> None:
        self.validations += 1


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Framework:
    monkeypatch.setattr(session_module, "new_engine", lambda _: (PlayedEngine(), None))
    return Framework()


def interrupted(body: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        body()
        raise OverError(OVER)

    return run


def test_a_step_is_taken_once_and_the_framework_learns_of_its_world(framework: Framework) -> None:
    batches = framework.batches()
    assert [framework.take(batches) for _ in range(3)] == [True] * 3
    assert next(batches, None) is None
    assert (framework.counted, framework.session.committed_steps, framework.worlds) == (3, 3, 1)
    assert framework.remembered == [True, True, True]


def test_what_an_interrupted_step_changed_of_the_framework_is_put_back(framework: Framework) -> None:
    batches = framework.batches()
    next(batches)

    def counts_before_it_trains() -> None:
        framework.counted += 1

    assert not framework.session.take(interrupted(counts_before_it_trains))
    assert (framework.counted, framework.session.committed_steps) == (0, 0)
    assert framework.take(batches)
    assert framework.worlds == 2, "it looks for a world before it repeats the step"


def test_a_validation_counts_as_a_whole_or_not_at_all(framework: Framework) -> None:
    session = framework.session
    batches = framework.batches()
    framework.take(batches)
    before = session.state_dict()
    assert not session.take_without_batch(interrupted(framework.validate))
    assert (framework.validations, session.state_dict()) == (0, before)
    assert session.take_without_batch(framework.validate)
    assert (framework.validations, framework.counted, framework.remembered) == (1, 1, [True, False, False])
    assert session.state_dict() == {**before, "committed": before["committed"] + 1}
    assert next(batches) is not None, "no batch was used for it"


def test_a_batch_that_another_process_has_committed_is_put_back(framework: Framework) -> None:
    batches = framework.batches()
    next(batches)
    framework.session.withdraw_batch()
    next(batches)
    assert framework.session.share.next.consumed == 2, "the same batch again"


def test_a_checkpoint_of_the_framework_says_where_the_training_continues(framework: Framework) -> None:
    batches = framework.batches()
    framework.take(batches)
    next(batches)
    saved: list[dict[str, Any]] = []
    framework.session.take(lambda: saved.append(framework.session.state_dict()))
    follower = Framework()
    follower.session.load_state_dict(saved[0])
    next(follower.batches())
    assert follower.session.committed_steps == 2
    assert follower.session.share.next.epoch == 1, "the last of three batches follows"


def test_what_cannot_be_repeated_any_more_gets_another_answer(framework: Framework) -> None:
    session = framework.session
    batches = framework.batches()
    batch = next(batches)
    answers: list[str] = []

    def train() -> None:
        framework.train(batch)
        session._engine.interruption.end()  # type: ignore[union-attr]
        answers.append(session.communicate(lambda: "of all", lambda: "of this process"))

    assert session.take(train), "its optimizer has stepped"
    assert answers == ["of this process"]
    with pytest.raises(OverError):
        session.communicate(lambda: "of all")


def test_a_framework_that_saves_at_the_end_is_asked_to(framework: Framework) -> None:
    saved: list[int] = []
    framework.session.save_at_end(lambda: saved.append(framework.counted))
    assert framework.session._engine.asked_to_save  # type: ignore[union-attr]
    framework.session._save_last()
    assert saved == [0]
