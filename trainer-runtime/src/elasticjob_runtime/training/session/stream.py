"""Loads a rank's share of each global batch of streams: `StreamFeed`. Which share, `data.streams` says."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch.utils.data

from elasticjob_runtime.data.stream_reader import (
    MOSAIC,
    Known,
    Open,
    Request,
    StreamAnswer,
    StreamPart,
    StreamReader,
    is_mosaic,
)
from elasticjob_runtime.data.streams import Place, Turns
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.feed import Cursor, LoaderOptions, Share, StreamOrder
from elasticjob_runtime.training.session.source_states import SourceStates
from elasticjob_runtime.training.session.world import SessionError

T = TypeVar("T")

EXCHANGE_INTERVAL = 100
"""Steps between two exchanges of the states of sources."""
NONE = 1 << 62
"""No sample has this number."""


class Ranks(Protocol):
    """What a feed needs of the ranks that train together. Both methods raise OverError if the world ends."""

    world: int
    """Another number in each world."""

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest number of all ranks at each index. Collective."""

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in order. Collective."""


@dataclasses.dataclass
class Batch:
    """A global batch, from the sample `start` to `stop`."""

    start: int
    stop: int
    places: list[Place]
    """Those of this rank."""
    answers: list[StreamAnswer] = dataclasses.field(default_factory=list)

    def items(self) -> list[Any]:
        """In the order of `places`; without any, one to fill it up."""
        if not self.places:
            return next((answer.filler for answer in self.answers if answer.filler), [])
        given = {stream: iter(items) for answer in self.answers for stream, items in answer.items.items()}
        return [next(given[place.stream]) for place in self.places]


class StreamFeed:
    """Of one epoch. Before each batch, the ranks tell each other where streams have ended, one batch in advance, so
    that the last batch is known to be the last; and what the streams have given, so that any process that opens one
    later can tell whether it gives the same."""

    def __init__(
        self,
        open_stream: Open,
        order: StreamOrder,
        *,
        epoch: int,
        batch_size: int,
        drop_last: bool,
        collate_fn: Callable[[list[Any]], Any] | None,
        options: LoaderOptions,
        sources: SourceStates,
        ranks: Ranks,
    ) -> None:
        self.order = order
        self._turns = Turns(order.streams, order.lengths)
        self._epoch, self._batch_size, self._drop_last = epoch, batch_size, drop_last
        self._collate = collate_fn or torch.utils.data.default_collate
        self._sources, self._ranks = sources, ranks
        self._pins = options.pin_memory
        self._end = self._turns.size
        """Samples of the epoch, as far as it is known."""
        self._cursor, self._place = Cursor(epoch=epoch), (0, 1)
        self._world = -1
        self._next: tuple[Cursor, tuple[int, int]] | None = None
        """Where the first of the loaded batches begins, and for which place."""
        self._loaders = max(1, options.num_workers)
        self._loader_of: dict[int, int] = {}
        """Stream -> which process of the loader has it open."""
        self._asked: collections.deque[Batch] = collections.deque()
        self._loaded: collections.deque[Batch] = collections.deque()
        self._iterator: Iterator[StreamAnswer] = iter(())
        arguments = {
            **options.arguments(),
            "worker_init_fn": functools.partial(_begin_loader, options.worker_init_fn),
            "pin_memory": False,  # what a process of the loader gives is a part of a batch
        }
        reader: Any = StreamReader(open_stream, epoch)
        self._loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            reader, batch_sampler=self, collate_fn=_only, **arguments
        )

    def next(self, cursor: Cursor, rank: int, world_size: int) -> tuple[Any, Share] | None:
        """The batch at `cursor`; None at the end of the epoch. Collective. Raises OverError if the world ends, and
        SessionError for streams that are not what they were, or not what they should be."""
        place = (rank, world_size)
        if self._ranks.world != self._world or cursor.consumed // self._batch_size % EXCHANGE_INTERVAL == 0:
            self._exchange(cursor)
        if self._next != (cursor, place):
            self._restart(cursor, place)
        self._cursor = cursor
        while True:
            self._load(2)
            missing = min(map(self._first_missing, self._loaded), default=NONE)
            least, unknown, *digests = self._ranks.largest(
                [-(self._end or missing), self._end is None, *self._digests()]
            )
            if not unknown or -least >= cursor.consumed + 2 * self._batch_size:
                break
            self._end = self._checked_end(-least)
            self._restart(cursor, place)
        if not self._loaded:
            return None
        batch = self._loaded.popleft()
        following = self._following(batch, digests)
        self._next = (following, place)
        share = Share(
            positions=tuple(sample for sample, _, _ in batch.places) or (batch.start,),
            samples=len(batch.places),
            batch=batch.stop - batch.start,
            next=following,
        )
        items = batch.items()
        if not items:
            raise SessionError(f"stream {rank % self._turns.streams} of epoch {self._epoch} has no items")
        collated = self._collate(items)
        return torch_private.pinned(collated) if self._pins else collated, share

    def close(self) -> None:
        """See `Feed`."""
        self._iterator = iter(())
        del self._loader

    def __iter__(self) -> Iterator[list[Request]]:
        """For the data loader, which gives its processes the requests in turn: one for each in each batch."""
        (rank, world_size), start = self._place, self._cursor.consumed
        begins: Sequence[Mapping[int, Known] | None] = self._begins()
        while (stop := self._stop_of(start)) > start:
            batch = Batch(start, stop, self._turns.share(start, stop, rank, world_size))
            self._asked.append(batch)
            parts = self._parts(batch)
            for loader in range(self._loaders):
                filler = rank % self._turns.streams if not batch.places and loader == 0 else None
                yield [Request(parts[loader], begins[loader], filler)]
            begins, start = [None] * self._loaders, stop

    # -- inside

    def _stop_of(self, start: int) -> int:
        stop = start + self._batch_size
        if self._end is not None and stop > self._end:
            return start if self._drop_last else self._end
        return stop

    def _parts(self, batch: Batch) -> list[list[StreamPart]]:
        """For each process of the loader, what it reads of a batch."""
        parts: list[list[StreamPart]] = [[] for _ in range(self._loaders)]
        by_stream = sorted(batch.places, key=lambda place: place.stream)
        for stream, places in itertools.groupby(by_stream, key=lambda place: place.stream):
            items = [place.item for place in places]
            committed = self._turns.count(stream, self._cursor.consumed)
            parts[self._loader_of[stream]].append(StreamPart(stream, items[0], items[-1] + 1, committed))
        return parts

    def _begins(self) -> list[Mapping[int, Known] | None]:
        """For each process of the loader, its streams. It keeps those that it has."""
        own = self._turns.of_rank(*self._place)
        self._loader_of = {stream: loader for stream, loader in self._loader_of.items() if stream in own}
        begins: list[dict[int, Known]] = [{} for _ in range(self._loaders)]
        having = collections.Counter(dict.fromkeys(range(self._loaders), 0))
        having.update(self._loader_of.values())
        for stream in own:
            if stream not in self._loader_of:
                self._loader_of[stream] = min(having, key=lambda loader: having[loader])
                having[self._loader_of[stream]] += 1
            known = Known(self._committed(stream), self._digest_of(stream), self._sources.of(stream))
            begins[self._loader_of[stream]][stream] = known
        return list(begins)

    def _committed(self, stream: int) -> int:
        return self._turns.count(stream, self._cursor.consumed)

    def _digest_of(self, stream: int) -> int:
        return self._cursor.digests[stream] if self._cursor.digests else 0

    def _restart(self, cursor: Cursor, place: tuple[int, int]) -> None:
        """What has been read and is not committed is asked for again: the readers have kept it."""
        self._cursor, self._place, self._next = cursor, place, (cursor, place)
        self._asked.clear()
        self._loaded.clear()
        self._iterator = iter(self._loader)

    def _load(self, batches: int) -> None:
        while len(self._loaded) < batches:
            answers: list[StreamAnswer] = []
            for _ in range(self._loaders):
                try:
                    answers.append(next(self._iterator))
                except StopIteration:
                    if self._asked:
                        raise  # of open()
                    return
            for answer in answers:
                self._learn(answer)
            batch = self._asked.popleft()
            batch.answers = answers
            self._loaded.append(batch)

    def _learn(self, answer: StreamAnswer) -> None:
        if answer.error:
            raise SessionError(answer.error)
        for stream, length in answer.ended.items():
            if self._turns.lengths is not None:
                raise SessionError(
                    f"stream {stream} of epoch {self._epoch} has ended after {length} items, but its length in "
                    f"session.stream(lengths=...) is {self._turns.lengths[stream]}"
                )
        for stream, state in answer.states.items():
            self._sources.add(stream, [state], self._committed(stream))

    def _first_missing(self, batch: Batch) -> int:
        """The first sample that a stream of this rank does not have."""
        ended = (pair for answer in batch.answers for pair in answer.ended.items())
        return min((self._turns.sample(stream, length) for stream, length in ended), default=NONE)

    def _digests(self) -> list[int]:
        """Of all streams after the next batch; 0 for those of other ranks."""
        digests = [0] * self._turns.streams
        for stream in self._turns.of_rank(*self._place):
            digests[stream] = self._digest_of(stream)
        for answer in self._loaded[0].answers if self._loaded else ():
            for stream, digest in answer.digests.items():
                digests[stream] = digest
        return digests

    def _following(self, batch: Batch, digests: Sequence[int]) -> Cursor:
        if self._stop_of(batch.stop) == batch.stop:
            return Cursor(epoch=self._epoch + 1)
        return Cursor(epoch=self._epoch, consumed=batch.stop, digests=tuple(digests))

    def _checked_end(self, end: int) -> int:
        """Raises SessionError on all ranks if the epoch cannot end there."""
        if end < self._turns.streams:
            raise SessionError(
                f"stream {end} of epoch {self._epoch} has no items: streams={self._turns.streams} is more than there "
                "are shards"
            )
        if end <= self._cursor.consumed:
            raise SessionError(
                f"epoch {self._epoch} has {end} samples now, and {self._cursor.consumed} were trained on before: "
                "open() must return the same items each time"
            )
        if self._drop_last and end < self._batch_size and not self._cursor.consumed:
            raise SessionError(
                f"with drop_last, epoch {self._epoch} of {end} samples has no batch of {self._batch_size}: give "
                "session.stream() a smaller batch_size"
            )
        return end

    def _exchange(self, cursor: Cursor) -> None:
        """What each rank knows of the sources, so that any of them can go on with a stream that another one had."""
        self._sources.begin_epoch(self._epoch)
        known = {stream: self._sources.of(stream) for stream in range(self._turns.streams)}
        settings = {
            "streams": self._turns.streams, "lengths": self._turns.lengths, "batch_size": self._batch_size,
            "drop_last": self._drop_last,
        }  # fmt: skip
        found = self._ranks.gather((settings, known))
        for rank, (others, _) in enumerate(found):
            if others != found[0][0]:
                raise SessionError(
                    f"session.stream() has other arguments on rank {rank} than on rank 0: {others}, {found[0][0]}"
                )
        for _, states in found:
            for stream, known_there in states.items():
                self._sources.add(stream, known_there, self._turns.count(stream, cursor.consumed))
        self._world = self._ranks.world


def _only(answers: list[StreamAnswer]) -> StreamAnswer:
    return answers[0]


def _begin_loader(own: Callable[[int], None] | None, number: int) -> None:
    """A source that sees that it is in a process of a loader gives a part of its items only."""
    if own is not None:
        own(number)
    torch_private.hide_loader()


def stream_order(
    open_stream: Any, streams: int, lengths: int | Sequence[int] | None, *, batch_size: int, drop_last: bool
) -> StreamOrder:
    """What `session.stream` has been given. Raises TypeError or ValueError."""
    if not callable(open_stream):
        raise TypeError(
            f"session.stream() takes a function open(stream, epoch) that returns the items of one stream, not "
            f"{type(open_stream).__name__}"
        )
    if streams < 1 or batch_size < 1:
        raise ValueError(f"streams and batch_size are 1 or more: {streams}, {batch_size}")
    if lengths is None:
        return StreamOrder(streams=streams, lengths=None)
    each = (lengths,) * streams if isinstance(lengths, int) else tuple(lengths)
    if len(each) != streams or min(each) < 1:
        raise ValueError(f"lengths are of {streams} streams, and 1 or more each: {each}")
    if drop_last and sum(each) < batch_size:
        raise ValueError(f"with drop_last, streams of {sum(each)} items have no batch of {batch_size}")
    return StreamOrder(streams=streams, lengths=each)


def check_dataset(dataset: Any) -> None:
    """Raises TypeError for what `session.batches` cannot divide among the ranks."""
    if is_mosaic(dataset):
        raise TypeError(f"session.batches() cannot divide this data set: {MOSAIC}")
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"session.batches() needs a data set with a length and an index, and {type(dataset).__name__} has none: "
            "use session.stream(), which reads iterators"
        )
