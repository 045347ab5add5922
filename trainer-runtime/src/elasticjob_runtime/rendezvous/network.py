"""The address and TCP ports at which the other members reach this one."""

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
"""TCP ports that a member reserves for its worker stores."""

RESOLVE_TIMEOUT = 5.0
"""s. The timeout for resolving a name when the agent starts."""

REPLICA_PORTS = 2
"""The same for the store of its replica's own world, with --replica-size."""

_OUTSIDE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses of documentation networks (RFC 5737, RFC 3849), which only the default route can reach. No packet is sent
to them."""


@dataclasses.dataclass(frozen=True, slots=True)
class PortRange:
    """The TCP ports from `low` to `high`, inclusive."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> PortRange:
        """Parses `LOW-HIGH`. Raises ValueError with a message for users."""
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
        """Yields each port once, starting with a random one, so that agents on the same host rarely try the same
        port."""
        start = random.randrange(self.size)  # noqa: S311 - spreads load, guards nothing
        return (self.low + (start + offset) % self.size for offset in range(self.size))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


def bind(bound: socket.socket, ports: PortRange | None) -> int:
    """Binds to all addresses of this host and a free port of `ports` (None: any). Returns the port. Raises OSError."""
    for port in ports or (0,):
        try:
            bound.bind(("", port))
        except OSError as error:
            if ports is None or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return int(bound.getsockname()[1])
    raise OSError(errno.EADDRINUSE, f"no port from {ports} is free on this host (--port-range)")


def hold_ports(
    ports: PortRange | None = None, count: int = STORE_PORTS, *, first: int | None = None
) -> list[socket.socket]:
    """Returns sockets that reserve `count` TCP ports for this host's worker stores: from `first` on if it is given, so
    that round 1 uses `first` itself; else from `ports` (None: any). They are bound but do not listen, and have
    SO_REUSEADDR set: a worker that sets it too (torch does) can listen there, and the kernel gives the port to no other
    process. Raises OSError."""
    held: list[socket.socket] = []
    try:
        for number in range(count):
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(holder)
            if ports is None and first is None:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if first is None:
                bind(holder, ports)
            else:
                _bind_to(holder, first, (number - 1) % count)  # round n uses ports[n % count]
            # If it were set before the bind, two agents on one host could reserve the same port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        for holder in held:
            holder.close()
        raise
    return held


def _bind_to(bound: socket.socket, first: int, offset: int) -> None:
    """Raises OSError with a message for users."""
    try:
        bound.bind(("", first + offset))
    except OSError as error:
        raise OSError(
            error.errno,
            f"--master-port={first} needs the ports {first} to {first + STORE_PORTS - 1}, and {first + offset} cannot "
            f"be used on this host ({error.strerror}); take another port, or leave the flag out to use any free ones",
        ) from error


def own_address(endpoints: Sequence[Endpoint], *, several: bool) -> str:
    """Returns this host's address on the route to the rendezvous endpoint.

    `several`: the group may have members on other machines. The result is then a loopback address only if this host has
    no other: if etcd runs on this host, or /etc/hosts maps its name to 127.0.1.1 as on Debian, the result is the
    address on the default route.
    """
    found = next((address for endpoint in endpoints if (address := _towards(endpoint))), "")
    if found and not (several and is_loopback(found)):
        return found
    found = (_outgoing() if several else "") or found or LOOPBACK
    if several and is_loopback(found):
        logger.warning(
            "the other members get the address %s for this one, since this machine has no other: members on other "
            "machines cannot connect to it; set the address with --local-addr", found,
        )  # fmt: skip
    return found


def given_address(text: str, *, several: bool) -> str:
    """Returns the IP address for --local-addr (or ELASTICJOB_ADDRESS). A name is resolved here once, rather than by
    every member at every restart.

    Raises OSError if the name cannot be resolved.
    """
    addresses = [str(address[0]) for _, address in sockets.resolve(text, 0, time.monotonic() + RESOLVE_TIMEOUT)]
    if text in addresses:
        return text
    outside = next((address for address in addresses if not is_loopback(address)), "")
    chosen = outside or (_outgoing() if several else "") or addresses[0]
    if several and is_loopback(chosen):
        logger.warning(
            "%s resolves to %s on this machine, so members on other machines cannot connect to it; set an address that "
            "they can reach",
            text,
            chosen,
        )
    return chosen


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback(address: str) -> bool:
    return address.removeprefix("::ffff:").startswith("127.") or address in ("::1", "localhost")


def _towards(endpoint: Endpoint) -> str:
    """Returns this host's address on the route to `endpoint`; empty: there is no route, or its name cannot be
    resolved."""
    try:
        addresses = sockets.resolve(endpoint.host, endpoint.port, time.monotonic() + RESOLVE_TIMEOUT)
    except OSError:
        return ""
    return next((own for family, address in addresses if (own := _route(family, address[0]))), "")


def _outgoing() -> str:
    """Returns this host's address on the default route, or else one that its host name resolves to; empty: it has only
    loopback addresses."""
    for address, family in _OUTSIDE:
        if (own := _route(family, address)) and not is_loopback(own):
            return own
    try:
        named = sockets.resolve(socket.gethostname(), 0, time.monotonic() + RESOLVE_TIMEOUT)
    except OSError:
        return ""
    return next((str(address[0]) for _, address in named if not is_loopback(str(address[0]))), "")


def _route(family: int, address: str) -> str:
    """Returns this host's address on the route to `address`; empty: there is no route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
            probe_socket.connect((address, 9))  # no packet is sent: the kernel chooses the route
            return str(probe_socket.getsockname()[0])
    except OSError:
        return ""
