"""A connection whose other end is a string of bytes, delivered in pieces."""

from __future__ import annotations

import time

from elasticjob_runtime.etcd import Endpoint
from elasticjob_runtime.etcd.connection import Connection
from elasticjob_runtime.etcd.faults import TransportError


class ByteConnection(Connection):
    """Receives `data` in pieces of `size` bytes, then the end of the connection."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(Endpoint("bytes"), None)
        self._pieces = [data[start : start + size] for start in range(0, len(data), size)]

    def _receive(self, _end: float) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def read_response(data: bytes, size: int) -> bytes | None:
    """The body, or None if it is rejected with one of the transport's errors."""
    connection = ByteConnection(data, size)
    end = time.monotonic() + 60
    try:
        return connection.read_body(connection.read_head(end), end)
    except TransportError:
        return None


def read_stream(data: bytes, size: int) -> list[bytes] | None:
    """The parts of a chunked body, or None if it is rejected."""
    connection, parts = ByteConnection(data, size), []
    end = time.monotonic() + 60
    try:
        connection.read_head(end)
        while part := connection.read_part(end):
            parts.append(part)
    except TransportError:
        return None
    return parts
