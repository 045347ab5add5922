"""Asking peers directly whether they are there.

Every agent listens on a TCP port that is in its member key and greets whoever connects with its name, its incarnation
and the round of the plan that it knows. A dead process refuses at once, where its lease would live on for seconds; a
frozen or cut-off one does not answer in time.
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
"""s for an answer. A live agent answers in about a millisecond, a dead one is refused as quickly; only silence takes
this long. Shorter: a machine with ten processes per core loses members that are alive (seen at 0.5 s)."""


BACKLOG = 1024
"""Connections that wait to be greeted: of a group of thousands, many may ask at the same moment."""

TELL_SECONDS = 60.0
"""s between two warnings of the same kind."""


class PeerServer:
    """Greets peers. Its descriptor belongs into the agent's loop; `greet` is called when it is readable."""

    def __init__(self, member: str, incarnation: str, ports: PortRange | None = None) -> None:
        """`ports`: of which one is taken; None: any. Raises OSError."""
        both = socket.has_dualstack_ipv6()  # peers on a network of either kind
        self._socket = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
        if both:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.port = network.bind(self._socket, ports)
        self._socket.listen(BACKLOG)
        self._socket.setblocking(False)
        self._member, self._incarnation = member, incarnation
        self._acceptor = descriptors.Acceptor(self._socket, self._say)
        self._told_at = 0.0
        self.round = 0
        """Of the plan that this agent knows."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def greet(self) -> list[socket.socket]:
        """Greets all who connected. Returns their connections: whoever stays wants heartbeats."""
        before = self._acceptor.rejected
        greeted = self._acceptor.accept()
        if self._acceptor.rejected > before and time.monotonic() >= self._told_at:
            self._told_at = time.monotonic() + TELL_SECONDS
            logger.warning(
                "peers are answered, but get no heartbeats: %s", descriptors.explain(OSError(errno.EMFILE, ""))
            )
        return greeted

    def close(self) -> None:
        self._acceptor.close()
        self._socket.close()

    def _say(self, connection: socket.socket) -> None:
        greeting = {"member": self._member, "incarnation": self._incarnation, "round": self.round}
        connection.send(json.dumps(greeting).encode() + b"\n")


def probe_in_background(
    members: Sequence[Member], on_result: Callable[[Mapping[str, Probe]], None], timeout: float = PROBE_TIMEOUT
) -> None:
    """Asks on a thread of its own; `on_result` is called from it, in any case."""

    def ask() -> None:
        try:
            found = probe(members, timeout)
        except OSError as error:  # this process has no descriptor left, say: that tells nothing of the peers
            logger.warning("cannot ask the other members: %s", descriptors.explain(error))
            time.sleep(timeout)
            found = {}
        on_result(found)

    threading.Thread(target=ask, name="probe", daemon=True).start()


def probe(members: Sequence[Member], timeout: float = PROBE_TIMEOUT, at_once: int | None = None) -> dict[str, Probe]:
    """Asks all `members`, `at_once` of them at a time (None: as many as descriptors allow). Reachable: the incarnation
    we know has answered within `timeout` seconds of being asked.

    Raises OSError where this process cannot ask anybody.
    """
    with selectors.DefaultSelector() as selector:
        asking = _Asking(members, timeout, at_once or descriptors.available(), selector)
        try:
            return asking.run()
        finally:
            asking.close()


@dataclasses.dataclass(slots=True)
class _Question:
    """Asked, and not answered yet."""

    member: Member
    connection: socket.socket
    asked_at: float


class _Asking:
    """Asks a row of members, so many at a time: who answers, or refuses, makes room for the next. Only silence takes
    the whole time-out."""

    def __init__(
        self, members: Sequence[Member], timeout: float, at_once: int, selector: selectors.BaseSelector
    ) -> None:
        self._members = members
        self._timeout = timeout
        self._at_once = at_once
        self._selector = selector
        self._waiting = collections.deque(members)
        self._open: dict[int, _Question] = {}
        """By descriptor, in the order in which they were asked."""
        self._asked_at: dict[str, float] = {}
        self._rounds: dict[str, int] = {}
        """Of those that answered."""

    def run(self) -> dict[str, Probe]:
        while self._waiting or self._open:
            self._ask()
            self._hear()
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
        for question in self._open.values():
            question.connection.close()

    def _ask(self) -> None:
        while self._waiting and len(self._open) < self._at_once:
            member = self._waiting[0]
            try:
                connection = socket.socket(_family(member.value.address), socket.SOCK_STREAM)
            except OSError as error:
                if not (descriptors.exhausted(error) and self._open):
                    raise
                self._at_once = len(self._open)  # others of this process have taken the rest
                return
            self._waiting.popleft()
            self._asked_at[member.name] = time.monotonic()
            self._open[connection.fileno()] = _Question(member, connection, self._asked_at[member.name])
            connection.setblocking(False)
            if _call(connection, member):
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                self._open.pop(connection.fileno()).connection.close()

    def _hear(self) -> None:
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return
        for key, _ in self._selector.select(max(0.0, oldest.asked_at + self._timeout - time.monotonic())):
            self._finish(key.fd, heard=True)
        now = time.monotonic()
        for fd in [fd for fd, question in self._open.items() if now >= question.asked_at + self._timeout]:
            self._finish(fd, heard=False)

    def _finish(self, fd: int, *, heard: bool) -> None:
        question = self._open.pop(fd)
        self._selector.unregister(question.connection)
        round_number = _greeted(question.connection, question.member.value.incarnation) if heard else None
        if round_number is not None:
            self._rounds[question.member.name] = round_number
        question.connection.close()


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
    """The round of the plan that this member knows; None: it is not the one that was asked."""
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
