"""Which rank trains on which samples, whatever the number of ranks: `Cursor` and `deal`, both pure; `Feed` loads
them."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data

from elasticjob_runtime.data.permutation import Permutation
from elasticjob_runtime.training.session.world import SessionError

logger = logging.getLogger("elasticjob_runtime.training")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cursor:
    """How far the training is in its data. All ranks together: valid for any number of ranks."""

    epoch: int = 0
    consumed: int = 0
    """Samples of this epoch."""
    digests: tuple[int, ...] = ()
    """Of the items consumed of each stream, if there are streams; see `data.streams.digest`. Empty at the beginning."""
    over: bool = False
    """The epoch has no more batches, and the script has not done yet what it does at its end. Only where the state was
    saved after its last step."""

    def after(self, samples: int, size: int) -> Cursor:
        """After a step with `samples` of a data set of `size`; the end of an epoch is the beginning of the next."""
        consumed = self.consumed + samples
        if consumed >= size:
            return Cursor(epoch=self.epoch + 1)
        return Cursor(epoch=self.epoch, consumed=consumed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """Which sample is at which position of an epoch, and how many are in a batch."""

    size: int
    """Samples of the data set."""
    batch_size: int
    """Of all ranks together."""
    drop_last: bool
    shuffle: bool
    seed: int

    def difference(self, before: AnyOrder) -> str | None:
        """Why an epoch that began in the order `before` cannot go on in this one, as two values; None: it can. The
        batches may have another size: a cursor counts samples."""
        if isinstance(before, StreamOrder):
            return "it began with session.stream(), and now session.batches() is called"
        if before.size != self.size:
            return f"the data set had {before.size} samples, and now has {self.size}"
        if before.shuffle != self.shuffle:
            return f"shuffle was {before.shuffle}, and now is {self.shuffle}"
        if self.shuffle and before.seed != self.seed:
            return f"seed was {before.seed}, and now is {self.seed}"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The same for an epoch of streams."""

    streams: int
    lengths: tuple[int, ...] | None
    """Of the streams, in items; None: the epoch ends with the first one that does."""

    def difference(self, before: AnyOrder) -> str | None:
        """See `Order`."""
        if not isinstance(before, StreamOrder):
            return "it began with session.batches(), and now session.stream() is called"
        if before.streams != self.streams:
            return f"it had {before.streams} streams, and now has {self.streams}"
        if before.lengths != self.lengths:
            return "the lengths of its streams were others"
        return None


AnyOrder = Order | StreamOrder


def differing(one: AnyOrder, other: AnyOrder) -> str:
    """What differs, as in calls of `session.batches` or `session.stream`."""
    if type(one) is not type(other):
        return "session.batches() is called in one, and session.stream() in the other"
    pairs = zip(vars(one).items(), vars(other).values(), strict=True)
    return ", ".join(
        f"{name}={reprlib.repr(mine)} and {name}={reprlib.repr(theirs)}"
        for (name, mine), theirs in pairs
        if mine != theirs
    )


def saved_order(saved: Mapping[str, Any]) -> AnyOrder:
    """An order that `dataclasses.asdict` has made plain data."""
    if "streams" not in saved:
        return Order(**saved)
    lengths = saved["lengths"]
    return StreamOrder(streams=saved["streams"], lengths=tuple(lengths) if lengths is not None else None)


def beginning(cursor: Cursor, before: AnyOrder | None, epoch: int, order: AnyOrder, *, restart: bool) -> Cursor:
    """Where `epoch` begins or goes on, after `cursor` in the order `before`. Raises SessionError if it began in an
    order in which `cursor` is another sample, unless `restart`."""
    if epoch > cursor.epoch:
        return Cursor(epoch=epoch)
    difference = order.difference(before) if cursor.consumed and before is not None else None
    if not difference:
        return cursor
    if not restart:
        raise SessionError(
            f"epoch {epoch} cannot go on after {cursor.consumed} samples: {difference}. Use what it began with, or "
            "begin it again with restart_epoch=True"
        )
    logger.warning("epoch %d begins again: %s", epoch, difference)
    return Cursor(epoch=epoch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of one global batch."""

    positions: tuple[int, ...]
    """In the order of the epoch. At least one: a rank without samples of its own computes one with weight 0, because
    DDP needs all ranks."""
    samples: int
    """Of this rank; 0 if the one position only fills it up."""
    batch: int
    """Samples in the global batch."""
    next: Cursor
    """Where the training is once this batch is committed."""

    def weight(self, world_size: int) -> float:
        """By what to multiply the mean loss of this share, so that DDP's mean over ranks is the mean over samples."""
        return self.samples * world_size / self.batch


def deal(cursor: Cursor, *, size: int, batch_size: int, drop_last: bool, rank: int, world_size: int) -> Share | None:
    """This rank's share of the next global batch; None at the end of the epoch. Shares differ by at most one sample."""
    end = min(cursor.consumed + batch_size, size)
    batch = end - cursor.consumed
    if batch <= 0 or (drop_last and batch < batch_size):
        return None
    positions = tuple(range(cursor.consumed + rank, end, world_size))
    after = cursor.after(batch, size)
    if drop_last and after.epoch == cursor.epoch and size - after.consumed < batch_size:
        after = Cursor(epoch=cursor.epoch + 1)
    return Share(positions=positions or (cursor.consumed,), samples=len(positions), batch=batch, next=after)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """As of torch's DataLoader."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None

    def arguments(self) -> dict[str, Any]:
        """Of a DataLoader. Its random numbers are not torch's own: the training's must not depend on the number of
        changes."""
        return {
            **vars(self),
            "persistent_workers": self.num_workers > 0,
            "generator": torch.Generator(),
        }


class Feed:
    """Loads this rank's share of each global batch of one epoch. Data loader processes survive a change: only their
    index stream is dealt again."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        *,
        epoch: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        options: LoaderOptions,
    ) -> None:
        self.order = order
        self._indices: Sequence[int] = (
            Permutation(order.size, key=f"{order.seed}:{epoch}") if order.shuffle else range(order.size)
        )  # the same as ElasticDistributedSampler's
        self._start = Cursor(epoch=epoch)
        self._place = (0, 1)
        self._expected: tuple[Cursor, tuple[int, int]] | None = None
        self._shares: collections.deque[Share] = collections.deque()
        """Of the batches that the data loader loads, or has loaded ahead."""
        self._iterator: Iterator[Any] = iter(())
        self._loader = torch.utils.data.DataLoader(
            dataset, batch_sampler=self, collate_fn=collate_fn, **options.arguments()
        )

    def next(self, cursor: Cursor, rank: int, world_size: int) -> tuple[Any, Share] | None:
        """The batch at `cursor`; None at the end of the epoch."""
        if self._expected != (cursor, (rank, world_size)):
            self._start, self._place = cursor, (rank, world_size)
            self._shares.clear()
            self._loader.generator.manual_seed(self._seed(cursor, rank))
            self._iterator = iter(self._loader)
        try:
            batch = next(self._iterator)
        except StopIteration:
            if self._shares:
                raise  # the data set's own
            return None
        share = self._shares.popleft()
        self._expected = (share.next, (rank, world_size))
        return batch, share

    def close(self) -> None:
        """Ends the data loader's processes now. The garbage collector might only begin to in a fork of this process,
        which cannot, and says so."""
        self._iterator = iter(())
        del self._loader  # refers to this object, and this one to it

    def __iter__(self) -> Iterator[list[int]]:
        """For the data loader: the indices of this rank's shares in the rest of the epoch."""
        cursor, (rank, world_size) = self._start, self._place
        while cursor.epoch == self._start.epoch:
            share = self._deal(cursor, rank, world_size)
            if share is None:
                return
            self._shares.append(share)
            yield [self._indices[position] for position in share.positions]
            cursor = share.next

    def _seed(self, cursor: Cursor, rank: int) -> int:
        """From which data loader processes that start there draw: others in each epoch and on each rank."""
        key = f"{self.order.seed}:{cursor.epoch}:{cursor.consumed}:{rank}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")

    def _deal(self, cursor: Cursor, rank: int, world_size: int) -> Share | None:
        return deal(
            cursor,
            size=self.order.size,
            batch_size=self.order.batch_size,
            drop_last=self.order.drop_last,
            rank=rank,
            world_size=world_size,
        )
