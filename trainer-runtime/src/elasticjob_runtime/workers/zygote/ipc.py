"""Messages between the agent, a zygote and its preforked processes: JSON with a length prefix, plus file descriptors.

They use a stream, because an environment can be larger than a datagram.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MAX_FDS = 8


def send(connection: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Raises OSError if the other side is gone."""
    data = json.dumps(message).encode()
    head = _LENGTH.pack(len(data))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([head], ancillary)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns (message, descriptors). Raises EOFError if the other side has closed, OSError on a broken connection."""
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_LEN(_MAX_FDS * 4))
    if not head:
        raise EOFError("closed")
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    head += _read_exactly(connection, _LENGTH.size - len(head))
    message = json.loads(_read_exactly(connection, _LENGTH.unpack(head)[0]))
    return message, list(fds)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("closed in the middle of a message")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
