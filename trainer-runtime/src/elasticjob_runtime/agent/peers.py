"""Asking peers directly whether they are there.

Every agent listens on a TCP port that is in its member key and greets whoever connects with its name, its incarnation and the epoch of the
plan that it knows. A dead process
refuses at once, where its lease would live on for seconds; a frozen or cut-off one does not answer in time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.membership.model import Member, Probe

logger = logging.getLogger(__name__)

PROBE_TIMEOUT = 1.5
"""s for all answers together. A live agent answers in about a millisecond, a dead one is refused as quickly; only silence takes this long.
Shorter: a machine with ten processes per core loses members that are alive (seen at 0.5 s)."""


class PeerServer:
    """Greets peers. Its descriptor belongs into the agent's loop; `greet` is called when it is readable."""

    def __init__(self, member: str, incarnation: str) -> None:
        both = socket.has_dualstack_ipv6()  # peers on a network of either kind
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, backlog=128, dualstack_ipv6=both)
        self._socket.setblocking(False)
        self._member, self._incarnation = member, incarnation
        self.epoch = 0
        """Of the plan that this agent knows."""
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        return self._socket.fileno()

    def greet(self) -> list[socket.socket]:
        """Greets all who connected. Returns their connections: whoever stays wants heartbeats."""
        greeted = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                connection.setblocking(False)
                greeting = {"member": self._member, "incarnation": self._incarnation, "epoch": self.epoch}
                connection.send(json.dumps(greeting).encode() + b"\n")
                greeted.append(connection)
        return greeted

    def close(self) -> None:
        self._socket.close()


def probe_in_background(
    members: Sequence[Member], on_result: Callable[[Mapping[str, Probe]], None], timeout: float = PROBE_TIMEOUT
) -> None:
    """Asks on a thread of its own; `on_result` is called from it, in any case."""

    def ask() -> None:
        try:
            found = probe(members, timeout)
        except OSError as error:  # this process has no descriptor left, say: that tells nothing of the peers
            logger.warning("cannot ask the other members: %s", error)
            time.sleep(timeout)
            found = {}
        on_result(found)

    threading.Thread(target=ask, name="probe", daemon=True).start()


def probe(members: Sequence[Member], timeout: float = PROBE_TIMEOUT) -> dict[str, Probe]:
    """Asks all `members` at once. Reachable: the incarnation we know has answered within `timeout` seconds.

    Raises OSError where this process cannot ask anybody.
    """
    asked_at = time.monotonic()
    end = asked_at + timeout
    epochs: dict[str, int] = {}
    """Of those that answered."""
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
        for member in members:
            connection = connections.enter_context(socket.socket(_family(member.value.address), socket.SOCK_STREAM))
            connection.setblocking(False)
            if _call(connection, member):
                selector.register(connection, selectors.EVENT_READ, member)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                member = key.data
                epoch = _greeted(key.fileobj, member.value.incarnation)  # type: ignore[arg-type]
                if epoch is not None:
                    epochs[member.name] = epoch
                selector.unregister(key.fileobj)
    at = time.monotonic()
    return {
        member.name: Probe(
            incarnation=member.value.incarnation,
            reachable=member.name in epochs,
            asked_at=asked_at,
            at=at,
            epoch=epochs.get(member.name, 0),
        )
        for member in members
    }


def _call(connection: socket.socket, member: Member) -> bool:
    """False: nobody can be reached at what it gave as its address."""
    try:
        connection.connect_ex((member.value.address, member.value.peer_port))
    except (OSError, OverflowError) as error:
        logger.warning("%s gave an address that cannot be used, %s port %d: %s", member.name, *_at(member), error)
        return False
    return True


def _at(member: Member) -> tuple[str, int]:
    return member.value.address, member.value.peer_port


def _greeted(connection: socket.socket, incarnation: str) -> int | None:
    """The epoch of the plan that this member knows; None: it is not the one that was asked."""
    try:
        greeting = json.loads(connection.recv(1024).partition(b"\n")[0])
    except (OSError, ValueError):
        return None
    if not isinstance(greeting, dict) or greeting.get("incarnation") != incarnation:
        return None
    epoch = greeting.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def hold_ports(count: int = 4) -> list[socket.socket]:
    """Sockets that keep `count` TCP ports for this host's worker stores: bound but not listening, with SO_REUSEADDR, so that a worker
    which sets it too (torch does) can listen there, and nobody is given the port by chance."""
    held = []
    for _ in range(count):
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        held.append(holder)
    return held


def local_address(endpoint_host: str, endpoint_port: int) -> str:
    """The address of this host from which the rendezvous endpoint is reached; loopback where that cannot be told."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(endpoint_host, endpoint_port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe_socket:
            probe_socket.connect(target)  # no packet is sent: the kernel chooses the route
            return str(probe_socket.getsockname()[0])
    except OSError:
        return "127.0.0.1"
