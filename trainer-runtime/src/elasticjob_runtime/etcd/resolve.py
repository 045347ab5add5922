"""Name resolution with a deadline: getaddrinfo has none, and a DNS outage must not hang an agent."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

Address = tuple[socket.AddressFamily, Any]


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
