"""One snapshot in shared memory. Pure data: bytes in, bytes out.

    header     one page    `Header`, its digest, and a first word that is 0 while the snapshot is being written
    structure    bytes       the state, pickled, with numbers in place of its tensors (see `structure`)
    sums       8 bytes     for each PIECE of the payload: the sum of its 64-bit words
    payload    bytes       the tensors, each at a multiple of ALIGN

The digest covers the header, the structure and the sums; the sums cover the payload. A sum of words is as fast as
memory, and a process that is killed in the midst of a write, or a bug that writes elsewhere, does not keep all sums
right.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Fence

if TYPE_CHECKING:
    import mmap

    Memory = bytearray | mmap.mmap | memoryview

COMMITTED = b"EJSNAP\x00\x03"
"""The first word of a complete snapshot, with the format's version as its last byte."""
IN_WORK = bytes(len(COMMITTED))
HEADER_SIZE = 4096
PIECE = 2 << 20
"""Bytes of the payload that have a sum of their own: small enough to stay in a processor's cache between being copied
and being summed."""
ALIGN = 64
_BODY = struct.Struct("<QQQqQQdQQ16s")
_DIGEST_SIZE = 16


class InvalidSnapshotError(Exception):
    """There is no complete snapshot in this memory. The message, the second half of a sentence, says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the parts are."""

    structure_size: int
    payload_size: int

    @property
    def sums_offset(self) -> int:
        return aligned(HEADER_SIZE + self.structure_size)

    @property
    def pieces(self) -> int:
        return -(-self.payload_size // PIECE)

    @property
    def payload_offset(self) -> int:
        return aligned(self.sums_offset + 8 * self.pieces, 4096)

    @property
    def size(self) -> int:
        return self.payload_offset + self.payload_size


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    fence: Fence
    """Of the worker group that took it."""
    step: int
    purpose: bytes
    """16 bytes: the run, and what the state is of. Only a reader with the same purpose takes the snapshot."""
    taken_at: float
    """Unix time, s."""
    layout: Layout
    claim: int = 0
    choice: int = 0
    """See `checkpoint.order.State`."""

    @property
    def age(self) -> tuple[Fence, int, float]:
        """Orders snapshots of one run: those of a later group are newer, even if it went back some steps."""
        return self.fence, self.step, self.taken_at


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


def purpose(*parts: str) -> bytes:
    return hashlib.blake2b(os.fsencode("\0".join(parts)), digest_size=16).digest()


def begin(memory: Memory) -> None:
    """From here on, the memory has no snapshot. Comes before any other write."""
    memory[: len(IN_WORK)] = IN_WORK


def commit(memory: Memory, header: Header) -> None:
    """Makes what was written since `begin` the snapshot. Structure, sums and payload must be in place."""
    body = _BODY.pack(
        header.fence.run,
        header.fence.store_generation,
        header.fence.round,
        header.step,
        header.layout.structure_size,
        header.layout.payload_size,
        header.taken_at,
        header.claim,
        header.choice,
        header.purpose,
    )
    rest = body + _digest(memory, body, header.layout)
    memory[len(COMMITTED) : len(COMMITTED) + len(rest)] = rest
    memory[: len(COMMITTED)] = COMMITTED


def read(memory: Memory) -> Header:
    """The snapshot in this memory, without a look at the payload. Raises InvalidSnapshotError."""
    if len(memory) < HEADER_SIZE:
        raise InvalidSnapshotError(f"it has {len(memory)} bytes, less than a header")
    first = bytes(memory[: len(COMMITTED)])
    if first == IN_WORK:
        raise InvalidSnapshotError("it was not committed")
    if first != COMMITTED:
        raise InvalidSnapshotError("it is not a snapshot of this version")
    start = len(COMMITTED)
    body = bytes(memory[start : start + _BODY.size])
    digest = bytes(memory[start + _BODY.size : start + _BODY.size + _DIGEST_SIZE])
    run, generation, round_number, step, structure, payload, taken_at, *continued, purpose_ = _BODY.unpack(body)
    layout = Layout(structure_size=structure, payload_size=payload)
    if layout.size > len(memory):
        raise InvalidSnapshotError(f"it has {len(memory)} bytes of the {layout.size} that its header says")
    if _digest(memory, body, layout) != digest:
        raise InvalidSnapshotError("its checksum does not match its content")
    return Header(
        fence=Fence(run, generation, round_number),
        step=step,
        purpose=purpose_,
        taken_at=taken_at,
        layout=layout,
        claim=continued[0],
        choice=continued[1],
    )


def _digest(memory: Memory, body: bytes, layout: Layout) -> bytes:
    digest = hashlib.blake2b(body, digest_size=_DIGEST_SIZE)
    digest.update(memory[HEADER_SIZE : HEADER_SIZE + layout.structure_size])
    digest.update(memory[layout.sums_offset : layout.sums_offset + 8 * layout.pieces])
    return digest.digest()
