"""The connections of a gloo process group, and how to end them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

NOTICE = 0.001
"""s for gloo to see the end of what it reads before its writes fail: see `Interruption`."""


class Links:
    """The gloo connections of one process group, as duplicates of its sockets.

    Nothing in torch wakes a process that is blocked in a collective of gloo, not even `abort`. Closing its connections
    does, nearly always. Duplicates, because a descriptor's number may belong to the next group by the time it is
    closed.
    """

    def __init__(self, before: set[str], store_port: int) -> None:
        """`before`: the sockets of this process before the group was formed.

        If the process has given up an earlier attempt to form a group, which still connects in a thread of its own,
        the connections of both are here. So cut only those of a group that is in use.
        """
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._names: set[str] = set()
        for fd, name in _sockets():
            if name in before:
                continue
            try:
                duplicate = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if _connects_processes(duplicate, store_port):
                self._sockets.append(duplicate)
                self._names.add(name)
            else:
                duplicate.close()

    def __len__(self) -> int:
        return len(self._sockets)

    def cut(self) -> None:
        """Ends the connections: whatever waits for them in this process or another one fails immediately, and nothing
        more is sent. Any thread may call this."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RD)
            if self._sockets:
                time.sleep(NOTICE)
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._sockets.clear()

    def are_closed(self) -> bool:
        """After `cut`: whether gloo has seen that they have ended. It may have read what had arrived before."""
        return not self._names & socket_names()

    def forget(self) -> None:
        """Leaves the connections as they are."""
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()


def socket_names() -> set[str]:
    """Of all sockets of this process."""
    return {name for _, name in _sockets()}


def _connects_processes(each: socket.socket, store_port: int) -> bool:
    if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
        return False
    try:
        return store_port not in (each.getsockname()[1], each.getpeername()[1])
    except OSError:  # listens: gloo aborts the process if such a socket is shut down
        return False


def _sockets() -> Iterator[tuple[int, str]]:
    """Descriptor and name, with the inode, of every socket of this process."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                yield int(fd), name
