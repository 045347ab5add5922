"""Two buffers that one process writes in turn: at any moment at least one of them has a complete snapshot."""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elasticjob_runtime.training.checkpoint.order import Kind, State
from elasticjob_runtime.training.memory import copying, limits, policy, structure
from elasticjob_runtime.training.memory import format as snapshot_format
from elasticjob_runtime.training.memory.buffers import Buffer, NoMemoryError
from elasticjob_runtime.training.memory.format import Header, Layout


class Pair:
    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = tuple(buffers)

    @classmethod
    def create(cls) -> Pair:
        return cls([Buffer.create(), Buffer.create()])

    @classmethod
    def adopt(cls, fds: Sequence[int]) -> Pair | None:
        """Those of an earlier process. Takes over the descriptors, unless it returns None: that process, or a child of
        it, has not ended, or these are no snapshots."""
        found: list[Buffer] = []
        for fd in fds:
            try:
                buffer = Buffer.adopt(fd)
            except (OSError, ValueError):
                buffer = None
            if buffer is None:
                for one in found:
                    one.release()
                return None
            found.append(buffer)
        return cls(found)

    @property
    def fds(self) -> list[int]:
        return [buffer.fd for buffer in self.buffers]

    def write(self, state: Any, header: Header) -> float:
        """Replaces the older snapshot. Returns the seconds that this takes every time, without those for new memory.

        header: without its layout. Raises UnsupportedStateError, NoMemoryError.
        """
        began = time.perf_counter()
        parts = structure.take_apart(state)
        layout = Layout(structure_size=len(parts.data), payload_size=parts.payload_size)
        buffer = self._older()
        taken = time.perf_counter() - began
        self._check(layout.size)
        buffer.reserve(layout.size)
        began = time.perf_counter()
        memory = buffer.memory
        snapshot_format.begin(memory)
        memory[snapshot_format.HEADER_SIZE : snapshot_format.HEADER_SIZE + layout.structure_size] = parts.data
        copy_into(payload_of(buffer, layout), parts)
        snapshot_format.commit(memory, dataclasses.replace(header, layout=layout))
        return taken + time.perf_counter() - began

    def _older(self) -> Buffer:
        first, second = ((buffer.header(), buffer) for buffer in self.buffers)
        if first[0] is None or second[0] is None:
            return first[1] if first[0] is None else second[1]
        return first[1] if first[0].age < second[0].age else second[1]

    def prepare(self, size: int) -> None:
        """Gets the memory for snapshots of `size` bytes. Raises NoMemoryError."""
        self._check(size)
        for buffer in self.buffers:
            buffer.reserve(size)

    def _check(self, size: int) -> None:
        needed = sum(max(0, size - len(buffer.memory)) for buffer in self.buffers)
        free = limits.free_memory() if needed else None
        if not policy.fits(needed, free):
            raise NoMemoryError(f"two copies need {needed >> 20} MiB more, and only {(free or 0) >> 20} MiB are free")


def size_of(state: Any) -> int:
    """Bytes of a snapshot. Raises UnsupportedStateError."""
    parts = structure.take_apart(state)
    return Layout(structure_size=len(parts.data), payload_size=parts.payload_size).size


class Recovered:
    """A complete snapshot that an earlier process took."""

    def __init__(self, buffer: Buffer, header: Header) -> None:
        self.header = header
        self._buffer = buffer

    @property
    def step(self) -> int:
        return self.header.step

    def state(self, job: str) -> State:
        """job: of this process, since others have other purposes."""
        header = self.header
        return State(
            step=header.step, kind=Kind.MEMORY, job=job, fence=header.fence, claim=header.claim, choice=header.choice
        )

    def is_intact(self) -> bool:
        return payload_of(self._buffer, self.header.layout).is_intact()

    def view(self) -> Any | None:
        """The state, with tensors that are in the snapshot's memory; None as for `load`."""
        payload = payload_of(self._buffer, self.header.layout)
        return self._put_together(payload.view, any_object=True)

    def load(self, device: str | torch.device | None = "cpu", *, any_object: bool = True) -> Any | None:
        """The state, as a copy; None if its writer has not ended and has replaced it meanwhile, or if it has objects
        and not `any_object`.

        device: of all tensors; None: those on which they were.
        """
        payload = payload_of(self._buffer, self.header.layout)

        def tensor(slot: structure.Slot) -> torch.Tensor:
            return payload.tensor(slot).to(slot.device if device is None else device)

        return self._put_together(tensor, any_object=any_object)

    def _put_together(self, tensor: Callable[[structure.Slot], torch.Tensor], *, any_object: bool) -> Any | None:
        if self.is_replaced():
            return None
        start = snapshot_format.HEADER_SIZE
        data = self._buffer.memory[start : start + self.header.layout.structure_size]
        try:
            state = structure.put_together(data, tensor, any_object=any_object)
        except structure.UnsupportedStateError:
            return None
        except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError):
            if self.is_replaced():
                return None
            raise
        return None if self.is_replaced() else state

    def is_replaced(self) -> bool:
        """Whether its writer, which had not ended, has written another one there."""
        return self._buffer.header() != self.header

    def close(self) -> None:
        self._buffer.close()


def payload_of(buffer: Buffer, layout: Layout) -> copying.Payload:
    def tensor(dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(buffer.memory, dtype=dtype, offset=offset, count=count)

    return copying.Payload(
        tensor(torch.uint8, layout.payload_offset, layout.payload_size),
        tensor(torch.int64, layout.sums_offset, layout.pieces),
    )


def copy_into(payload: copying.Payload, parts: structure.Structure) -> None:
    staged = copying.pinned_buffers() if parts.near < len(parts.tensors) else ()
    payload.write(parts, staged=staged, threads=copying.threads())
