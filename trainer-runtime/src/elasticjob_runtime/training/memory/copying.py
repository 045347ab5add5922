"""Copies tensors into the payload of a snapshot, with its sums, and out of it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence

import torch

from elasticjob_runtime.training.channel import number
from elasticjob_runtime.training.memory.format import PIECE
from elasticjob_runtime.training.memory.structure import Slot, Structure, as_bytes

STAGE = 16 * PIECE
"""Bytes of each of the two buffers through which tensors of a GPU are copied."""
MOST_THREADS = 4
"""One thread does not use all of a machine's memory bandwidth, and more than these gain little."""
_WORD = 8


class Payload:
    """The payload and its sums, as tensors on a snapshot's memory."""

    def __init__(self, payload: torch.Tensor, sums: torch.Tensor | None) -> None:
        """payload: bytes, a multiple of 8; sums: 64-bit integers, one for each piece; None: `write` makes none."""
        self._bytes = payload
        self._words = payload.view(torch.int64)
        self._sums = sums

    def write(self, structure: Structure, *, staged: Sequence[torch.Tensor] = (), threads: int = 1) -> None:
        """Copies the tensors and sets the sums. staged: two pinned buffers, for tensors of a GPU."""
        sources = [as_bytes(tensor) for tensor in structure.tensors]
        near = structure.near
        pieces = list(windows(structure.slots[:near], PIECE))
        if threads == 1 or len(pieces) < 2 * threads:
            self._fill_all(pieces, sources)
        else:
            size = -(-len(pieces) // threads)
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                parts = [pieces[start : start + size] for start in range(0, len(pieces), size)]
                list(pool.map(self._fill_all, parts, [sources] * len(parts)))
        if near < len(sources):
            self._write_staged(windows(structure.slots[near:], staged[0].numel()), sources[near:], staged)

    def is_intact(self) -> bool:
        assert self._sums is not None
        whole = self._bytes.numel() // PIECE
        words = self._words[: whole * (PIECE // _WORD)].view(whole, PIECE // _WORD)
        rest = self._words[whole * (PIECE // _WORD) :]
        if not torch.equal(words.sum(1), self._sums[:whole]):
            return False
        return not rest.numel() or bool(rest.sum() == self._sums[whole])

    def tensor(self, slot: Slot) -> torch.Tensor:
        """A copy of one tensor."""
        tensor = torch.empty(slot.shape, dtype=getattr(torch, slot.dtype))
        if slot.size:
            as_bytes(tensor).copy_(self._bytes[slot.offset : slot.offset + slot.size])
        return tensor

    def view(self, slot: Slot) -> torch.Tensor:
        """One tensor, in this memory."""
        found = self._bytes[slot.offset : slot.offset + slot.size]
        return found.view(getattr(torch, slot.dtype)).view(slot.shape)

    def _fill_all(self, pieces: Sequence[Window], sources: Sequence[torch.Tensor]) -> None:
        for piece in pieces:
            for part in piece.parts:
                at = piece.offset + part.at
                self._bytes[at : at + part.size].copy_(sources[part.tensor][part.start : part.start + part.size])
            self._sum(piece.offset)

    def _sum(self, offset: int) -> None:
        """Of the piece at `offset`, while it is still in the processor's cache."""
        if self._sums is None:
            return
        words = self._words[offset // _WORD : (offset + PIECE) // _WORD]
        torch.sum(words, 0, out=self._sums[offset // PIECE])

    def _write_staged(
        self, parts: Iterator[Window], sources: Sequence[torch.Tensor], staged: Sequence[torch.Tensor]
    ) -> None:
        """The GPU fills one buffer while this process empties the other one."""
        filled: tuple[Window, torch.Tensor, list[torch.cuda.Event]] | None = None
        for count, window in enumerate(parts):
            buffer = staged[count % 2]
            for part in window.parts:
                source = sources[part.tensor][part.start : part.start + part.size]
                buffer[part.at : part.at + part.size].copy_(source, non_blocking=True)
            events = _record({sources[part.tensor].device for part in window.parts})
            if filled is not None:
                self._empty(*filled)
            filled = (window, buffer, events)
        if filled is not None:
            self._empty(*filled)

    def _empty(self, window: Window, buffer: torch.Tensor, events: Sequence[torch.cuda.Event]) -> None:
        for event in events:
            event.synchronize()
        for start in range(0, window.size, PIECE):
            end = min(start + PIECE, window.size)
            self._bytes[window.offset + start : window.offset + end].copy_(buffer[start:end])
            self._sum(window.offset + start)


@dataclasses.dataclass(frozen=True, slots=True)
class TensorPart:
    """Bytes of a tensor, and where in the window they go."""

    tensor: int
    start: int
    size: int
    at: int


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Some bytes of the payload."""

    offset: int
    size: int
    parts: tuple[TensorPart, ...]


def windows(slots: Sequence[Slot], size: int) -> Iterator[Window]:
    """The payload from the first slot to the last one, cut into windows of `size` bytes. Pure."""
    start = slots[0].offset if slots else 0
    end = slots[-1].offset + slots[-1].size if slots else 0
    first = 0
    while start < end:
        stop = min(start + size, end)
        parts = []
        index = first
        while index < len(slots) and slots[index].offset < stop:
            slot = slots[index]
            begin, finish = max(slot.offset, start), min(slot.offset + slot.size, stop)
            if begin < finish:
                parts.append(TensorPart(index, begin - slot.offset, finish - begin, begin - start))
            if slot.offset + slot.size <= stop:
                first = index + 1
            index += 1
        yield Window(start, stop - start, tuple(parts))
        start = stop


def threads() -> int:
    """For copying: this process's share of the machine's processors."""
    processors = len(os.sched_getaffinity(0)) // max(1, number("LOCAL_WORLD_SIZE"))
    return 1 if torch.get_num_threads() > 1 else max(1, min(MOST_THREADS, processors))


@functools.cache
def pinned_buffers() -> list[torch.Tensor]:
    return [torch.empty(STAGE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]


def _record(devices: set[torch.device]) -> list[torch.cuda.Event]:
    """Events after the copies that were queued on these devices."""
    events = []
    for device in devices:
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            events.append(event)
    return events
