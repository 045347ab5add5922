"""Which stream has which sample, and how items are recognised."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from elasticjob_runtime.data.streams import Place, Turns, digest


@pytest.mark.parametrize("seed", range(50))
def test_every_sample_is_taken_once_through_50_changes_of_size(seed: int) -> None:
    choose = random.Random(seed)
    streams, batch = choose.randint(1, 12), choose.randint(1, 30)
    lengths = [choose.randint(1, 200) for _ in range(streams)] if choose.random() < 0.5 else None
    turns, consumed = Turns(streams, lengths), 0
    seen: list[Place] = []
    for _ in range(50):
        world = choose.randint(1, 15)
        stop = min(consumed + batch, turns.size if turns.size is not None else 10**9)
        shares = [turns.share(consumed, stop, rank, world) for rank in range(world)]
        assert all(place.stream in turns.of_rank(rank, world) for rank, share in enumerate(shares) for place in share)
        if choose.random() < 0.7:  # committed
            seen += sorted(place for share in shares for place in share)
            consumed = stop
    assert [place.sample for place in seen] == list(range(consumed))
    items = {place.stream: [other.item for other in seen if other.stream == place.stream] for place in seen}
    for stream, taken in items.items():
        assert taken == list(range(len(taken)))
        assert turns.count(stream, consumed) == len(taken)
    assert all(turns.sample(place.stream, place.item) == place.sample for place in seen)
    if lengths is None:
        assert all(place == (place.sample, place.sample % streams, place.sample // streams) for place in seen)
    elif consumed == turns.size:
        assert items == {stream: list(range(length)) for stream, length in enumerate(lengths)}


def test_ranks_have_as_many_samples_as_each_other_if_their_number_divides_that_of_the_streams() -> None:
    turns = Turns(12)
    for world in (1, 2, 3, 4, 6, 12):
        assert {len(turns.share(24, 36, rank, world)) for rank in range(world)} == {12 // world}


@dataclasses.dataclass
class Sample:
    text: str
    label: int


def items() -> list[Any]:
    return [
        None, True, 1, 1.5, "a", "é", b"a", bytearray(b"ab"), [1, 2], (1, 2), [[1], 2], {"a": 1}, {"a": {"b": [1]}},
        Sample("a", 1), "a" * 100_000, b"a" * 100_000,
    ]  # fmt: skip


def test_a_digest_is_the_same_for_equal_items_and_another_one_for_others() -> None:
    found = [digest(0, item) for item in items()]
    assert len(set(found)) == len(found)
    assert found == [digest(0, item) for item in items()]
    assert all(0 < number < 2**62 for number in found)
    assert digest(1, "a") != digest(2, "a")


def test_tensors_and_arrays_have_digests_of_what_they_contain() -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")

    def values(last: int) -> list[Any]:
        table = torch.arange(12).reshape(3, 4)
        return [
            torch.tensor([1, last]), torch.tensor(last), torch.tensor([1.0, last], dtype=torch.bfloat16),
            torch.cat([torch.zeros(200_000), torch.tensor([last])]), (table * last)[:, 1:3],
            numpy.array([1, last]), numpy.array(["a", "b" * last], dtype=object), numpy.float32(last),
            numpy.array(["2026-01-01", f"2026-01-0{last}"], dtype="datetime64[D]"),
        ]  # fmt: skip

    for one, same, other in zip(values(2), values(2), values(3), strict=True):
        assert digest(0, one) == digest(0, same)
        assert digest(0, one) != digest(0, other), one
    assert len({digest(0, value) for value in values(2)}) == len(values(2))
