"""TCP connections with a deadline that includes name resolution: getaddrinfo has none, and a DNS outage must not hang
an agent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# An idle connection detects a dead peer after these seconds (the last value: milliseconds); a call has its own
# deadline.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}

Address = tuple[socket.AddressFamily, Any]


STALE_AFTER = 0.3
"""Seconds without an answer from DNS after which the last address that worked is tried."""


class _Lookup:
    """A name lookup on a separate thread, because getaddrinfo has no deadline and cannot be interrupted."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._done = threading.Event()
        self._found: list[Address] = []
        self._failure: OSError | None = None
        threading.Thread(target=self._work, name=f"resolve-{host}", daemon=True).start()

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def wait(self, end: float) -> list[Address]:
        """Raises OSError if the name is unknown or was not resolved by `end`."""
        if not self._done.wait(max(0.0, end - time.monotonic())):
            raise OSError(f"the name {self._host} was not resolved within the deadline")
        if self._failure is not None:
            raise OSError(f"the name {self._host} cannot be resolved: {self._failure.strerror}") from self._failure
        return self._found

    def _work(self) -> None:
        try:
            self._found = _lookup(self._host, self._port, 0)
        except OSError as error:
            self._failure = error
        finally:
            self._done.set()


class Resolver:
    """Resolves names, with one lookup of a name at a time, and remembers the last address of each that worked.
    Thread-safe.

    A Service keeps its address during a DNS outage, so the last address that worked is tried if no answer comes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._good: dict[tuple[str, int], Address] = {}
        self._under_way: dict[tuple[str, int], _Lookup] = {}

    def candidates(self, host: str, port: int, end: float) -> Iterator[tuple[list[Address], float]]:
        """Yields groups of addresses to try until `end` (time.monotonic()), each with the fraction of the remaining
        time it may take.

        Raises OSError if there are none, or no more.
        """
        try:
            yield _lookup(host, port, socket.AI_NUMERICHOST), 1.0
            return
        except socket.gaierror:
            pass  # a host name
        good = self._good.get((host, port))
        lookup = self._lookup(host, port)
        if good is None:
            yield lookup.wait(end), 1.0
            return
        try:
            found = lookup.wait(min(end, time.monotonic() + STALE_AFTER))
        except OSError:
            yield [good], 0.5
            found = lookup.wait(end)
        yield found, 1.0

    def connected(self, host: str, port: int, address: Address) -> None:
        """Remembers an address of `host` that worked."""
        self._good[host, port] = address

    def _lookup(self, host: str, port: int) -> _Lookup:
        with self._lock:
            under_way = self._under_way.get((host, port))
            if under_way is None or under_way.over:
                under_way = self._under_way[host, port] = _Lookup(host, port)
            return under_way


RESOLVER = Resolver()
"""Shared by all connections of the process, so that each uses the addresses that worked for others."""


def connect(
    host: str, port: int, end: float, use: Callable[[socket.socket], None], resolver: Resolver = RESOLVER
) -> None:
    """Connects to the first address of `host` that answers by `end` (time.monotonic()). Raises OSError.

    `use` gets each socket before it connects, so that another thread can shut it down; the last one is the connected
    one.
    """
    last: OSError = TimeoutError("timed out")
    for addresses, share in resolver.candidates(host, port, end):
        group_end = time.monotonic() + (end - time.monotonic()) * share
        for index, (family, address) in enumerate(addresses):
            left = group_end - time.monotonic()
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
                resolver.connected(host, port, (family, address))
                return
    raise last


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def resolve(host: str, port: int, end: float) -> list[Address]:
    """Returns the addresses of `host` by `end` (time.monotonic()). Raises OSError if the name is unknown or not
    resolved in time."""
    addresses, _ = next(Resolver().candidates(host, port, end))
    return addresses


def _lookup(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
