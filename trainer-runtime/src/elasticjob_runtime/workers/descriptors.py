"""File descriptors: how many this process may have open, and what becomes of the agent when there are none left.

Many container runtimes give a process 1,024. An agent needs a handful, but a planner asks every member of its job, and
a store host has a connection to every worker. So the agent raises its own limit as far as it may, and its workers get
back the one that the user has set.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable

WANTED = 65_536
"""Descriptors that an agent asks for at most: enough for a connection to each member of the largest jobs."""

_RESERVE = 64
"""Descriptors that are left to everything else when many are opened at once."""

_MOST_AT_ONCE = 2_048

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)

_given: list[int] = []
"""The soft limit that this process was started with; empty: it has not been raised."""


def raise_limit(wanted: int = WANTED) -> int:
    """Raises the soft limit of this process to `wanted`, or to the hard limit where that is lower. Returns the soft
    limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # a sandbox that does not let it: the agent does with what it has
        return soft
    if not _given:
        _given.append(soft)
    return target


def give_back_limit(pid: int = 0) -> None:
    """Sets the soft limit of the child `pid` (0: of this process) to the one that the agent was started with."""
    if not _given:
        return
    with contextlib.suppress(OSError, ValueError):  # it has gone already
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_given[0], hard))


def room() -> int:
    """How many more descriptors this process may well open at once; at least 8, at most 2,048."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_AT_ONCE
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # not one is left to look with
        used = soft
    return max(8, min(_MOST_AT_ONCE, soft - used - _RESERVE))


def exhausted(error: OSError) -> bool:
    """Whether `error` says that this process, or the machine, has no descriptor left."""
    return error.errno in _EXHAUSTED


def explain(error: OSError) -> str:
    """`error` in a sentence for people; where descriptors have run out, with what to do about it."""
    if not exhausted(error):
        return str(error)
    if error.errno == errno.ENFILE:
        return "this machine has no file descriptor left; raise the sysctl fs.file-max"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process has no file descriptor left (limit {soft}, hard limit {hard}); raise the hard limit: `ulimit "
        "-Hn`, "
        "LimitNOFILE= of the container runtime's service, or `--ulimit nofile` of the container"
    )


class Door:
    """Accepts connections on a listening socket that does not block.

    Where no descriptor is left for a connection, it is taken with a spare one, greeted and closed: one that nobody
    takes would keep an event loop awake for ever.
    """

    def __init__(
        self, listener: socket.socket, greet: Callable[[socket.socket], object] = lambda _connection: None
    ) -> None:
        """`greet` gets every connection as it comes; its OSErrors are ignored."""
        self._listener = listener
        self._greet = greet
        self._spare: int | None = _open_spare()
        self.turned_away = 0
        """Connections that were closed because there was no descriptor for them."""

    def accept(self) -> list[socket.socket]:
        """All who wait. They are the caller's to close, and do not block."""
        accepted: list[socket.socket] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if exhausted(error) and self._turn_away():
                    continue
                return accepted
            self._welcome(connection)
            accepted.append(connection)

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _turn_away(self) -> bool:
        """Whether there was somebody."""
        if self._spare is None:
            self._spare = _open_spare()
        if self._spare is None:
            time.sleep(0.05)  # the caller's loop comes back at once
            return False
        os.close(self._spare)
        try:
            connection, _ = self._listener.accept()
        except OSError:  # nobody waits any more, or another thread took the spare one
            return False
        else:
            self._welcome(connection)
            connection.close()
            self.turned_away += 1
            return True
        finally:
            self._spare = _open_spare()

    def _welcome(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            self._greet(connection)


def _open_spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
