"""Output that never blocks the agent: each AsyncWriter writes on its own thread.

A slow terminal or log collector loses nothing: when the writer is `full`, the agent stops reading the workers' pipes
until there is room, so that the workers wait as if they wrote there themselves. A destination that accepts nothing for
a while must not stop the training: then new output is dropped, and a notice says how much once the destination accepts
output again.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import io
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

LIMIT = 1 << 20
"""Bytes that may wait in one writer."""

STALL_TIMEOUT = 5.0
"""s without progress after which a console counts as stalled."""

_PIECE = 4096
"""Bytes that a pipe ready for writing accepts at once (PIPE_BUF)."""


class File:
    """A file that only the writing thread touches. Even opening it, or creating its directory, may take minutes if a
    disk hangs."""

    def __init__(self, path: Path, on_error: Callable[[OSError], None] | None = None) -> None:
        """`on_error` is called once, on that thread, if the file cannot be written; None: log a warning."""
        self._path = path
        self._on_error = on_error or self._warn
        self._file: io.FileIO | None = None
        self._failed = False

    def fileno(self) -> int:
        """Opens the file if it is not open yet. Raises OSError."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(self._path, "a")
        return self._file.fileno()

    @property
    def closed(self) -> bool:
        return self._file is None

    def create(self) -> None:
        """Creates the file before there is output, for readers that look for it."""
        try:
            self.fileno()
        except OSError as error:
            self.failed(error)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def failed(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self._on_error(error)

    def _warn(self, error: OSError) -> None:
        logger.warning("cannot write to %s, which lacks output from now on: %s", self._path, error.strerror)


Target = int | File
"""A file descriptor or a file."""


class AsyncWriter:
    """Writes to descriptors and files in order, from one thread. `put` may be called from any thread."""

    def __init__(self, *, stall_timeout: float | None = STALL_TIMEOUT, limit: int = LIMIT) -> None:
        """`stall_timeout`: s without progress after which output is dropped; None: never, as for files."""
        self._stall_timeout = stall_timeout
        self._limit = limit
        self._queue: collections.deque[tuple[Target, bytes | Callable[[], None]]] = collections.deque()
        self._size = 0
        self._dropped = 0
        self._stalled = False
        self._progress_at = time.monotonic()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._on_room: list[Callable[[], None]] = []

    def put(self, target: Target, data: bytes) -> None:
        """Returns at once. Output beyond the limit is kept too, unless the destination is stalled."""
        with self._changed:
            if self._stalled and self._size + len(data) > self._limit:
                self._dropped += data.count(b"\n")
                return
            self._enqueue(target, data)
            self._size += len(data)

    def call_after(self, target: Target, call: Callable[[], None]) -> None:
        """Calls `call` on the writing thread when everything put before is written, for example to close a file."""
        with self._changed:
            self._enqueue(target, call)

    @property
    def full(self) -> bool:
        return self._size >= self._limit and not self._stalled

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls `call` once when this is no longer full, on the writing thread; at once if it is not full now."""
        with self._changed:
            if self.full:
                self._on_room.append(call)
                return
        call()

    def flush(self, timeout: float) -> bool:
        """Waits until everything is written, or there was no progress for `timeout` s, or 0.5 s if stalled. Returns
        whether everything is."""
        timeout = min(timeout, 0.5) if self._stalled else timeout
        end = time.monotonic() + timeout
        with self._changed:
            while self._queue:
                left = max(end, self._progress_at + timeout) - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.1))
        return True

    def _enqueue(self, target: Target, item: bytes | Callable[[], None]) -> None:
        self._queue.append((target, item))
        if self._thread is None:
            atexit.register(self.flush, STALL_TIMEOUT)
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                target, item = self._queue[0]
            if callable(item):
                item()
            else:
                self._write(target, item)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def _write(self, target: Target, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                fd = target if isinstance(target, int) else target.fileno()
                self._wait_for(fd)
                count = os.write(fd, view[:_PIECE])
            except BlockingIOError:
                continue
            except OSError as error:
                count = len(view)  # a closed terminal or a full disk must not end the training
                if isinstance(target, File):
                    target.failed(error)
            view = view[count:]
            self._written(target, count)

    def _wait_for(self, fd: int) -> None:
        """Waits until `fd` is ready for writing."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if self._stall_timeout is not None and not self._stalled and not poll.poll(self._stall_timeout * 1000):
            with self._changed:
                self._stalled = True
            self._call_waiting()
        poll.poll()

    def _written(self, target: Target, count: int) -> None:
        notice = b""
        with self._changed:
            self._size -= count
            self._progress_at = time.monotonic()
            if self._stalled and self._size <= self._limit // 2:
                self._stalled = False
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    text = (
                        f"[elasticrun] {dropped} lines of output are missing here: nothing read them for "
                        f"{self._stall_timeout or 0:g} s"
                    )
                    notice = f"\n{text}\n".encode()
            room = bool(self._on_room) and self._size <= self._limit // 2
        if notice:
            self.put(target, notice)
        if room:
            self._call_waiting()

    def _call_waiting(self) -> None:
        with self._changed:
            calls, self._on_room = self._on_room, []
        for call in calls:
            call()


CONSOLES = {1: AsyncWriter(), 2: AsyncWriter()}
"""The agent's standard output and error, for its log and its workers' output."""

FILES = AsyncWriter(stall_timeout=None)
"""All log files. A disk that hangs blocks the workers, as if they wrote there themselves."""


def flush(timeout: float = 5.0) -> None:
    """Call this before the agent exits."""
    for writer in (*CONSOLES.values(), FILES):
        writer.flush(timeout)


class LogHandler(logging.Handler):
    """Writes the agent's log to its standard error, between the lines of its workers, without blocking."""

    def emit(self, record: logging.LogRecord) -> None:
        CONSOLES[2].put(2, (self.format(record) + "\n").encode(errors="backslashreplace"))
