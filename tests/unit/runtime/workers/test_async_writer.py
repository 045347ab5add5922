"""Output that never blocks the agent."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest
from elasticjob_runtime.workers.async_writer import AsyncWriter

from hack.support import eventually

LINE = b"x" * 999 + b"\n"


class Console:
    """A pipe as the console."""

    def __init__(self, writer: AsyncWriter) -> None:
        self.writer = writer
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.seen = b""

    def put(self, data: bytes) -> None:
        self.writer.put(self.writing, data)

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            self.seen += os.read(self.reading, 1 << 20)
        return self.seen


@pytest.fixture
def console() -> Iterator[Console]:
    made = Console(AsyncWriter(stall_timeout=0.2, limit=200_000))
    yield made
    eventually(lambda: (made.read(), not made.writer._queue)[1])
    os.close(made.writing)
    os.close(made.reading)


def test_output_is_written_in_order(console: Console) -> None:
    for number in range(1000):
        console.put(f"{number}\n".encode())
    eventually(lambda: console.read().endswith(b"999\n"))
    assert console.seen == b"".join(f"{number}\n".encode() for number in range(1000))


def test_an_unread_console_blocks_no_worker_and_reports_dropped_lines(console: Console) -> None:
    """While it is full, more output waits; once it is stalled, more output is dropped."""
    for _ in range(300):
        console.put(LINE)
    full = console.writer.full
    assert full
    room = threading.Event()
    console.writer.call_when_room(room.set)
    assert room.wait(10), "the workers wait forever"
    assert console.writer.full is False
    for _ in range(50):
        console.put(b"lost\n")
    eventually(lambda: (console.read(), b"missing" in console.seen)[1])
    assert console.seen.startswith(LINE * 300)
    assert b"[elasticrun] 50 lines of output are missing here" in console.seen
    assert b"lost" not in console.seen
    console.put(b"and on\n")
    eventually(lambda: console.read().endswith(b"and on\n"))


def test_a_slow_console_loses_nothing(console: Console) -> None:
    """It is read slowly, but more often than the stall timeout; the writer waits while it is full."""
    written = 0
    while written < 400:
        if console.writer.full:
            room = threading.Event()
            console.writer.call_when_room(room.set)
            while not room.wait(0.01):
                console.seen += os.read(console.reading, 16384)
        console.put(LINE)
        written += 1
    eventually(lambda: len(console.read()) >= 400 * len(LINE))
    assert console.seen == LINE * 400


def test_output_to_files_is_never_dropped() -> None:
    console = Console(AsyncWriter(stall_timeout=None, limit=1000))
    for _ in range(100):
        console.put(LINE)
    time.sleep(0.1)
    assert console.writer.full
    eventually(lambda: len(console.read()) == 100 * len(LINE))
    eventually(lambda: not console.writer.full)


def test_a_closed_reader_is_ignored(console: Console) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console.writer.put(writing, LINE)
    assert console.writer.flush(10)
    os.close(writing)


def test_flush_times_out_on_a_blocked_console(console: Console) -> None:
    for _ in range(100):
        console.put(LINE)
    assert not console.writer.flush(0.3)
    eventually(lambda: (console.read(), console.writer.flush(0.1))[1])


def test_a_callback_runs_after_all_earlier_output(console: Console) -> None:
    closed: list[bytes] = []
    console.put(b"last line\n")
    console.writer.call_after(console.writing, lambda: closed.append(os.read(console.reading, 100)))
    eventually(lambda: closed == [b"last line\n"])
