"""A session that continues from a checkpoint takes each sample of the epoch once, or says why it cannot."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import CheckpointError, ElasticSession, background, checkpoint
from elasticjob_runtime.training.session import state
from elasticjob_runtime.training.session.world import SessionError

pytestmark = pytest.mark.timeout(60)


def begin(path: pathlib.Path, *, every: int = 1, block: bool = True) -> ElasticSession:
    model = torch.nn.Linear(1, 1)
    session = ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    session.checkpoint(path, every=every, block=block)
    return session


def train(path: pathlib.Path, *, size: int = 24, steps: int = 100, batch_size: int = 4, **options: Any) -> list[int]:
    """What one process takes of the rest of its epoch, which it saves after each step."""
    session = begin(path)
    taken: list[int] = []
    for batch in session.batches(range(size), batch_size=batch_size, collate_fn=list, **options):
        with session.step():
            taken += batch
        steps -= 1
        if not steps:
            break
    return taken


def test_another_batch_size_goes_on_with_the_next_sample(tmp_path: pathlib.Path) -> None:
    taken = train(tmp_path, steps=2) + train(tmp_path, batch_size=5)
    assert sorted(taken) == list(range(24))


def test_a_rest_that_is_smaller_than_a_new_batch_ends_the_epoch(tmp_path: pathlib.Path) -> None:
    train(tmp_path, steps=5, drop_last=True)
    session = begin(tmp_path)
    assert list(session.batches(range(24), batch_size=8, drop_last=True)) == []
    assert session.epoch == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 7}, "seed was 0, and now is 7"),
        ({"shuffle": False}, "shuffle was True, and now is False"),
        ({"size": 30}, "the data set had 24 samples, and now has 30"),
        ({"size": 6}, "the data set had 24 samples, and now has 6"),
    ],
)
def test_an_epoch_never_goes_on_in_another_order(tmp_path: pathlib.Path, changed: dict[str, Any], message: str) -> None:
    train(tmp_path, steps=2)
    with pytest.raises(SessionError, match=message):
        train(tmp_path, **changed)
    size = changed.get("size", 24)
    assert sorted(train(tmp_path, restart_epoch=True, **changed)) == list(range(size))


def test_a_checkpoint_of_another_model_is_named(tmp_path: pathlib.Path) -> None:
    train(tmp_path, steps=2)
    model = torch.nn.Linear(2, 1)
    session = ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CheckpointError, match=rf"The checkpoint of step 2 in {tmp_path} does not fit .*size mismatch"):
        session.checkpoint(tmp_path)


def test_the_seed_of_an_order_without_shuffling_may_change(tmp_path: pathlib.Path) -> None:
    assert train(tmp_path, steps=2, shuffle=False) + train(tmp_path, shuffle=False, seed=9) == list(range(24))


def test_a_stream_goes_on_after_a_restart_and_is_named_if_it_has_other_items(tmp_path: pathlib.Path) -> None:
    def take(steps: int, first: int = 0) -> list[int]:
        session, taken = begin(tmp_path), list[int]()
        items = range(first, first + 10)
        stream = session.stream(lambda *_: items, streams=2, batch_size=4, collate_fn=list)
        for batch in itertools.islice(stream, steps):
            with session.step():
                taken += batch
        return taken

    assert take(2) + take(1) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    with pytest.raises(SessionError, match="stream 0 of epoch 0 is not deterministic: its first 6 items are not those"):
        take(1, first=7)


def test_another_order_may_begin_with_an_epoch(tmp_path: pathlib.Path) -> None:
    train(tmp_path)
    session = begin(tmp_path)
    assert list(session.batches(range(8), batch_size=4, seed=9)) == [], "the rest of the first one"
    taken: list[int] = []
    for batch in session.batches(range(8), batch_size=4, collate_fn=list, seed=9):
        with session.step():
            taken += batch
    assert sorted(taken) == list(range(8))


@pytest.mark.parametrize(
    ("leaves", "last"),
    [(True, 3), (False, 3), (False, 4)],
    ids=["all members leave", "a planned change", "a planned change when it is time to save"],
)
def test_a_save_in_the_background_that_failed_does_not_cost_the_last_state(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, leaves: bool, last: int
) -> None:
    session = begin(tmp_path, every=2, block=False)
    save = checkpoint.save

    def fail(*_: Any, **__: Any) -> pathlib.Path:
        raise CheckpointError("no space left")

    for _, step in zip(session.batches(range(24), batch_size=4), range(1, last + 1), strict=False):
        monkeypatch.setattr(checkpoint, "save", fail if step == 2 else save)
        if step == last and not leaves:
            monkeypatch.setattr(state, "session_ends", lambda: True)
        with session.step():
            pass
        background.wait_for_saves(0.0, 30.0)
    if leaves:
        session._state.save_last()
    assert checkpoint.steps(tmp_path) == [last]


def test_a_second_pass_over_the_same_epoch_is_an_error(tmp_path: pathlib.Path) -> None:
    """It would have no batches, and the script would end without having trained."""
    session = begin(tmp_path)
    for epoch in (0, 1):
        for _ in session.batches(range(8), batch_size=4, epoch=epoch):
            with session.step():
                pass
    for epoch in (0, 1):
        with pytest.raises(SessionError, match=f"epoch {epoch} is over"):
            session.batches(range(8), batch_size=4, epoch=epoch)
    assert next(session.batches(range(8), batch_size=8, epoch=2)) is not None


def test_a_batch_may_be_used_after_its_loop_was_left_or_not(tmp_path: pathlib.Path) -> None:
    session = begin(tmp_path)
    for used in (True, False, True):
        next(session.batches(range(8), batch_size=4))
        if used:
            with session.step():
                pass
    assert session.committed_steps == 2


def test_a_script_that_goes_on_after_an_error_in_a_step_ends_with_it(tmp_path: pathlib.Path) -> None:
    """Its batch would come for ever."""
    session = begin(tmp_path)

    def train() -> None:
        for _ in session.batches(range(8), batch_size=4):
            with contextlib.suppress(ValueError), session.step():
                raise ValueError("too long a sequence")

    with pytest.raises(SessionError, match="a step has ended with ValueError, and the script went on") as caught:
        train()
    assert str(caught.value.__cause__) == "too long a sequence"
    assert session.committed_steps == 0
