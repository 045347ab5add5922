"""From where a sharded training continues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint.order import NOTHING, State
from elasticjob_runtime.training.sharded.choice import Choice, Held, choose

OLD, NEW = Fence(1, 0, 2), Fence(1, 0, 3)


def held(rank: int, step: int, shard: int, of: int = 2, *, fence: Fence = NEW, copied: bool = False) -> Held:
    return Held(rank=rank, fence=fence, step=step, shard=shard, of=of, copied=copied)


def choice(found: Sequence[Held], file: State = NOTHING) -> Choice:
    return choose(found, file, "this")


def saved(step: int, *, job: str = "this", claim: int = 1) -> State:
    return State(step=step, job=job, fence=OLD, claim=claim)


CASES = {
    "all shards of the newest step": (
        [held(0, 8, 0), held(1, 8, 1), held(0, 4, 0), held(1, 4, 1)], NOTHING, 8, "step 8, from memory",
    ),
    "the newest step that all have": (
        [held(0, 8, 0), held(0, 4, 0), held(1, 4, 1)], NOTHING,
        4, "step 4, from memory (step 8 in memory lacks shard 1 of 2)",
    ),
    "a lost member's shard from its neighbour": (
        [held(0, 8, 0), held(0, 8, 1, copied=True)], NOTHING,
        8, "step 8, from memory; shard 1 of 2 from the copy of a neighbour",
    ),
    "shards of another number of ranks": (
        [held(0, 8, 0, 3), held(1, 8, 1, 3), held(0, 8, 2, 3, copied=True)], NOTHING,
        8, "step 8, from memory; shard 2 of 3 from the copy of a neighbour",
    ),
    "a later group before a higher step": (
        [held(0, 9, 0, fence=OLD), held(1, 9, 1, fence=OLD), held(0, 4, 0), held(1, 4, 1)], NOTHING,
        4, "step 4, from memory",
    ),
    "an earlier group, if the later one is not complete": (
        [held(0, 9, 0, fence=OLD), held(1, 9, 1, fence=OLD), held(0, 10, 0)], NOTHING,
        9, "step 9, from memory (step 10 in memory lacks shard 1 of 2)",
    ),
    "memory before a checkpoint of the same step": (
        [held(0, 8, 0, fence=OLD), held(1, 8, 1, fence=OLD)], saved(8), 8, "step 8, from memory",
    ),
    "a newer checkpoint before memory": (
        [held(0, 8, 0, fence=OLD), held(1, 8, 1, fence=OLD)], saved(9),
        None, "step 9, from storage (not step 8 in memory: step 9 is newer)",
    ),
    "storage, if shards are lost": (
        [held(0, 8, 0, 4), held(1, 8, 1, 4)], saved(5),
        None, "step 5, from storage (step 8 in memory lacks shards 2, 3 of 4)",
    ),
    "nothing, if shards are lost and there is no storage": (
        [held(0, 8, 0)], NOTHING, None, "storage (step 8 in memory lacks shard 1 of 2)",
    ),
    "storage, if another job has saved there since": (
        [held(0, 8, 0), held(1, 8, 1)], saved(7, job="other"),
        None, "step 7, from storage (not step 8 in memory: another job has saved step 7 since)",
    ),
    "storage, if memory is empty": ([], NOTHING, None, "storage (memory has no snapshot)"),
}  # fmt: skip


@pytest.mark.parametrize(("found", "file", "step", "why"), CASES.values(), ids=CASES.keys())
def test_the_newest_step_with_all_its_shards_is_chosen(
    found: Sequence[Held], file: State, step: int | None, why: str
) -> None:
    chosen = choice(found, file)
    assert (chosen.step, chosen.why) == (step, f"continuing from {why}")
    assert sorted(chosen.sources) == list(range(len(chosen.sources)))


def test_a_shard_comes_from_where_it_was_made_if_possible() -> None:
    chosen = choice([held(0, 8, 1, copied=True), held(0, 8, 0), held(1, 8, 1)])
    assert {shard: each.rank for shard, each in chosen.sources.items()} == {0: 0, 1: 1}


def test_all_ranks_choose_the_same_in_whatever_order_they_see_it() -> None:
    found = [held(rank, 8, shard, copied=rank != shard) for rank in range(3) for shard in range(2)]
    assert choice(found) == choice(found[::-1])
