"""A process may be killed at any point of a write: there is always one complete snapshot, and never a mixture."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from elasticjob_runtime.training.memory.buffers import Buffer
from elasticjob_runtime.training.memory.format import COMMITTED, HEADER_SIZE, IN_WORK, PIECE
from elasticjob_runtime.training.memory.pair import Pair

from tests.unit.runtime.training.memory.states import header, recovered

pytestmark = pytest.mark.torch

SIZES = (10, 600_000, 1, 800_000, 77)


def state(step: int) -> dict[str, object]:
    """All numbers are the step."""
    return {"step": step, "tensors": [torch.full((size,), float(step)) for size in SIZES]}


def assert_state(pair: Pair, *steps: int) -> int:
    """The newest snapshot is that of one of these steps, as a whole."""
    found = recovered(pair)
    assert found is not None
    loaded = found.load()
    assert loaded is not None
    assert loaded["step"] == found.step
    assert found.step in steps
    for tensor in loaded["tensors"]:
        assert torch.equal(tensor, torch.full_like(tensor, float(found.step)))
    return found.step


def writes(buffer: Buffer) -> Iterator[tuple[int, int]]:
    """Offsets and sizes of what a write into this buffer writes after its beginning, in order."""
    found = buffer.header()
    assert found is not None
    layout = found.layout
    yield HEADER_SIZE, layout.structure_size
    for piece in range(layout.pieces):
        yield layout.payload_offset + piece * PIECE, min(PIECE, layout.payload_size - piece * PIECE)
        yield layout.sums_offset + piece * 8, 8
    yield len(COMMITTED), 104
    yield 0, len(COMMITTED)


def cuts(size: int) -> list[int]:
    """Everywhere in small writes, and at the edges and in the middle of large ones."""
    return list(range(size + 1)) if size <= 128 else [0, 1, 7, 8, size // 2, size - 8, size - 1, size]


@pytest.mark.parametrize("before", ["an older snapshot", pytest.param("nothing", marks=pytest.mark.nightly)])
def test_a_write_cut_off_anywhere_leaves_the_snapshot_before(before: str) -> None:
    pair = Pair.create()
    first = 1 if before == "an older snapshot" else 2
    for step in range(first, 3):
        pair.write(state(step), header(step))
    target = pair._older()
    target.reserve(max(len(buffer.memory) for buffer in pair.buffers))
    old = bytes(target.memory)
    pair.write(state(3), header(3))
    new = bytes(target.memory)
    incomplete = bytearray(IN_WORK + old[len(IN_WORK) :])
    tried = 0
    for offset, size in writes(target):
        for cut in cuts(size):
            incomplete[offset : offset + cut] = new[offset : offset + cut]
            target.memory[:] = bytes(incomplete)
            complete = offset == 0 and cut == size
            assert_state(pair, 3 if complete else 2)
            tried += 1
    assert tried > 150


@pytest.mark.parametrize("where", [0.0, 0.3, 0.5, 0.999])
def test_a_damaged_payload_is_found(where: float) -> None:
    pair = Pair.create()
    pair.write(state(1), header(1))
    pair.write(state(2), header(2))
    newest = next(buffer for buffer in pair.buffers if (found := buffer.header()) is not None and found.step == 2)
    found = newest.header()
    assert found is not None
    newest.memory[found.layout.payload_offset + int(where * found.layout.payload_size)] ^= 1
    assert_state(pair, 1)


def test_a_process_killed_at_any_time_leaves_a_complete_snapshot() -> None:
    """A real process, and SIGKILL."""
    pair, choose = Pair.create(), random.Random(1)
    pair.write(state(0), header(0))
    step, (written, writes_once) = 0, os.pipe()
    for kill in range(25):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            own = Pair([Buffer(os.dup(fd)) for fd in pair.fds])
            while True:
                step += 1
                own.write(state(step), header(step))
                if step == 1:
                    os.write(writes_once, b".")
        if kill == 0:
            os.read(written, 1)
        time.sleep(choose.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        step = assert_state(pair, *range(step, step + 10_000))
    assert step > 0
    os.close(written)
    os.close(writes_once)


def test_a_later_group_that_went_back_is_newer() -> None:
    pair = Pair.create()
    pair.write(state(100), header(100, round_number=1))
    pair.write(state(90), header(90, round_number=2))
    assert_state(pair, 90)
    pair.write(state(91), header(91, round_number=2))
    assert_state(pair, 91)


def test_buffers_grow_with_the_state() -> None:
    pair = Pair.create()
    for step, size in enumerate([10, 1_000_000, 10, 2_000_000], 1):
        pair.write({"step": step, "tensors": [torch.full((size,), float(step))]}, header(step))
        assert_state(pair, step)


def test_the_memory_is_used_again() -> None:
    pair = Pair.create()
    for step in range(1, 20):
        pair.write(state(step), header(step))
    assert sum(os.fstat(fd).st_blocks * 512 for fd in pair.fds) < 2 * 4 * sum(SIZES) + (1 << 16)
