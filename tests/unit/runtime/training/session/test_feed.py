"""Every sample of an epoch exactly once, whatever the world sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import random

import pytest

pytest.importorskip("torch")

import torch.utils.data
from elasticjob_runtime.training.session.feed import (
    Cursor,
    Feed,
    LoaderOptions,
    Order,
    StreamOrder,
    deal,
    differing,
)

from hack.support import eventually


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


class Squares(torch.utils.data.Dataset[int]):
    def __init__(self, size: int, broken: int = -1) -> None:
        self._size, self._broken = size, broken

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if index == self._broken:
            raise StopIteration
        return index * index


def order(size: int, batch_size: int) -> Order:
    return Order(size=size, batch_size=batch_size, drop_last=False, shuffle=False, seed=0)


def feed(dataset: Squares, *, num_workers: int = 0, epoch: int = 0) -> Feed:
    return Feed(
        dataset, order(len(dataset), 6), epoch=epoch, collate_fn=list, options=LoaderOptions(num_workers=num_workers)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_batch_comes_with_its_share_also_after_a_change_of_the_world(num_workers: int) -> None:
    fed, cursor, worlds = feed(Squares(40), num_workers=num_workers), Cursor(), [(0, 1), (1, 3), (1, 3), (0, 2), (3, 4)]
    for rank, size in [*worlds, (0, 9), (8, 9)]:
        found = fed.next(cursor, rank, size)
        assert found is not None
        batch, share = found
        assert share == deal(cursor, size=40, batch_size=6, drop_last=False, rank=rank, world_size=size)
        assert batch == [position**2 for position in share.positions]
        if rank != 3:  # that step was interrupted
            cursor = share.next
    assert fed.next(Cursor(epoch=0, consumed=40), 0, 1) is None


def test_a_data_set_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    fed = feed(Squares(40, broken=3))
    with pytest.raises(StopIteration):
        fed.next(Cursor(), 0, 1)


class Drawn(Squares):
    def __getitem__(self, index: int) -> int:
        return random.getrandbits(60)


def test_data_loader_processes_draw_other_random_numbers_in_each_epoch_and_on_each_rank() -> None:
    def drawn(epoch: int, rank: int) -> int:
        with contextlib.closing(feed(Drawn(40), num_workers=1, epoch=epoch)) as fed:
            found = fed.next(Cursor(epoch=epoch), rank, 2)
        assert found is not None
        return int(found[0][0])

    assert drawn(0, 0) == drawn(0, 0)
    assert len({drawn(epoch, rank) for epoch in (0, 1) for rank in (0, 1)}) == 4


def test_the_processes_of_an_epochs_data_loader_end_with_it() -> None:
    """Otherwise the garbage collector ends them, also in their successors, which "can only test a child process"."""
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        feed = Feed([torch.ones(1)] * 8, order(8, 2), epoch=0, collate_fn=None, options=LoaderOptions(num_workers=2))
        assert feed.next(Cursor(), 0, 1) is not None
        assert len(set(multiprocessing.active_children()) - before) == 2
        feed.close()
        eventually(lambda: set(multiprocessing.active_children()) <= before, what="they end")
    finally:
        gc.enable()


def test_what_differs_between_two_orders_is_named() -> None:
    one = order(40, 6)
    assert differing(one, dataclasses.replace(one, seed=1, drop_last=True)) == (
        "drop_last=False and drop_last=True, seed=0 and seed=1"
    )
    stream = StreamOrder(streams=4, lengths=None)
    assert differing(stream, one) == "session.batches() is called in one, and session.stream() in the other"
    assert differing(stream, dataclasses.replace(stream, lengths=(9,) * 4)) == "lengths=None and lengths=(9, 9, 9, 9)"
