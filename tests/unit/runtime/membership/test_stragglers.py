"""Which ranks are called slow."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from elasticjob_runtime.contract import PaceValue, PreflightValue, Straggler
from elasticjob_runtime.membership.stragglers import StragglerWatch, slow_ranks, with_preflight


def paces(
    own: Mapping[int, float], *, step: float = 0.05, window: int = 1, throttled: float = 0.0
) -> dict[str, PaceValue]:
    """One member for each rank; own time in ms. `throttled`: of rank 1."""
    return {
        f"member-{rank}": PaceValue(
            round=1,
            window=window,
            step_seconds=step,
            own_seconds={str(rank): ms / 1000},
            throttled=throttled if rank == 1 else 0.0,
        )
        for rank, ms in own.items()
    }


ONE_WINDOW: dict[str, tuple[Mapping[int, float], list[int]]] = {
    "equal": ({0: 30, 1: 30, 2: 30, 3: 30}, []),
    "one takes twice as long": ({0: 25, 1: 50, 2: 25, 3: 25}, [1]),
    "one of two": ({0: 25, 1: 50}, [1]),
    "two of four, the slower first": ({0: 25, 1: 40, 2: 25, 3: 50}, [3, 1]),
    "1.3 times, exactly": ({0: 30, 1: 39, 2: 30}, []),
    "twice, but not a tenth of a step": ({0: 4, 1: 8, 2: 4}, []),
    "three of four: the fast one is no measure": ({0: 25, 1: 50, 2: 50, 3: 50}, []),
    "alone": ({0: 50}, []),
}


@pytest.mark.parametrize(("own", "found"), ONE_WINDOW.values(), ids=ONE_WINDOW)
def test_a_rank_is_slow_if_the_others_wait_for_it(own: Mapping[int, float], found: list[int]) -> None:
    assert [slow.rank for slow in slow_ranks(paces(own), 1.3)] == found


def test_nothing_is_slow_if_the_user_says_so() -> None:
    assert not slow_ranks(paces({0: 25, 1: 50, 2: 25}), 0)


FAST, SLOW = {0: 25, 1: 25, 2: 25}, {0: 25, 1: 50, 2: 25}


def named(*windows: Mapping[int, float]) -> list[list[int] | None]:
    """What each window changes."""
    watch = StragglerWatch(1.3)
    found = [watch.add(paces(own, window=number)) for number, own in enumerate(windows)]
    return [None if item is None else [one.rank for one in item] for item in found]


def test_a_rank_is_named_after_three_windows_in_a_row() -> None:
    assert named(SLOW, SLOW, FAST, SLOW, SLOW) == [None] * 5
    assert named(SLOW, SLOW, SLOW, SLOW) == [None, None, [1], None]


def test_a_name_goes_after_three_windows_that_were_not_slow() -> None:
    assert named(SLOW, SLOW, SLOW, FAST, FAST, SLOW, FAST, FAST, FAST)[2:] == [[1], None, None, None, None, None, []]


def test_one_window_counts_once() -> None:
    watch = StragglerWatch(1.3)
    assert [watch.add(paces(SLOW, window=7)) for _ in range(5)] == [None] * 5


def test_a_name_goes_with_its_member() -> None:
    watch = StragglerWatch(1.3)
    for window in range(3):
        watch.add(paces(SLOW, window=window))
    assert watch.add(paces({0: 25, 2: 25}, window=3)) == []


def test_a_cpu_limit_is_named() -> None:
    watch = StragglerWatch(1.3)
    found = [watch.add(paces(SLOW, window=window, throttled=0.65)) for window in range(3)][-1]
    assert found is not None
    assert found[0].text == (
        "own time 50 ms of a step of 50 ms, median of the others 25 ms; CPU limit reached in 65 % of the time"
    )
    assert found[0].signs == ["its CPU limit slows it down"]


def test_equal_ranks_on_busy_machines_are_not_named() -> None:
    """A day of windows of a minute, of which each rank has one in seven slow: half as much again."""
    chance, watch = random.Random(7), StragglerWatch(1.3)
    found = [
        watch.add(paces({rank: 30 * chance.choice((1.5, 1, 1, 1, 1, 1, 1)) for rank in range(4)}, window=window))
        for window in range(1440)
    ]
    names = [item for item in found if item]
    assert len(names) <= 16, "a slow window is no longer by chance if three are in a row: 4 * 1440 / 7 ** 3"


def test_a_machine_that_was_slow_before_it_joined_is_a_sign() -> None:
    stragglers = [Straggler(rank=0, member="a", text="slow"), Straggler(rank=1, member="b", text="slow")]
    reports = {
        name: PreflightValue(measured={"compute": seconds}) for name, seconds in (("a", 1.0), ("b", 1.4), ("c", 1.0))
    }
    assert [len(one.signs) for one in with_preflight(stragglers, reports)] == [0, 1]
    assert with_preflight(stragglers, {}) == stragglers
