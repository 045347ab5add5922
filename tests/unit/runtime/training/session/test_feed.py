"""Every sample of an epoch exactly once, whatever the world sizes."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from elasticjob_runtime.training.session.feed import Cursor, deal


@pytest.mark.parametrize("seed", range(50))
def test_an_epoch_takes_every_position_once_through_any_world_sizes(seed: int) -> None:
    choose = random.Random(seed)
    size, batch_size = choose.randint(1, 200), choose.randint(1, 32)
    drop_last = choose.random() < 0.3 and size >= batch_size
    cursor, seen = Cursor(epoch=3), []
    while cursor.epoch == 3:
        world = choose.randint(1, 9)
        shares = [
            deal(cursor, size=size, batch_size=batch_size, drop_last=drop_last, rank=rank, world_size=world)
            for rank in range(world)
        ]
        dealt = [share for share in shares if share is not None]
        assert len(dealt) == world
        assert len({share.next for share in dealt}) == 1
        counts = [share.samples for share in dealt]
        assert max(counts) - min(counts) <= 1
        assert all(share.positions for share in dealt)
        assert sum(share.weight(world) for share in dealt) == pytest.approx(world)
        seen += [position for share in dealt for position in share.positions[: share.samples]]
        if choose.random() < 0.8:  # committed
            cursor = dealt[0].next
        else:
            del seen[len(seen) - sum(counts) :]
    assert cursor == Cursor(epoch=4)
    assert sorted(seen) == list(range(size // batch_size * batch_size if drop_last else size))
