"""What waits in a world ends with it, even if what it waits for never does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.interruption import WAIT_INTERVAL, Interruption, OverError
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def groups() -> list[Any]:
    """Two ranks in this process."""
    store = PrefixStore("groups", HashStore())
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: torch_private.connect(store, rank, 2, 10.0), range(2)))


@pytest.fixture
def over_soon() -> Interruption:
    """Of a world that ends while the test waits."""
    interruption = Interruption()
    threading.Timer(0.05, interruption.end).start()
    return interruption


def test_a_future_that_gloo_never_completes_fails_when_the_world_is_over(over_soon: Interruption) -> None:
    with pytest.raises(RuntimeError) as raised:
        over_soon.guard(torch.futures.Future()).wait()
    assert torch_private.is_link_error(raised.value)


def test_a_future_completes_with_its_value_or_error_and_the_end_changes_nothing() -> None:
    interruption = Interruption()
    first: torch.futures.Future[int] = torch.futures.Future()
    second: torch.futures.Future[ValueError] = torch.futures.Future()
    good, bad = interruption.guard(first), interruption.guard(second)
    first.set_result(3)
    second.set_exception(ValueError("mine"))
    interruption.end()
    assert good.wait() == 3
    with pytest.raises(Exception, match="mine"):
        bad.wait()


def test_nothing_waits_or_begins_in_a_world_that_is_over() -> None:
    """Another one may have its process group already."""
    interruption = Interruption()
    interruption.end()
    with pytest.raises(RuntimeError):
        interruption.guard(torch.futures.Future()).wait()
    began = threading.Event()
    with pytest.raises(OverError):
        interruption.run(began.set)
    assert not began.wait(0.2)


def test_a_collective_that_gloo_never_completes_ends_with_the_world(
    groups: Sequence[Any], over_soon: Interruption
) -> None:
    work = groups[0].allreduce([torch.ones(1)])  # the other rank takes no part
    with pytest.raises(OverError):
        over_soon.wait(work)
    assert not work.is_completed()


def test_waiting_for_a_collective_lasts_as_long_as_the_slowest_rank(groups: Sequence[Any]) -> None:
    tensor, other = torch.ones(1), torch.ones(1)
    work = groups[0].allreduce([tensor])
    late = threading.Timer(3 * WAIT_INTERVAL.total_seconds(), lambda: groups[1].allreduce([other]).wait())
    late.start()
    Interruption().wait(work)
    late.join()
    assert (tensor.item(), other.item()) == (2, 2)


def test_waiting_for_a_collective_that_fails_says_that_a_connection_is_lost(groups: list[Any]) -> None:
    work = groups[0].allreduce([torch.ones(1)])
    del groups[1]
    with pytest.raises(RuntimeError) as raised:
        Interruption().wait(work)
    assert torch_private.is_link_error(raised.value)


def test_a_function_that_blocks_is_left_to_its_thread_and_its_result_discarded(over_soon: Interruption) -> None:
    go, discarded = threading.Event(), threading.Event()

    def blocks() -> str:
        go.wait()
        return "late"

    with pytest.raises(OverError):
        over_soon.run(blocks, discard=lambda result: discarded.set() if result == "late" else None)
    go.set()
    assert discarded.wait(10)


def test_errors_of_a_function_are_raised_as_they_are() -> None:
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        Interruption().run(fails)


def test_what_is_reached_while_the_world_lasts_counts() -> None:
    looks = iter([False, False, True])
    Interruption().wait_until(lambda: next(looks))


def test_what_the_end_of_the_world_has_completed_does_not_count() -> None:
    """An aborted kernel completes, and leaves garbage."""
    interruption = Interruption()

    def reached() -> bool:
        interruption.end()
        return True

    with pytest.raises(OverError):
        interruption.wait_until(reached)


def test_waiting_for_what_is_never_reached_ends_with_the_world(over_soon: Interruption) -> None:
    with pytest.raises(OverError):
        over_soon.wait_until(lambda: False)
