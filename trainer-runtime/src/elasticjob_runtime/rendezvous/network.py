"""Where the other members reach this one: its address, and the TCP ports that it listens on."""

from __future__ import annotations

import dataclasses
import errno
import logging
import random
import re
import socket
import time
from collections.abc import Iterator, Sequence

from elasticjob_runtime.etcd import sockets
from elasticjob_runtime.etcd.endpoints import Endpoint

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

STORE_PORTS = 4
"""Ports that a member holds for its worker stores."""

RESOLVE_TIMEOUT = 5.0
"""s that a name may take to be resolved as the agent starts."""

_OUTSIDE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses of documentation networks (RFC 5737, RFC 3849): reached, if at all, by the default route. No packet is sent
to them."""


@dataclasses.dataclass(frozen=True, slots=True)
class PortRange:
    """The TCP ports from `low` to `high`, both included."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> PortRange:
        """From `LOW-HIGH`. Raises ValueError, in words for people."""
        match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text.strip())
        found = PortRange(int(match[1]), int(match[2])) if match else PortRange(0, 0)
        if not 0 < found.low <= found.high < 65536:
            raise ValueError(f"{text!r} is not a range of TCP ports; write LOW-HIGH, such as 30000-30099")
        if found.size <= STORE_PORTS:
            raise ValueError(f"{text} has {found.size} ports; an agent needs {STORE_PORTS + 1}, better twice as many")
        return found

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def __iter__(self) -> Iterator[int]:
        """All of them once, from a random one on: agents that share a host rarely try the same."""
        start = random.randrange(self.size)  # noqa: S311 - spreads load, guards nothing
        return (self.low + (start + offset) % self.size for offset in range(self.size))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


def bind(bound: socket.socket, ports: PortRange | None) -> int:
    """Binds to all addresses of this host, and a free port of `ports` (None: any). Returns the port. Raises OSError."""
    for port in ports or (0,):
        try:
            bound.bind(("", port))
        except OSError as error:
            if ports is None or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return int(bound.getsockname()[1])
    raise OSError(errno.EADDRINUSE, f"no port from {ports} is free on this host (--port-range)")


def hold_ports(ports: PortRange | None = None, count: int = STORE_PORTS) -> list[socket.socket]:
    """Sockets that keep `count` TCP ports for this host's worker stores: bound but not listening, with SO_REUSEADDR, so
    that a worker which sets it too (torch does) can listen there, and nobody is given the port by chance. Raises
    OSError."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(holder)
            if ports is None:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bind(holder, ports)
            # Set before, it would let two agents of one host hold the same port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        for holder in held:
            holder.close()
        raise
    return held


def own_address(endpoints: Sequence[Endpoint], *, several: bool) -> str:
    """The address of this host from which the rendezvous endpoint is reached.

    `several`: the group may have members on other machines. Then the address is no loopback one, if this host has any
    other: with an etcd on this very host (or a name that /etc/hosts maps to 127.0.1.1, as Debian does) it is the one of
    the default route.
    """
    found = next((address for endpoint in endpoints if (address := _towards(endpoint))), "")
    if found and not (several and is_loopback(found)):
        return found
    found = (_outgoing() if several else "") or found or LOOPBACK
    if several and is_loopback(found):
        logger.warning(
            "the others are told to reach this member at %s, since this machine shows no other address: members on "
            "other machines "
            "will not; give its address with --local-addr", found,
        )  # fmt: skip
    return found


def given_address(text: str, *, several: bool) -> str:
    """The address that --local-addr (or ELASTICJOB_ADDRESS) means: names are resolved here, once, and not by every
    member at every restart.

    Raises OSError where the name is not known.
    """
    addresses = [str(address[0]) for _, address in sockets.resolve(text, 0, time.monotonic() + RESOLVE_TIMEOUT)]
    if text in addresses:
        return text
    chosen = (
        next((address for address in addresses if not is_loopback(address)), "")
        or (_outgoing() if several else "")
        or addresses[0]
    )
    if several and is_loopback(chosen):
        logger.warning(
            "%s is %s here, where members on other machines will not reach this one; give its address", text, chosen
        )
    return chosen


def is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address in ("::1", "localhost")


def _towards(endpoint: Endpoint) -> str:
    """The own address of the route to `endpoint`; empty: there is none, or nobody knows its name."""
    try:
        addresses = sockets.resolve(endpoint.host, endpoint.port, time.monotonic() + RESOLVE_TIMEOUT)
    except OSError:
        return ""
    return next((own for family, address in addresses if (own := _route(family, address[0]))), "")


def _outgoing() -> str:
    """This host's address on the default route, else one that its own name has; empty: it has none but loopback."""
    for address, family in _OUTSIDE:
        if (own := _route(family, address)) and not is_loopback(own):
            return own
    try:
        named = sockets.resolve(socket.gethostname(), 0, time.monotonic() + RESOLVE_TIMEOUT)
    except OSError:
        return ""
    return next((str(address[0]) for _, address in named if not is_loopback(str(address[0]))), "")


def _route(family: int, address: str) -> str:
    """Empty: there is no route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
            probe_socket.connect((address, 9))  # no packet is sent: the kernel chooses the route
            return str(probe_socket.getsockname()[0])
    except OSError:
        return ""
