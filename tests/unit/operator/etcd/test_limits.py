from __future__ import annotations

import pytest
from elasticjob_operator.etcd.limits import (
    BURST,
    LARGEST_SHARE,
    SHARE_OF_A_RUN,
    SLICE,
    SMALL_MESSAGE,
    LimitExceeded,
    MemoryPool,
    TimeBudget,
    check_json_parts,
)


class Holder:
    def __init__(self) -> None:
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def test_small_messages_need_no_pool() -> None:
    pool = MemoryPool(100)
    for _ in range(1000):
        pool.hold(Holder(), SMALL_MESSAGE)
    assert pool.used == 0


def test_an_exhausted_pool_cuts_the_oldest_holder() -> None:
    pool, old, young = MemoryPool(100), Holder(), Holder()
    pool.hold(old, SMALL_MESSAGE + 60)
    pool.hold(young, SMALL_MESSAGE + 40)
    assert [old.is_cut, young.is_cut] == [False, False]
    pool.hold(young, SMALL_MESSAGE + 41)
    assert [old.is_cut, young.is_cut] == [True, False]
    assert pool.used == 41
    pool.hold(young, 0)
    assert pool.used == 0


def test_a_holder_that_exhausts_the_pool_itself_gets_the_error() -> None:
    pool, holder = MemoryPool(100), Holder()
    with pytest.raises(LimitExceeded):
        pool.hold(holder, SMALL_MESSAGE + 101)
    assert pool.used == 0
    pool.release(holder)
    assert pool.used == 0


@pytest.mark.parametrize("message", [b"[" * 200_001, b"{}," * 100_001, b",".join([b"1"] * 200_002)])
def test_a_message_of_too_many_parts_is_rejected_before_parsing(message: bytes) -> None:
    with pytest.raises(LimitExceeded):
        check_json_parts(message)


def test_long_values_do_not_count_as_parts() -> None:
    check_json_parts(b'{"value":"' + b"A" * 3_000_000 + b'"}')


@pytest.mark.parametrize(
    ("runs", "share"), [(0, SHARE_OF_A_RUN), (1, SHARE_OF_A_RUN), (4, 4 * SHARE_OF_A_RUN), (1000, LARGEST_SHARE)]
)
def test_the_time_budget_allows_a_burst_and_then_its_share(runs: int, share: float) -> None:
    budget, now, spent = TimeBudget(lambda: runs), 0.0, 0.0
    for _ in range(100_000):
        wait = budget.spend(SLICE / 2, now)
        spent += SLICE / 2
        now += SLICE / 2 + (wait or 0.0)
        if now > 1000:
            break
    assert spent <= BURST + share * now + SLICE
    assert spent >= share * now - SLICE


def test_other_tasks_run_between_slices() -> None:
    budget = TimeBudget()
    assert budget.spend(SLICE / 2, 0.0) is None
    assert budget.spend(SLICE, 0.0) == 0.0
    assert budget.spend(SLICE / 2, 0.0) is None
    assert (budget.spend(BURST, 0.0) or 0.0) > 0
