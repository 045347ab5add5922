"""From where a sharded training continues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.sharded.choice import Choice, Held, choose

OLD, NEW = Fence(1, 0, 2), Fence(1, 0, 3)


def held(rank: int, step: int, shard: int, of: int = 2, *, fence: Fence = NEW, copied: bool = False) -> Held:
    return Held(rank=rank, fence=fence, step=step, shard=shard, of=of, copied=copied)


def choice(found: Sequence[Held], stored: int | None = -1) -> Choice:
    return choose(found, dict.fromkeys([each.fence for each in found], stored))


CASES = {
    "all shards of the newest step": (
        [held(0, 8, 0), held(1, 8, 1), held(0, 4, 0), held(1, 4, 1)], -1, 8, "step 8, from memory",
    ),
    "the newest step that all have": (
        [held(0, 8, 0), held(0, 4, 0), held(1, 4, 1)], -1,
        4, "step 4, from memory (step 8 in memory lacks shard 1 of 2)",
    ),
    "a lost member's shard from its neighbour": (
        [held(0, 8, 0), held(0, 8, 1, copied=True)], -1,
        8, "step 8, from memory; shard 1 of 2 from the copy of a neighbour",
    ),
    "shards of another number of ranks": (
        [held(0, 8, 0, 3), held(1, 8, 1, 3), held(0, 8, 2, 3, copied=True)], -1,
        8, "step 8, from memory; shard 2 of 3 from the copy of a neighbour",
    ),
    "a later group before a higher step": (
        [held(0, 9, 0, fence=OLD), held(1, 9, 1, fence=OLD), held(0, 4, 0), held(1, 4, 1)], -1,
        4, "step 4, from memory",
    ),
    "an earlier group, if the later one is not complete": (
        [held(0, 9, 0, fence=OLD), held(1, 9, 1, fence=OLD), held(0, 10, 0)], -1,
        9, "step 9, from memory (step 10 in memory lacks shard 1 of 2)",
    ),
    "memory before a checkpoint of the same step": (
        [held(0, 8, 0), held(1, 8, 1)], 8, 8, "step 8, from memory",
    ),
    "a newer checkpoint before memory": (
        [held(0, 8, 0), held(1, 8, 1)], 9, None, "step 9, from storage (step 8 in memory is older)",
    ),
    "storage, if shards are lost": (
        [held(0, 8, 0, 4), held(1, 8, 1, 4)], 5,
        None, "step 5, from storage (step 8 in memory lacks shards 2, 3 of 4)",
    ),
    "nothing, if shards are lost and there is no storage": (
        [held(0, 8, 0)], -1, None, "storage (step 8 in memory lacks shard 1 of 2)",
    ),
    "storage, if another job has saved there since": (
        [held(0, 8, 0), held(1, 8, 1)], None,
        None, "storage (another worker group has saved since step 8 was in memory)",
    ),
    "storage, if memory is empty": ([], -1, None, "storage (memory has no snapshot)"),
}  # fmt: skip


@pytest.mark.parametrize(("found", "stored", "step", "why"), CASES.values(), ids=CASES.keys())
def test_the_newest_step_with_all_its_shards_is_chosen(
    found: Sequence[Held], stored: int | None, step: int | None, why: str
) -> None:
    chosen = choice(found, stored)
    assert (chosen.step, chosen.why) == (step, f"continuing from {why}")
    assert sorted(chosen.sources) == list(range(len(chosen.sources)))


def test_a_shard_comes_from_where_it_was_made_if_possible() -> None:
    chosen = choice([held(0, 8, 1, copied=True), held(0, 8, 0), held(1, 8, 1)])
    assert {shard: each.rank for shard, each in chosen.sources.items()} == {0: 0, 1: 1}


def test_all_ranks_choose_the_same_in_whatever_order_they_see_it() -> None:
    found = [held(rank, 8, shard, copied=rank != shard) for rank in range(3) for shard in range(2)]
    assert choice(found) == choice(found[::-1])
