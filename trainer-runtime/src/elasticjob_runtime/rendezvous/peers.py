"""Probes: asking peers directly whether they are alive.

Every agent listens on a TCP port that is in its member key. It greets each connection with its name, its incarnation
and the round of the plan that it knows. A connection to a dead process is refused at once, while its lease lasts for
seconds longer; a frozen process, or one that is cut off, does not answer in time.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.membership.view import (
    Member,
    Probe,
)
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)

PROBE_TIMEOUT = 1.5
"""s to wait for an answer. A live agent answers in about a millisecond, and a dead one's port refuses as quickly; only
silence takes this long. With a shorter timeout, a machine with ten processes per core loses live members (seen at 0.5
s)."""


BACKLOG = 1024
"""Connections that may wait for their greeting: in a group of thousands, many members may connect at the same
moment."""

WARN_SECONDS = 60.0
"""s between two warnings about rejected connections."""


class PeerServer:
    """Greets peers. Register `fileno` with the agent's event loop and call `greet` when it is readable."""

    def __init__(self, member: str, incarnation: str, ports: PortRange | None = None) -> None:
        """`ports`: the ports to choose from; None: any. Raises OSError."""
        both = socket.has_dualstack_ipv6()  # for IPv4 and IPv6 peers
        self._socket = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
        if both:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.port = network.bind(self._socket, ports)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self._member, self._incarnation = member, incarnation
        self._acceptor = descriptors.Acceptor(self._socket, self._send_greeting)
        self._next_warning = 0.0
        self.round = 0
        """The round of the plan that this agent knows."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def greet(self) -> list[socket.socket]:
        """Greets all new connections and returns them: those that the peer keeps open want heartbeats."""
        before = self._acceptor.rejected
        greeted = self._acceptor.accept()
        if self._acceptor.rejected > before and time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARN_SECONDS
            logger.warning(
                "this member answers probes but cannot send heartbeats: %s",
                descriptors.explain(OSError(errno.EMFILE, "")),
            )
        return greeted

    def close(self) -> None:
        self._acceptor.close()
        self._socket.close()

    def _send_greeting(self, connection: socket.socket) -> None:
        greeting = {"member": self._member, "incarnation": self._incarnation, "round": self.round}
        connection.send(json.dumps(greeting).encode() + b"\n")


def probe_in_background(
    members: Sequence[Member], on_result: Callable[[Mapping[str, Probe]], None], timeout: float = PROBE_TIMEOUT
) -> None:
    """Probes on a new thread, which always calls `on_result`."""

    def run() -> None:
        try:
            found = probe(members, timeout)
        except OSError as error:  # such as no descriptor left: that says nothing about the peers
            logger.warning("cannot probe the other members: %s", descriptors.explain(error))
            time.sleep(timeout)
            found = {}
        on_result(found)

    threading.Thread(target=run, name="probe", daemon=True).start()


def probe(members: Sequence[Member], timeout: float = PROBE_TIMEOUT, at_once: int | None = None) -> dict[str, Probe]:
    """Probes all `members`, `at_once` of them at a time (None: as many as file descriptors allow). A member is
    reachable if it answers within `timeout` seconds with the incarnation in its member key.

    Raises OSError if this process cannot open a single connection.
    """
    with selectors.DefaultSelector() as selector:
        prober = _Prober(members, timeout, at_once or descriptors.available(), selector)
        try:
            return prober.run()
        finally:
            prober.close()


@dataclasses.dataclass(slots=True)
class _OpenProbe:
    """A probe that has no answer yet."""

    member: Member
    connection: socket.socket
    asked_at: float


class _Prober:
    """Probes a list of members, a limited number at a time: each answer or refused connection makes room for the next
    one. Only silence takes the whole timeout."""

    def __init__(
        self, members: Sequence[Member], timeout: float, at_once: int, selector: selectors.BaseSelector
    ) -> None:
        self._members = members
        self._timeout = timeout
        self._at_once = at_once
        self._selector = selector
        self._waiting = collections.deque(members)
        self._open: dict[int, _OpenProbe] = {}
        """Descriptor -> probe, in the order in which they began."""
        self._asked_at: dict[str, float] = {}
        self._rounds: dict[str, int] = {}
        """Member name -> round, of the members that answered."""

    def run(self) -> dict[str, Probe]:
        while self._waiting or self._open:
            self._connect_next()
            self._collect_answers()
        at = time.monotonic()
        return {
            member.name: Probe(
                incarnation=member.value.incarnation,
                reachable=member.name in self._rounds,
                asked_at=self._asked_at[member.name],
                at=at,
                round=self._rounds.get(member.name, 0),
            )
            for member in self._members
        }

    def close(self) -> None:
        for open_probe in self._open.values():
            open_probe.connection.close()

    def _connect_next(self) -> None:
        while self._waiting and len(self._open) < self._at_once:
            member = self._waiting[0]
            try:
                connection = socket.socket(_family(member.value.address), socket.SOCK_STREAM)
            except OSError as error:
                if not (descriptors.exhausted(error) and self._open):
                    raise
                self._at_once = len(self._open)  # the rest of this process uses the other descriptors
                return
            self._waiting.popleft()
            self._asked_at[member.name] = time.monotonic()
            self._open[connection.fileno()] = _OpenProbe(member, connection, self._asked_at[member.name])
            connection.setblocking(False)
            if _connect(connection, member):
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                self._open.pop(connection.fileno()).connection.close()

    def _collect_answers(self) -> None:
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return
        for key, _ in self._selector.select(max(0.0, oldest.asked_at + self._timeout - time.monotonic())):
            self._finish(key.fd, answered=True)
        now = time.monotonic()
        for fd in [fd for fd, open_probe in self._open.items() if now >= open_probe.asked_at + self._timeout]:
            self._finish(fd, answered=False)

    def _finish(self, fd: int, *, answered: bool) -> None:
        open_probe = self._open.pop(fd)
        self._selector.unregister(open_probe.connection)
        round_number = _read_greeting(open_probe.connection, open_probe.member.value.incarnation) if answered else None
        if round_number is not None:
            self._rounds[open_probe.member.name] = round_number
        open_probe.connection.close()


def _connect(connection: socket.socket, member: Member) -> bool:
    """False: the member's address or port is not valid."""
    try:
        connection.connect_ex((member.value.address, member.value.peer_port))
    except (OSError, OverflowError) as error:
        logger.warning("%s gave an address that cannot be used, %s port %d: %s", member.name, *_at(member), error)
        return False
    return True


def _at(member: Member) -> tuple[str, int]:
    return member.value.address, member.value.peer_port


def _read_greeting(connection: socket.socket, incarnation: str) -> int | None:
    """Returns the round of the plan that the member knows; None: no valid greeting, or another incarnation's."""
    try:
        greeting = json.loads(connection.recv(1024).partition(b"\n")[0])
    except (OSError, ValueError):
        return None
    if not isinstance(greeting, dict) or greeting.get("incarnation") != incarnation:
        return None
    round_number = greeting.get("round")
    return round_number if isinstance(round_number, int) else 0


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
