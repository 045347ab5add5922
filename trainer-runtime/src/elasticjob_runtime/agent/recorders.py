"""Asks worker processes which collectives they have begun (training/flight_recorder.py): all at once, and none for
long."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Mapping

from elasticjob_runtime.contract.collectives import Calls, calls_of

MAX_BYTES = 8 * 1024 * 1024
"""Of one answer: 2,000 collectives are 0.9 MB."""
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
"""Of gloo, and of NCCL. `dump_traceback` is never asked for: it hangs where the interpreter is held."""


def ask(sockets: Mapping[int, str], seconds: float, since_ns: int = 0) -> dict[int, Calls]:
    """`sockets`: by rank. Returns the collectives of those that have answered; of a rank that has begun none, an empty
    mapping. Blocks for up to `seconds` for each kind of recorder. `since_ns`: as of calls_of."""
    found: dict[int, Calls] = {}
    for handler in HANDLERS:
        rest = {rank: path for rank, path in sockets.items() if not found.get(rank)}
        for rank, answer in _answers(rest, handler, seconds).items():
            with contextlib.suppress(ValueError, RecursionError):
                found[rank] = calls_of(json.loads(answer.partition(b"\r\n\r\n")[2]), since_ns)
    return found


def _answers(sockets: Mapping[int, str], handler: str, seconds: float) -> dict[int, bytes]:
    """Complete HTTP answers, by rank."""
    request = f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode()
    until, done = time.monotonic() + seconds, dict[int, bytes]()
    received = dict[int, bytearray]()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for rank, path in sockets.items():
            with contextlib.suppress(OSError):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.settimeout(0.1)
                connection.connect(path)
                connection.sendall(request)
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
                received[rank] = bytearray()
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(max(0.0, until - time.monotonic())):
                data = _receive(key.fileobj)
                received[key.data] += data
                if not data or len(received[key.data]) > MAX_BYTES:
                    selector.unregister(key.fileobj)
                    done[key.data] = bytes(received[key.data])
    return {rank: answer for rank, answer in done.items() if len(answer) <= MAX_BYTES}


def _receive(connection: object) -> bytes:
    assert isinstance(connection, socket.socket)
    with contextlib.suppress(OSError):
        return connection.recv(1 << 20)
    return b""
