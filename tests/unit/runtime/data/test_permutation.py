"""The order of an epoch: a permutation, the same everywhere, and as good as a shuffle."""

from __future__ import annotations

import itertools
import statistics

import pytest
from elasticjob_runtime.data.permutation import Permutation
from hypothesis import given
from hypothesis import strategies as st


@given(size=st.integers(0, 2000), key=st.text(max_size=20))
def test_a_permutation_has_every_number_exactly_once(size: int, key: str) -> None:
    assert sorted(Permutation(size, key)) == list(range(size))


@given(size=st.integers(1, 10**12), data=st.data())
def test_indices_of_any_size_are_in_range_and_distinct(size: int, data: st.DataObject) -> None:
    order = Permutation(size, "0:0")
    first, second = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    assert 0 <= order[first] < size
    assert (order[first] == order[second]) == (first == second)


@given(size=st.integers(0, 200), start=st.integers(-250, 250), stop=st.integers(-250, 250), step=st.integers(1, 9))
def test_slices_equal_those_of_a_list(size: int, start: int, stop: int, step: int) -> None:
    order = Permutation(size, "key")
    assert order[start:stop:step] == list(order)[start:stop:step]


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        Permutation(10, "key")[10]


def test_the_order_never_changes_between_versions() -> None:
    """A checkpoint of an older version continues in the same order: a change here would lose and repeat samples of
    running jobs."""
    assert list(Permutation(12, "0:0")) == [11, 10, 8, 1, 2, 7, 6, 5, 3, 4, 9, 0]
    assert Permutation(1_281_167, "7:3")[:4] == [301427, 154807, 296751, 970017]


def test_keys_give_unrelated_orders() -> None:
    size = 1000
    orders = [list(Permutation(size, f"0:{epoch}")) for epoch in range(5)]
    for one, other in itertools.combinations(orders, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10  # 1 is expected by chance


@pytest.mark.parametrize("size", [1000, 1437, 10_000])
def test_batches_are_mixed_like_those_of_a_shuffle(size: int) -> None:
    """Chi-square of ten classes in batches of 64, on data sorted by class: mean 9 for random draws, a little less
    without replacement."""
    values = []
    for epoch in range(10):
        order = Permutation(size, f"0:{epoch}")
        for start in range(0, size - 64, 64):
            counts = [0] * 10
            for index in order[start : start + 64]:
                counts[index * 10 // size] += 1
            values.append(sum((count - 6.4) ** 2 / 6.4 for count in counts))
    assert 7.5 < statistics.mean(values) < 10


@pytest.mark.parametrize("size", [7, 100, 1437])
def test_neighbours_are_unrelated(size: int) -> None:
    """Correlation of neighbours over many epochs, in standard errors."""
    middle, variance = (size - 1) / 2, (size * size - 1) / 12
    scores = []
    for epoch in range(100):
        order = list(Permutation(size, f"0:{epoch}"))
        total = sum((a - middle) * (b - middle) for a, b in itertools.pairwise(order))
        scores.append(total / ((size - 1) * variance) + 1 / size)  # without replacement, neighbours repel a little
    assert abs(statistics.mean(scores)) / (statistics.stdev(scores) / 10) < 4
