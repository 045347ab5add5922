"""In which order the samples of an epoch come from its streams, and how to recognise the items of a stream. Pure.

A stream is an iterator without a length. The samples of an epoch take turns over its V streams: sample n is item n // V
of stream n mod V, whatever the number of ranks. So the number of samples consumed says how far each stream is.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

LARGE = 1 << 16
"""Bytes from which only the beginning and the end of a value count in a digest: hashing an image takes longer than
decoding a part of it."""


class Place(NamedTuple):
    """Where a sample is."""

    sample: int
    stream: int
    item: int
    """Of the stream."""


class Turns:
    """Which stream has which sample. With the lengths of the streams, those that are over are left out of the turns,
    and every item is a sample. Without, the epoch ends with the first sample that is not there."""

    def __init__(self, streams: int, lengths: Sequence[int] | None = None) -> None:
        self.streams = streams
        self.lengths = lengths
        self.size = sum(lengths) if lengths is not None else None
        """Samples of the epoch; None: not known."""
        self._rounds = [0, *sorted(set(lengths))[:-1]] if lengths is not None else [0]
        """Before which turn other streams take part than before."""
        self._starts = [0]
        for before, after in itertools.pairwise(self._rounds):
            self._starts.append(self._starts[-1] + (after - before) * len(self._active(before)))
        self._active = functools.lru_cache(maxsize=4)(self._active)  # type: ignore[method-assign]

    def _active(self, turn: int) -> Sequence[int]:
        """Streams that take part in it."""
        if self.lengths is None:
            return range(self.streams)
        return [stream for stream, length in enumerate(self.lengths) if length > turn]

    def count(self, stream: int, samples: int) -> int:
        """How many of the first `samples` samples are items of `stream`."""
        part = bisect.bisect_right(self._starts, samples) - 1
        active = self._active(self._rounds[part])
        index = bisect.bisect_left(active, stream)
        if index == len(active) or active[index] != stream:
            assert self.lengths is not None
            return self.lengths[stream]
        turns, rest = divmod(samples - self._starts[part], len(active))
        return self._rounds[part] + turns + (index < rest)

    def sample(self, stream: int, item: int) -> int:
        """Which sample this item is, if the stream has it."""
        part = bisect.bisect_right(self._rounds, item) - 1
        active = self._active(self._rounds[part])
        return self._starts[part] + (item - self._rounds[part]) * len(active) + bisect.bisect_left(active, stream)

    def share(self, start: int, stop: int, rank: int, world_size: int) -> list[Place]:
        """The samples from `start` to `stop` of the streams of this rank, in order."""
        found: list[Place] = []
        for part, (begin, end) in enumerate(itertools.pairwise([*self._starts, stop])):
            first, last = max(start, begin), min(stop, end)
            if first >= last:
                continue
            active = self._active(self._rounds[part])
            for index, stream in enumerate(active):
                if stream % world_size == rank:
                    turn = -(-(first - begin - index) // len(active))
                    found += (
                        Place(sample, stream, self._rounds[part] + (sample - begin) // len(active))
                        for sample in range(begin + index + turn * len(active), last, len(active))
                    )
        return sorted(found)

    def of_rank(self, rank: int, world_size: int) -> range:
        """The streams of a rank. Each rank has as many as the others, if `world_size` divides their number."""
        return range(rank, self.streams, world_size)


@dataclasses.dataclass(frozen=True)
class SourceState:
    """What the `state_dict` of a source was."""

    count: int
    """Items of the stream before it."""
    digest: int
    """Of these."""
    state: Any


def digest(before: int, item: Any) -> int:
    """Of a stream up to `item`, given that up to the item before; 0 for none. Less than 2 ** 62.

    The same in every process, for plain data, tensors, arrays and images. Of other objects only the type counts.
    """
    found = hashlib.blake2b(before.to_bytes(8, "big"), digest_size=8)
    _add(found, item)
    return (int.from_bytes(found.digest(), "big") >> 2) or 1


def _add(found: Any, value: Any) -> None:
    found.update(type(value).__qualname__.encode())
    if (parts := _parts(value)) is not None:
        for part in parts:
            _add(found, part)
        found.update(b"]")
    elif value is None or isinstance(value, (bool, int, float, complex)):
        found.update(repr(value).encode())
    elif isinstance(value, str):
        _add_bytes(found, value.encode(errors="surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _add_bytes(found, bytes(value))
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        _add_tensor(found, value, torch)
    elif hasattr(value, "tobytes"):  # an array of NumPy, an image
        found.update(f"{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}".encode())
        _add_bytes(found, value.tobytes())


def _parts(value: Any) -> Iterable[Any] | None:
    """What it consists of; None: it is one value."""
    if isinstance(value, Mapping):
        return itertools.chain.from_iterable(value.items())
    if isinstance(value, (list, tuple)):
        return value
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if getattr(getattr(value, "dtype", None), "hasobject", False):  # an array of NumPy whose bytes are addresses
        return value.ravel().tolist()  # type: ignore[no-any-return]
    return None


def _add_bytes(found: Any, data: bytes) -> None:
    found.update(len(data).to_bytes(8, "big"))
    for part in (data,) if len(data) <= LARGE else (data[: LARGE // 2], data[-LARGE // 2 :]):
        found.update(part)


def _add_tensor(found: Any, value: Any, torch: Any) -> None:
    found.update(f"{value.dtype}{tuple(value.shape)}".encode())
    if value.layout is not torch.strided or value.is_quantized:
        return
    flat, most = value.detach().reshape(-1), LARGE // 2 // value.element_size()
    for part in (flat,) if value.nbytes <= LARGE else (flat[:most], flat[-most:]):
        _add_bytes(found, part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
