"""What a process that has the state sends, and what it copies for that."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training.session.transfer import share
from elasticjob_runtime.training.session.world import SPREAD, Agreement


class Done:
    def wait(self) -> None:
        pass


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Receiver and bytes."""
    found: list[tuple[int, int]] = []

    def isend(tensor: torch.Tensor, receiver: int) -> Any:
        found.append((receiver, tensor.nbytes))
        return Done()

    monkeypatch.setattr(dist, "isend", isend)
    monkeypatch.setattr(dist, "send", lambda *_: None)
    return found


def elsewhere(size: int) -> torch.Tensor:
    """As if on a GPU: copying it to the host is an error."""
    return torch.empty(size, dtype=torch.uint8, device="meta")


def test_a_source_copies_nothing_to_the_host_if_no_process_needs_the_state(sent: list[tuple[int, int]]) -> None:
    agreement = Agreement(sources=(0, 1), receivers=())
    assert share(agreement, 0, {"model": elsewhere(2 * SPREAD)}) is None
    assert sent == []


def test_a_source_copies_only_what_it_sends(sent: list[tuple[int, int]]) -> None:
    """Small tensors come from the first source, large ones from one of them."""
    agreement = Agreement(sources=(1, 3), receivers=(0,))
    large = [
        torch.empty(SPREAD, dtype=torch.uint8) if agreement.source_of(0, index, SPREAD) == 3 else elsewhere(SPREAD)
        for index in range(4)
    ]
    assert share(agreement, 3, [*large, elsewhere(8)]) is None
    assert sent == [(0, SPREAD)] * 2
