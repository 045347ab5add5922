"""Signals that end torch's agent: this member leaves at once, while torch's handlers still process them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def ends_the_agent(handler: object) -> bool:
    """Whether `handler` is torch's, Python's own for Ctrl-C, or this package's. A program with any other handler
    decides itself what the signal means."""
    module = getattr(handler, "__module__", "") or ""
    return handler is signal.default_int_handler or module.startswith(
        ("torch.distributed.elastic.", "elasticjob_runtime.")
    )


class SignalPipe:
    """Passes signals to the member's thread at once, while torch's handlers process them. Inactive if another part of
    the process has already set a wakeup descriptor."""

    def __init__(self) -> None:
        self.read: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before == -1:
            self.read = read
        else:
            signal.set_wakeup_fd(before)

    def close(self) -> None:
        """Stops passing signals. The pipe stays open, since the member's thread may still read it."""
        if self.read is not None and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Handles signals until torch does, which is when it starts workers. Without this, a signal would kill the agent
    before it could leave the rendezvous."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in LEAVE_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
