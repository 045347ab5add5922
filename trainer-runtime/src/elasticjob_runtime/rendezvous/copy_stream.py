"""How one agent sends a copy of a snapshot to another one: bytes on a connection on which both have proved that they
know the run's secret (peer_protocol.py).

    client -> server   about     4 bytes of length, a JSON object, its HMAC
    client -> server   data ...  pieces of PIECE bytes, the last one shorter, each with its HMAC
    server -> client   received  an HMAC: the copy is complete

Every HMAC covers the number of its message, so none can be left out, repeated or reordered. Blocks: for threads.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.rendezvous.peer_protocol import MAC_SIZE, MessageKey, NotAuthenticError

PIECE = 1 << 20
_LONGEST_ABOUT = 4096


def send(
    connection: socket.socket,
    key: MessageKey,
    about: dict[str, Any],
    data: memoryview,
    *,
    rate: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """rate: bytes per second, at most; asked before each piece. Raises OSError, NotAuthenticError."""
    header = json.dumps(about).encode()
    connection.sendall(len(header).to_bytes(4, "big") + header + key.mac(header))
    for start in range(0, len(data), PIECE):
        began = clock()
        piece = data[start : start + PIECE]
        mac = key.mac(piece)
        connection.sendall(piece)
        connection.sendall(mac)
        sleep(max(0.0, began + len(piece) / rate() - clock()))
    key.require(receive_exactly(connection, MAC_SIZE), b"received")


def receive_about(connection: socket.socket, key: MessageKey) -> dict[str, Any]:
    """Raises OSError, NotAuthenticError, ValueError."""
    length = int.from_bytes(receive_exactly(connection, 4), "big")
    if length > _LONGEST_ABOUT:
        raise NotAuthenticError
    header = receive_exactly(connection, length)
    key.require(receive_exactly(connection, MAC_SIZE), header)
    about: dict[str, Any] = json.loads(header)
    return about


def receive_data(connection: socket.socket, key: MessageKey, target: memoryview) -> None:
    """Fills `target`. Raises OSError, NotAuthenticError."""
    for start in range(0, len(target), PIECE):
        piece = target[start : start + PIECE]
        _receive_into(connection, piece)
        key.require(receive_exactly(connection, MAC_SIZE), piece)


def acknowledge(connection: socket.socket, key: MessageKey) -> None:
    """Says that the copy is complete. Raises OSError."""
    connection.sendall(key.mac(b"received"))


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises OSError."""
    data = bytearray(size)
    _receive_into(connection, memoryview(data))
    return bytes(data)


def _receive_into(connection: socket.socket, target: memoryview) -> None:
    received = 0
    while received < len(target):
        count = connection.recv_into(target[received:])
        if not count:
            raise ConnectionResetError("the connection was closed")
        received += count
