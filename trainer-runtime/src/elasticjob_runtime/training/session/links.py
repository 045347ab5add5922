"""The connections of a gloo process group, and how to end them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence

NOTICE = 0.001
"""s for gloo to see the end of what it reads before its writes fail: see `Interruption`."""


class Links:
    """The gloo connections of one process group, as duplicates of its sockets.

    Nothing in torch wakes a process that is blocked in a collective of gloo, not even `abort`. Closing its connections
    does, nearly always. Duplicates, because a descriptor's number may belong to the next group by the time it is
    closed.
    """

    def __init__(self, before: set[str]) -> None:
        """`before`: the sockets of this process before the group was formed. Other threads may have opened some of
        those that are new: `keep` tells them apart.

        If the process has given up an earlier attempt to form a group, which still connects in a thread of its own,
        the connections of both are here. So cut only those of a group that is in use.

        Raises OSError if there are no descriptors for duplicates.
        """
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._names: set[str] = set()
        self.addresses: list[tuple[str, int]] = []
        """Where gloo listens in this process, or another thread that has begun to meanwhile."""
        for fd, name in _sockets():
            duplicate = _duplicate(fd) if name not in before else None
            if duplicate is None or duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port = duplicate.getsockname()[:2]
                self.addresses.append((host, port))
                duplicate.close()
            else:
                self._sockets.append(duplicate)

    def keep(self, addresses: Sequence[tuple[str, int]], size: int) -> None:
        """Keeps the connections to and from `addresses`, where gloo listens in the processes of a group of `size`.
        Raises OSError if they are too few."""
        ports = {port for _, port in self.addresses}
        with self._lock:
            for connection in self._sockets.copy():
                if not _connects(connection, ports, addresses):
                    self._sockets.remove(connection)
                    connection.close()
            self._names = {os.readlink(f"/proc/self/fd/{connection.fileno()}") for connection in self._sockets}
        if len(self._sockets) < size - 1:
            raise OSError(
                f"found {len(self._sockets)} of the {size - 1} connections of gloo to the other processes: without the "
                "others, a step that waits for a lost process could not be interrupted"
            )

    def __len__(self) -> int:
        return len(self._sockets)

    def cut(self) -> None:
        """Ends the connections: whatever waits for them in this process or another one fails immediately, and nothing
        more is sent. Any thread may call this."""
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            if self._sockets:
                time.sleep(NOTICE)
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._sockets.clear()

    def are_closed(self) -> bool:
        """After `cut`: whether gloo has seen that they have ended. It may have read what had arrived before."""
        return not self._names & socket_names()

    def forget(self) -> None:
        """Leaves the connections as they are."""
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


def socket_names() -> set[str]:
    """Of all sockets of this process."""
    return {name for _, name in _sockets()}


def _duplicate(fd: int) -> socket.socket | None:
    """None: it is closed by now. Raises OSError if the limit of descriptors is reached."""
    try:
        return socket.socket(fileno=os.dup(fd))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(
                error.errno,
                "no descriptors left for the connections to the other processes: a session needs two for each of them "
                "(raise the limit, ulimit -n)",
            ) from error
        return None


def _connects(each: socket.socket, ports: Collection[int], addresses: Sequence[tuple[str, int]]) -> bool:
    """Whether gloo has accepted it, on one of `ports` here, or has opened it, to one of `addresses`."""
    try:
        here, there = each.getsockname(), each.getpeername()
    except OSError:
        return False
    return here[1] in ports or any(there[1] == port and host in (there[0], *_ANY) for host, port in addresses)


_ANY = ("0.0.0.0", "::")


def _sockets() -> Iterator[tuple[int, str]]:
    """Descriptor and name, with the inode, of every socket of this process."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                yield int(fd), name
