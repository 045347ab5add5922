"""Reads streams in one process, a loader's or the script's own: opens, skips, and keeps what is not committed yet."""

from __future__ import annotations

import collections
import copy
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from elasticjob_runtime.data.streams import SourceState, digest

logger = logging.getLogger("elasticjob_runtime.training")

Open = Callable[[int, int], Iterable[Any]]
"""(stream, epoch) -> its items."""

CHECKED = 8
"""Items that are read after a source has got its state back, at least. Their digest shows whether they are the same: a
shuffle buffer, for one, is not part of the state of Hugging Face's data sets."""
STATE_INTERVAL = 1.0
"""s between two states of a source."""


class StreamError(Exception):
    """A stream is not what it was, or not what it should be."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of a stream that is committed up to `count` items."""

    count: int
    digest: int
    states: Sequence[SourceState] = ()


@dataclasses.dataclass(frozen=True)
class StreamPart:
    """The items of a stream from `start` to `stop`; those before `committed` are not asked for again."""

    stream: int
    start: int
    stop: int
    committed: int


@dataclasses.dataclass(frozen=True)
class Request:
    parts: Sequence[StreamPart]
    begins: Mapping[int, Known] | None
    """The streams of this reader from now on; None: as before."""
    filler: int | None
    """A stream from which any item is wanted, if `parts` give none."""


@dataclasses.dataclass
class StreamAnswer:
    items: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    """Stream -> those of its part; fewer if it has ended."""
    digests: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stream -> that of its items up to the end of the part."""
    ended: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stream that has ended -> how many items it has."""
    states: dict[int, SourceState] = dataclasses.field(default_factory=dict)
    filler: list[Any] = dataclasses.field(default_factory=list)
    """An item, if the parts have given none, and there has been one."""
    error: str = ""
    """Of a stream: raised in the script's process, as one sentence."""


class StreamReader:
    """Answers requests. A data set for torch's DataLoader: each process of the loader has a copy."""

    def __init__(self, open_stream: Open, epoch: int) -> None:
        self._open = open_stream
        self._epoch = epoch
        self._known: Mapping[int, Known] = {}
        self._streams: dict[int, _Stream] = {}
        self._any: list[Any] = []
        """An item, if there has been one."""

    def __getitem__(self, request: Request) -> StreamAnswer:
        try:
            return self._answer(request)
        except StreamError as error:
            return StreamAnswer(error=str(error))

    def _answer(self, request: Request) -> StreamAnswer:
        if request.begins is not None:
            self._begin(request.begins)
        answer = StreamAnswer()
        for part in request.parts:
            stream = self._stream(part.stream)
            answer.items[part.stream], answer.digests[part.stream] = stream.read(part)
            if answer.items[part.stream]:
                self._any = answer.items[part.stream][-1:]
            if stream.count < part.stop:
                answer.ended[part.stream] = stream.count
            if (state := stream.new_state(time.monotonic())) is not None:
                answer.states[part.stream] = state
        if request.filler is not None and not self._any:
            other = _Stream(self._open, request.filler, self._epoch)
            other.begin(Known(0, 0))
            self._any, _ = other.read(StreamPart(request.filler, 0, 1, 0))
        if not any(answer.items.values()):
            answer.filler = self._any[:1]
        return answer

    def _begin(self, known: Mapping[int, Known]) -> None:
        """Streams that this reader had before go on; the others are closed."""
        self._known = known
        self._streams = {number: stream for number, stream in self._streams.items() if number in known}
        for number, stream in self._streams.items():
            stream.go_on(known[number])

    def _stream(self, number: int) -> _Stream:
        if number not in self._streams:
            stream = _Stream(self._open, number, self._epoch)
            stream.begin(self._known.get(number, Known(0, 0)))
            self._streams[number] = stream
        return self._streams[number]


class _Stream:
    def __init__(self, open_stream: Open, number: int, epoch: int) -> None:
        self._open, self._number, self._epoch = open_stream, number, epoch
        self._source: Any = None
        """What has the state, if there is such a thing."""
        self._items: Iterator[Any] = iter(())
        self.count = 0
        """Items read so far."""
        self._digest = 0
        self._kept: collections.deque[tuple[Any, int]] = collections.deque()
        """The last of them, which are not committed, each with the digest up to it."""
        self._state_at, self._state_time, self._state_restores = 0, 0.0, True

    def begin(self, known: Known) -> None:
        """Skips what is committed. Raises StreamError if it is not what it was."""
        usable = [state for state in known.states if known.count - state.count >= CHECKED]
        if usable and self._begins_at(max(usable, key=lambda state: state.count), known):
            return
        self._start(None)
        self._skip(known)

    def go_on(self, known: Known) -> None:
        """As `begin`, for a stream that is open: it keeps what it has given and is not committed."""
        if self.count - len(self._kept) > known.count:  # that step was taken again without this process
            self.begin(known)
        elif self.count < known.count:
            self._skip(known)
        while len(self._kept) > self.count - known.count:
            _, before = self._kept.popleft()
            if len(self._kept) == self.count - known.count and before != known.digest:
                raise self._differs(known)

    def read(self, part: StreamPart) -> tuple[list[Any], int]:
        """The items of the part, and the digest up to the last of them."""
        while len(self._kept) > self.count - part.committed:
            self._kept.popleft()
        while self.count < part.stop and self._next():
            pass
        first = self.count - len(self._kept)
        found = [self._kept[index] for index in range(part.start - first, min(part.stop, self.count) - first)]
        return [item for item, _ in found], found[-1][1] if found else 0

    def new_state(self, now: float) -> SourceState | None:
        """The state of the source, from time to time. None: not now, or it has none."""
        due = now - self._state_time >= STATE_INTERVAL and self.count - self._state_at >= CHECKED
        if self._source is None or not due:
            return None
        self._state_at, self._state_time = self.count, now
        state = copy.deepcopy(self._source.state_dict())
        return SourceState(self.count, self._digest, state) if _is_plain(state) else None

    def _start(self, state: SourceState | None) -> None:
        source = self._open(self._number, self._epoch)
        if is_mosaic(source):
            raise StreamError(MOSAIC)
        if state is not None:
            source.load_state_dict(state.state)  # type: ignore[attr-defined]
        self._items = iter(source)
        has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self._source = source if has_state and self._state_restores else None
        self.count, self._digest = (state.count, state.digest) if state is not None else (0, 0)
        self._kept.clear()

    def _begins_at(self, state: SourceState, known: Known) -> bool:
        """Whether the source goes on as it did before, given its state."""
        try:
            self._start(state)
            self._skip(known)
        except Exception as error:  # noqa: BLE001 whatever it is: the state only makes skipping faster
            logger.warning(
                "stream %d of epoch %d is read from its beginning: the state of its source does not restore it (%s)",
                self._number, self._epoch, "other items" if isinstance(error, StreamError) else repr(error),
            )  # fmt: skip
            self._state_restores = False
            return False
        return True

    def _skip(self, known: Known) -> None:
        while self.count < known.count and self._next():
            self._kept.clear()
        if self.count < known.count:
            raise StreamError(
                f"stream {self._number} of epoch {self._epoch} has ended after {self.count} items, of which "
                f"{known.count} were trained on before: open() must return the same items each time"
            )
        if self._digest != known.digest:
            raise self._differs(known)

    def _differs(self, known: Known) -> StreamError:
        return StreamError(
            f"stream {self._number} of epoch {self._epoch} is not deterministic: its first {known.count} items are not "
            "those that were trained on before. Seed what is random in open() with its arguments, or do it in "
            "collate_fn"
        )

    def _next(self) -> bool:
        """Reads an item. False: there is none."""
        try:
            item = next(self._items)
        except StopIteration:
            self._items = iter(())
            return False
        self.count += 1
        self._digest = digest(self._digest, item)
        self._kept.append((item, self._digest))
        return True


MOSAIC = (
    "StreamingDataset of mosaicml-streaming divides itself among the ranks that there are when it is made, and its "
    "len() is that of one rank, so it cannot follow a changing number of ranks. Download the shards, and give "
    "streaming.LocalDataset to session.batches()"
)


def is_mosaic(dataset: Any) -> bool:
    return any(
        base.__name__ == "StreamingDataset" and base.__module__.partition(".")[0] == "streaming"
        for base in type(dataset).__mro__
    )


def _is_plain(state: Any) -> bool:
    """Whether it is data that checkpoints can have."""
    if isinstance(state, dict):
        return all(_is_plain(key) and _is_plain(value) for key, value in state.items())
    if isinstance(state, (list, tuple)):
        return all(map(_is_plain, state))
    torch = sys.modules.get("torch")
    return type(state) in {type(None), bool, int, float, str, bytes} or (
        torch is not None and type(state) is torch.Tensor
    )
