"""The agent's event loop: file descriptors, calls from other threads, and one deadline. No polling: it sleeps until
something happens."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import time
from collections.abc import Callable


class EventLoop:
    """Single-threaded; only `call_soon` may be used from other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_reader(self._wake_read, self._drain)

    @property
    def wakeup_fd(self) -> int:
        """For `signal.set_wakeup_fd`: a byte written here wakes the loop."""
        return self._wake_write

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def remove_reader(self, fd: int) -> None:
        """Raises KeyError where `fd` is not registered."""
        self._selector.unregister(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when `fd` can be written to: a connection has been established, or has failed."""

        def ready() -> None:
            self._selector.unregister(fd)
            callback()

        self._selector.register(fd, selectors.EVENT_WRITE, ready)

    def remove(self, fd: int) -> None:
        """Forgets `fd`, whatever it is registered for."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def now(self) -> float:
        return time.monotonic()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop's thread. Thread-safe."""
        self._calls.append(call)
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # full of earlier wake-ups: it will wake

    def wait(self, timeout: float | None) -> None:
        """Runs what is ready; sleeps until something is, at most `timeout` seconds."""
        if self._calls:
            timeout = 0
        for key, _ in self._selector.select(timeout):
            if (
                self._selector.get_map().get(key.fd) is key
            ):  # an earlier callback may have removed it, and registered another under its number
                key.data()
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
