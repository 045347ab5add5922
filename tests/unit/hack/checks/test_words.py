"""Words that the project gave up are found wherever they are used again."""

from __future__ import annotations

import pytest

from hack.checks import words


@pytest.mark.parametrize("text", ["sort out the pods", "def sort_out(pods):", "class SortOut:", "sort_outs = 1"])
def test_a_given_up_word_is_found_in_prose_and_in_names(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(words, "GIVEN_UP", {"sort out": "classify"})
    (problem,) = words.problems("operator/x.py", f"\n{text}\n")
    assert problem.line == 2
    assert problem.message.endswith("write classify")


@pytest.mark.parametrize("text", ["github", "Hubble", "the hubris", "SCHUB"])
def test_a_longer_word_is_not_the_given_up_one(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(words, "GIVEN_UP", {"hub": "shared watch"})
    assert words.problems("operator/x.py", text) == []


@pytest.mark.parametrize("text", ["self.epoch", "next_epoch", "Epoch 3 begins", "EPOCH = 1", "epochs"])
def test_an_epoch_is_rejected_where_a_rendezvous_may_be_meant(text: str) -> None:
    assert words.problems("trainer-runtime/src/elasticjob_runtime/agent/agent.py", text)


def test_an_epoch_of_data_is_allowed() -> None:
    assert words.problems("trainer-runtime/src/elasticjob_runtime/data/sampler.py", "self.epoch += 1") == []


def test_every_exception_has_its_reason() -> None:
    assert all([*words.EPOCHS_OF_DATA.values(), *words.ALLOWED.values(), *words.GIVEN_UP.values()])
