"""Saving before a stop: who is asked, who gets the signal, and when the rest can be killed."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import cast

import pytest
from elasticjob_runtime.workers.process import WorkerProcess
from elasticjob_runtime.workers.savers import Savers

GRACE = 7.0


@dataclasses.dataclass(frozen=True)
class Spec:
    rank: int
    local_rank: int


class Worker:
    """As much of a worker process as `Savers` looks at; the real ones are in tests/integration."""

    def __init__(self, rank: int, *, handles: bool = False) -> None:
        self.spec = Spec(rank, rank)
        self._handles = handles

    def catches(self, number: int) -> bool:
        return self._handles and number == signal.SIGTERM


class Group:
    def __init__(self, handles: str) -> None:
        """handles: a letter for each worker, `h` for one that handles SIGTERM."""
        self.workers = cast(
            "list[WorkerProcess]", [Worker(rank, handles=letter == "h") for rank, letter in enumerate(handles)]
        )
        self.asked: list[tuple[int, float]] = []
        self.savers = Savers(lambda rank, seconds: self.asked.append((rank, seconds)))

    def begin(self, *, told: Sequence[int] = (), outside: Sequence[int] = ()) -> list[int]:
        signalled = self.savers.begin(
            self.workers, signal.SIGTERM, GRACE,
            told=[self.workers[rank] for rank in told], outside=[self.workers[rank] for rank in outside],
        )  # fmt: skip
        return [worker.spec.rank for worker in signalled]


@pytest.mark.parametrize(
    ("handles", "on_request", "asked", "signalled"),
    [
        pytest.param("--", [], [], [0, 1], id="no worker saves: the signal ends all"),
        pytest.param("hh", [], [], [0, 1], id="all handle the signal"),
        pytest.param("h-", [], [], [0], id="one handles it: the other may be needed for its step"),
        pytest.param("--", [0, 1], [0, 1], [], id="all save on request"),
        pytest.param("--", [1], [1], [], id="one saves on request: the other may be needed for its step"),
        pytest.param("h-", [0, 1], [1], [0], id="a handler of the signal comes before a request"),
    ],
)
def test_only_workers_that_save_are_asked_or_signalled(
    handles: str, on_request: list[int], asked: list[int], signalled: list[int]
) -> None:
    group = Group(handles)
    for rank in on_request:
        group.savers.add(rank, group.workers, None)
    assert group.begin() == signalled
    assert group.asked == [(rank, GRACE) for rank in asked]


def test_the_rest_can_be_killed_when_the_last_saver_is_done() -> None:
    group = Group("---")
    for rank in (0, 1):
        group.savers.add(rank, group.workers, None)
    group.begin()
    assert not group.savers.saved(0)
    assert not group.savers.done(group.workers[2]), "it never saved"
    assert group.savers.done(group.workers[1]), "it ended instead"
    assert not group.savers.done(group.workers[0]), "told once"


def test_workers_that_are_told_of_their_last_world_get_no_signal_and_are_waited_for() -> None:
    group = Group("---")
    assert group.begin(told=[0, 1]) == []
    assert not group.savers.left(1)
    assert not group.savers.left(2), "it was not told"
    assert group.savers.left(0)


def test_a_worker_outside_of_its_world_is_not_asked() -> None:
    group = Group("--")
    for rank in (0, 1):
        group.savers.add(rank, group.workers, None)
    assert group.begin(outside=[0, 1]) == [0, 1], "the signal ends them"
    assert group.asked == []


def test_workers_that_all_handle_the_signal_end_by_themselves() -> None:
    group = Group("hh")
    group.begin()
    assert not any(group.savers.done(worker) for worker in group.workers)


def test_a_worker_that_first_asks_while_others_save_is_asked_with_the_time_that_remains() -> None:
    group = Group("--")
    group.savers.add(0, group.workers, None)
    group.begin()
    group.savers.add(1, group.workers, 3.0)
    assert group.asked == [(0, GRACE), (1, 3.0)]
    assert not group.savers.saved(0)
    assert group.savers.saved(1)


def test_a_worker_that_first_asks_before_a_stop_is_not_asked_yet() -> None:
    group = Group("--")
    group.savers.add(0, group.workers, None)
    group.savers.add(1, group.workers, None)
    assert group.asked == []
