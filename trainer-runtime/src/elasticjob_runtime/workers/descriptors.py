"""File descriptors: the limit on how many this process may have open, and how to continue when none is left.

Many container runtimes set a limit of 1,024. An agent needs few, but the planner connects to every member of the job,
and a store host has a connection to every worker. So the agent raises its own limit as far as it may, and restores the
user's limit for its workers.
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
"""The limit an agent sets if it may: enough for a connection to each member of the largest jobs."""

_RESERVE = 64
"""Descriptors that `available` leaves to everything else."""

_MAX_AVAILABLE = 2_048

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)

_original: list[int] = []
"""The soft limit that this process was started with; empty if it was not raised."""


def raise_limit(wanted: int = WANTED) -> int:
    """Raises the soft limit of this process to `wanted`, or to the hard limit if that is lower. Returns the new soft
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # forbidden by a sandbox
        return soft
    if not _original:
        _original.append(soft)
    return target


def restore_limit(pid: int = 0) -> None:
    """Sets the soft limit of the child `pid` (0: this process) to the one that the agent was started with."""
    if not _original:
        return
    with contextlib.suppress(OSError, ValueError):  # the child is gone
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_original[0], hard))


def available() -> int:
    """How many more descriptors this process may open at once; at least 8, at most 2,048."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_AVAILABLE
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # none is left to list them with
        used = soft
    return max(8, min(_MAX_AVAILABLE, soft - used - _RESERVE))


def exhausted(error: OSError) -> bool:
    """Whether `error` means that this process or the machine has no file descriptor left."""
    return error.errno in _EXHAUSTED


def explain(error: OSError) -> str:
    """Describes `error`; if descriptors have run out, with what to do about it."""
    if not exhausted(error):
        return str(error)
    if error.errno == errno.ENFILE:
        return "this machine has no file descriptors left; raise the sysctl fs.file-max"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process has no file descriptors left (limit {soft}, hard limit {hard}); raise the hard limit: "
        "`ulimit -Hn`, LimitNOFILE= of the container runtime's service, or `--ulimit nofile` of the container"
    )


class Acceptor:
    """Accepts connections on a non-blocking listening socket.

    If no descriptor is left for a connection, it is accepted with a spare one and closed: a connection that is never
    accepted would wake the event loop again and again.
    """

    def __init__(
        self, listener: socket.socket, on_reject: Callable[[socket.socket], object] = lambda _connection: None
    ) -> None:
        """`on_reject` is called with each connection that is about to be closed because no descriptor is left; its
        OSErrors are ignored."""
        self._listener = listener
        self._on_reject = on_reject
        self._spare: int | None = _open_spare()
        self.rejected = 0
        """Connections that were closed because no descriptor was left for them."""

    def accept(self, at_most: int = _MAX_AVAILABLE) -> list[socket.socket]:
        """Returns the waiting connections, non-blocking. The caller closes them."""
        accepted: list[socket.socket] = []
        for _ in range(at_most):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if exhausted(error) and self._reject():
                    continue
                return accepted
            connection.setblocking(False)
            accepted.append(connection)
        return accepted

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _reject(self) -> bool:
        """Closes one waiting connection. Returns False if there is none."""
        if self._spare is None:
            self._spare = _open_spare()
        if self._spare is None:
            time.sleep(0.05)  # the caller's loop calls again at once
            return False
        os.close(self._spare)
        try:
            connection, _ = self._listener.accept()
        except OSError:  # none is waiting any more, or another thread took the spare descriptor
            return False
        else:
            with contextlib.suppress(OSError):
                connection.setblocking(False)
                self._on_reject(connection)
            connection.close()
            self.rejected += 1
            return True
        finally:
            self._spare = _open_spare()


def _open_spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
