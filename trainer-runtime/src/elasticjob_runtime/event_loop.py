"""The agent's event loop: file descriptors, calls from other threads, and one deadline. No polling: it sleeps until
something happens."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_ERRORS, ERROR_SECONDS = 10, 60.0
"""So many unexpected exceptions of callbacks within so many seconds end the loop."""


def start_thread(target: Callable[[], None], name: str) -> bool:
    """Starts a daemon thread. False: there is no room for one more."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError as error:
        logger.warning(
            "cannot start the thread %s (%s): the limit of processes and threads is reached. Raise `ulimit -u` of this "
            "user, or the kubelet's podPidsLimit",
            name,
            error,
        )
        return False
    return True


class EventLoop:
    """Single-threaded; only `call_soon` may be used from other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._errors: collections.deque[float] = collections.deque(maxlen=MAX_ERRORS)
        """When callbacks raised the last unexpected exceptions."""
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
        """Runs what is ready; sleeps until something is, at most `timeout` seconds. Raises what callbacks raise only if
        that happens again and again: a bug in one of them need not end the worker processes."""
        if self._calls:
            timeout = 0
        for key, _ in self._selector.select(timeout):
            if (
                self._selector.get_map().get(key.fd) is key
            ):  # an earlier callback may have removed it, and registered another under its number
                self._run(key.data)
        while self._calls:
            self._run(self._calls.popleft())

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            now = self.now()
            self._errors.append(now)
            if len(self._errors) == MAX_ERRORS and now - self._errors[0] < ERROR_SECONDS:
                raise
            logger.exception("internal error number %d; the agent continues. Please report it", len(self._errors))

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
