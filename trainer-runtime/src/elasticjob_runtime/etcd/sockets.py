"""TCP connections with a deadline, name resolution included (getaddrinfo has none, and a DNS outage must not hang an agent)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

# A dead peer is found after these seconds (the last: milliseconds) when nothing else is under way; a call has its own deadline.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}

Address = tuple[socket.AddressFamily, Any]


def connect(host: str, port: int, end: float, use: Callable[[socket.socket], None]) -> None:
    """Connects to the first address of `host` that answers until `end` (time.monotonic()). Raises OSError.

    `use` gets every socket before it connects, so that another thread can shut it down; the last one is connected.
    """
    addresses = resolve(host, port, end)
    last: OSError = TimeoutError("timed out")
    for index, (family, address) in enumerate(addresses):
        left = end - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, socket.SOCK_STREAM)
        use(sock)
        try:
            _tune(sock)
            sock.settimeout(left / (len(addresses) - index))
            sock.connect(address)
        except OSError as error:
            last = error
            sock.close()
        else:
            return
    raise last


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has them all
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def resolve(host: str, port: int, end: float) -> list[Address]:
    """Addresses of `host` until `end` (time.monotonic()). Raises OSError: not known, or not answered in time."""
    try:
        return _lookup(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # a name
    result: list[Address] = []
    failure: list[OSError] = []
    done = threading.Event()

    def work() -> None:
        try:
            result.extend(_lookup(host, port, 0))
        except OSError as error:
            failure.append(error)
        finally:
            done.set()

    # The thread cannot be stopped; it ends when the resolver gives up.
    threading.Thread(target=work, name=f"resolve-{host}", daemon=True).start()
    if not done.wait(max(0.0, end - time.monotonic())):
        raise OSError(f"the name {host} was not resolved within the deadline")
    if failure:
        raise OSError(f"the name {host} cannot be resolved: {failure[0].strerror}") from failure[0]
    return result


def _lookup(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
