"""What counts as a complete snapshot."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.memory import format as snapshot_format
from elasticjob_runtime.training.memory.format import (
    HEADER_SIZE,
    PIECE,
    Header,
    InvalidSnapshotError,
    Layout,
    begin,
    commit,
    read,
)

STRUCTURE = b"structure" * 10


def header(round_number: int = 3, step: int = 120, payload_size: int = 4096) -> Header:
    return Header(
        fence=Fence(1, 0, round_number),
        step=step,
        purpose=snapshot_format.purpose("run", "session"),
        taken_at=1000.0,
        layout=Layout(structure_size=len(STRUCTURE), payload_size=payload_size),
    )


def written(of: Header) -> bytearray:
    memory = bytearray(of.layout.size)
    begin(memory)
    memory[HEADER_SIZE : HEADER_SIZE + len(STRUCTURE)] = STRUCTURE
    commit(memory, of)
    return memory


def test_what_is_written_is_read() -> None:
    assert read(written(header())) == header()


def test_a_snapshot_in_work_does_not_count() -> None:
    memory = written(header())
    begin(memory)
    with pytest.raises(InvalidSnapshotError, match="not committed"):
        read(memory)


def test_any_changed_byte_of_header_structure_or_sums_is_found() -> None:
    memory = written(header())
    sums = header().layout.sums_offset
    for position in [*range(96), *range(HEADER_SIZE, HEADER_SIZE + len(STRUCTURE)), *range(sums, sums + 8)]:
        memory[position] ^= 0x10
        with pytest.raises(InvalidSnapshotError):
            read(memory)
        memory[position] ^= 0x10
    assert read(memory) == header()


@pytest.mark.parametrize("size", [0, 1, 8, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 10, 2 * HEADER_SIZE])
def test_memory_that_ends_too_early_has_no_snapshot(size: int) -> None:
    with pytest.raises(InvalidSnapshotError):
        read(written(header())[:size])


def test_sizes_in_a_header_are_not_believed() -> None:
    memory = written(header())
    commit(memory, dataclasses.replace(header(), layout=Layout(structure_size=1 << 60, payload_size=1 << 60)))
    with pytest.raises(InvalidSnapshotError):
        read(memory)


@pytest.mark.parametrize(
    ("payload_size", "pieces"),
    [(0, 0), (64, 1), (PIECE, 1), (PIECE + 64, 2), (10 * PIECE, 10)],
)
def test_parts_do_not_overlap(payload_size: int, pieces: int) -> None:
    layout = Layout(structure_size=1001, payload_size=payload_size)
    assert layout.pieces == pieces
    assert layout.sums_offset >= HEADER_SIZE + 1001
    assert layout.sums_offset + 8 * pieces <= layout.payload_offset
    assert layout.size == layout.payload_offset + payload_size


def test_purposes_differ_by_each_part() -> None:
    purposes = {snapshot_format.purpose(*parts) for parts in [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b")]}
    assert len(purposes) == 4
    assert {len(purpose) for purpose in purposes} == {16}
