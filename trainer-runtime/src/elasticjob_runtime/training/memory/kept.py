"""A copy of a state for a thread that writes it while the training goes on.

The copy's memory is kept for the next one: memory that is new takes several times as long as copying into it.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from elasticjob_runtime.training.memory import structure
from elasticjob_runtime.training.memory.buffers import Buffer, NoMemoryError
from elasticjob_runtime.training.memory.copying import Payload
from elasticjob_runtime.training.memory.pair import copy_into
from elasticjob_runtime.training.memory.structure import UnsupportedStateError


class KeptCopy:
    """Room for one copy. A forked child has none: its parent may still write what is in there."""

    def __init__(self) -> None:
        self._buffer: Buffer | None = None
        self._pid = 0

    def of(self, state: Any) -> Any | None:
        """The state, with its tensors on the CPU; good until the next call. None: it has objects that are not plain
        data, or there is no memory."""
        try:
            parts = structure.take_apart(state)
            if self._buffer is None or self._pid != os.getpid():
                self._buffer, self._pid = Buffer.create(), os.getpid()
            buffer = self._buffer
            buffer.reserve(parts.payload_size)
            if parts.payload_size:
                copy_into(Payload(_bytes(buffer, 0, parts.payload_size), sums=None), parts)
            return structure.put_together(parts.data, lambda slot: _tensor(buffer, slot), any_object=False)
        except (UnsupportedStateError, NoMemoryError, OSError):
            return None


def _tensor(buffer: Buffer, slot: structure.Slot) -> torch.Tensor:
    """With a storage of its own: `torch.save` writes whole storages."""
    dtype = getattr(torch, slot.dtype)
    if not slot.size:
        return torch.empty(slot.shape, dtype=dtype)
    return _bytes(buffer, slot.offset, slot.size).view(dtype).view(slot.shape)


def _bytes(buffer: Buffer, offset: int, size: int) -> torch.Tensor:
    return torch.frombuffer(buffer.memory, dtype=torch.uint8, offset=offset, count=size)
