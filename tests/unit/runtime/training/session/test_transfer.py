"""What a process that has the state sends, and what it copies for that."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.transfer import share
from elasticjob_runtime.training.session.world import SPREAD, Agreement
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]


class Done:
    def wait(self, _timeout: object = None) -> None:
        pass


class Group:
    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        """Receiver and bytes."""

    def send(self, tensors: list[torch.Tensor], receiver: int, _tag: int) -> Any:
        self.sent += [(receiver, tensor.nbytes) for tensor in tensors]
        return Done()


def elsewhere(size: int) -> torch.Tensor:
    """As if on a GPU: copying it to the host is an error."""
    return torch.empty(size, dtype=torch.uint8, device="meta")


def test_a_source_copies_nothing_to_the_host_if_no_process_needs_the_state() -> None:
    group, agreement = Group(), Agreement(sources=(0, 1), receivers=())
    assert share(group, agreement, 0, {"model": elsewhere(2 * SPREAD)}) is None
    assert group.sent == []


def test_a_source_copies_only_what_it_sends() -> None:
    """Small tensors come from the first source, large ones from one of them."""
    group, agreement = Group(), Agreement(sources=(1, 3), receivers=(0,))
    large = [
        torch.empty(SPREAD, dtype=torch.uint8) if agreement.source_of(0, index, SPREAD) == 3 else elsewhere(SPREAD)
        for index in range(4)
    ]
    assert share(group, agreement, 3, [*large, elsewhere(8)]) is None
    assert group.sent == [(0, SPREAD)] * 2


def test_a_receiver_waits_for_a_source_that_takes_longer_than_connecting_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies a large state from its GPU first, say."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store, agreement = PrefixStore("group", HashStore()), Agreement(sources=(0,), receivers=(1,))

    def take_part(rank: int) -> Any:
        group = torch_private.connect(store, rank, 2, 1.0)
        time.sleep(0 if rank else 2)
        return share(group, agreement, rank, None if rank else {"weights": torch.ones(3)})

    with ThreadPoolExecutor(2) as pool:
        _, received = pool.map(take_part, range(2))
    assert received["weights"].tolist() == [1.0, 1.0, 1.0]
