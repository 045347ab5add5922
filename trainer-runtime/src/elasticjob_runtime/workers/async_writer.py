"""Output that never makes the agent wait: each outlet writes on a thread of its own.

A terminal or a log collector that is merely slow loses nothing: who reads the workers' pipes sees that the outlet is
`full` and reads no further until there is room, so the workers wait, as they would if they wrote there themselves. One
that takes nothing at all for a while must not stop the training: then new output is dropped, and a notice says how much
once it takes some again.
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
"""Bytes that may wait in one outlet."""

PATIENCE = 5.0
"""s without a byte being taken after which a console counts as stalled."""

_PIECE = 4096
"""What a pipe that is ready takes at once (PIPE_BUF)."""


class File:
    """A file that is only ever touched by the thread that writes it, its folder and its opening included: each may take
    minutes where a disk hangs."""

    def __init__(self, path: Path, on_error: Callable[[OSError], None] | None = None) -> None:
        """`on_error` is told, once and on that thread, what keeps it from being written; None: the log is."""
        self._path = path
        self._on_error = on_error or self._warn
        self._file: io.FileIO | None = None
        self._told = False

    def fileno(self) -> int:
        """Opens it where it is not open yet. Raises OSError."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(self._path, "a")
        return self._file.fileno()

    @property
    def closed(self) -> bool:
        return self._file is None

    def create(self) -> None:
        """For whoever looks for it before there is something in it."""
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
        if not self._told:
            self._told = True
            self._on_error(error)

    def _warn(self, error: OSError) -> None:
        logger.warning("%s cannot be written, and lacks output from now on: %s", self._path, error.strerror)


Target = int | File
"""A descriptor, or a file."""


class AsyncWriter:
    """Writes to descriptors and files in order, from one thread. `put` may be called from any thread."""

    def __init__(self, *, patience: float | None = PATIENCE, limit: int = LIMIT) -> None:
        """`patience`: s after which a destination that takes nothing loses output; None: never, as for files."""
        self._patience = patience
        self._limit = limit
        self._queue: collections.deque[tuple[Target, bytes | Callable[[], None]]] = collections.deque()
        self._size = 0
        self._dropped = 0
        self._stalled = False
        self._taken_at = time.monotonic()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._on_room: list[Callable[[], None]] = []

    def put(self, target: Target, data: bytes) -> None:
        """Never waits. What is over the limit is kept unless the outlet is stalled."""
        with self._changed:
            if self._stalled and self._size + len(data) > self._limit:
                self._dropped += data.count(b"\n")
                return
            self._enqueue(target, data)
            self._size += len(data)

    def then(self, target: Target, call: Callable[[], None]) -> None:
        """Calls it, on the outlet's thread, when all that was put before is written: to close a file."""
        with self._changed:
            self._enqueue(target, call)

    @property
    def full(self) -> bool:
        return self._size >= self._limit and not self._stalled

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls it once, on the outlet's thread, when this is no longer full."""
        with self._changed:
            if self.full:
                self._on_room.append(call)
                return
        call()

    def flush(self, timeout: float) -> bool:
        """Waits until all is written, or nothing was taken for `timeout` s; not long for one that is stalled. Returns
        whether all is."""
        timeout = min(timeout, 0.5) if self._stalled else timeout
        end = time.monotonic() + timeout
        with self._changed:
            while self._queue:
                left = max(end, self._taken_at + timeout) - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.1))
        return True

    def _enqueue(self, target: Target, item: bytes | Callable[[], None]) -> None:
        self._queue.append((target, item))
        if self._thread is None:
            atexit.register(self.flush, PATIENCE)
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
            self._took(target, count)

    def _wait_for(self, fd: int) -> None:
        """Until it takes something."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if self._patience is not None and not self._stalled and not poll.poll(self._patience * 1000):
            with self._changed:
                self._stalled = True
            self._tell_room()
        poll.poll()

    def _took(self, target: Target, count: int) -> None:
        notice = b""
        with self._changed:
            self._size -= count
            self._taken_at = time.monotonic()
            if self._stalled and self._size <= self._limit // 2:
                self._stalled = False
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    text = (
                        f"[elasticrun] {dropped} lines of output are missing here: nobody took any for "
                        f"{self._patience or 0:g} s"
                    )
                    notice = f"\n{text}\n".encode()
            room = bool(self._on_room) and self._size <= self._limit // 2
        if notice:
            self.put(target, notice)
        if room:
            self._tell_room()

    def _tell_room(self) -> None:
        with self._changed:
            calls, self._on_room = self._on_room, []
        for call in calls:
            call()


CONSOLES = {1: AsyncWriter(), 2: AsyncWriter()}
"""The agent's own standard output and error: its log and its workers' output, each whole and in order."""

FILES = AsyncWriter(patience=None)
"""All log files. A disk that hangs makes workers wait, as it does when they write themselves."""


def flush(timeout: float = 5.0) -> None:
    """At the agent's end."""
    for outlet in (*CONSOLES.values(), FILES):
        outlet.flush(timeout)


class LogHandler(logging.Handler):
    """The agent's own log: to its standard error, between the lines of its workers, without ever waiting for it."""

    def emit(self, record: logging.LogRecord) -> None:
        CONSOLES[2].put(2, (self.format(record) + "\n").encode(errors="backslashreplace"))
