"""Heartbeats between neighbours in rank order, which detect a silent member.

Every agent listens to the next two ranks, which the plan names, so two others listen to every agent and the cost stays
linear. A closed connection is detected at once, silence after a second. The result is only a suspicion: the planner
probes the suspect before it acts.

A heartbeat is a line `.<round>`, where `<round>` is the round of the plan that the sender knows. So an agent that
cannot reach the store still learns that the others have moved on to a later round. The first line of a connection is
the greeting (peers.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
from collections.abc import Sequence

from elasticjob_runtime.contract import Neighbour
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)

BEAT = 0.25
"""s between two heartbeats."""

SILENT = 1.0
"""s without a heartbeat after which a neighbour is suspected. Longer: fewer false alarms on a busy machine; shorter:
earlier detection."""

RECONNECT = 2.0
"""s without a heartbeat after which the connection is opened again: after a partition, TCP may take a minute to resume
the old one."""

_LONGEST_LINE = 1024


@dataclasses.dataclass(slots=True)
class _Link:
    """The connection to one neighbour."""

    neighbour: Neighbour
    last_heartbeat_at: float
    connected_at: float
    connection: socket.socket | None = None
    closed: bool = False
    rest: bytes = b""
    """The beginning of a line whose end has not arrived yet."""
    round: int = 0
    """The round of the plan that the neighbour knows."""
    round_at: float = 0.0
    """When the neighbour first sent that round."""


class Heartbeats:
    """Both directions: sends heartbeats to the peers that listen to this agent, and listens to its neighbours. Not
    thread-safe: use it on the agent's event loop only."""

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self._listeners: list[socket.socket] = []
        self._links: dict[str, _Link] = {}
        self._followed: tuple[Neighbour, ...] = ()
        self._next_beat = 0.0
        self.round = 0
        """The round of the plan that this agent knows."""

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do; None: no listeners and no neighbours."""
        return self._next_beat if self._listeners or self._links else None

    def silent(self, now: float) -> frozenset[str]:
        """Names of the neighbours whose connection is closed or that sent nothing for SILENT."""
        return frozenset(
            name for name, link in self._links.items() if link.closed or now - link.last_heartbeat_at > SILENT
        )

    def silent_since(self, now: float) -> float | None:
        """When the last heartbeat came from the neighbour that has been silent longest (monotonic, s); None: none is
        silent."""
        silent = self.silent(now)
        return min((self._links[name].last_heartbeat_at for name in silent), default=None)

    def peer_round(self) -> tuple[int, float]:
        """(the latest round that a neighbour knows, or 0; monotonic time when one first sent it)."""
        latest = max((link.round for link in self._links.values()), default=0)
        return latest, min((link.round_at for link in self._links.values() if link.round == latest), default=0.0)

    def last_heartbeat(self, name: str) -> tuple[float, bool] | None:
        """(monotonic time of the neighbour's last heartbeat or of its connection's end, whether the connection is
        closed); None: not a neighbour."""
        link = self._links.get(name)
        return None if link is None else (link.last_heartbeat_at, link.closed)

    def add_listener(self, connection: socket.socket) -> None:
        """Sends heartbeats on `connection` until the peer closes it."""
        self._listeners.append(connection)

    def follow(self, neighbours: Sequence[Neighbour], now: float) -> None:
        """Listens to these neighbours and to no others."""
        if tuple(neighbours) == self._followed:
            return
        self._followed = tuple(neighbours)
        for name in list(self._links):
            self._disconnect(self._links.pop(name))
        for neighbour in neighbours:
            if neighbour.peer_port:
                self._links[neighbour.name] = _Link(neighbour, now, now)
                self._connect(self._links[neighbour.name], now)

    def tick(self, now: float) -> None:
        """Sends heartbeats, and reconnects to neighbours whose connection broke."""
        if now < self._next_beat:
            return
        held_up = now - self._next_beat > SILENT  # suspended or very busy: missed heartbeats mean nothing
        self._next_beat = now + BEAT
        beat = b".%d\n" % self.round
        self._listeners = [connection for connection in self._listeners if _send_heartbeat(connection, beat)]
        for link in self._links.values():
            if held_up:
                link.last_heartbeat_at = now
            if link.connection is None or now - max(link.last_heartbeat_at, link.connected_at) > RECONNECT:
                self._disconnect(link)
                self._connect(link, now)

    def close(self) -> None:
        for link in self._links.values():
            self._disconnect(link)
        for connection in self._listeners:
            connection.close()

    def _connect(self, link: _Link, now: float) -> None:
        link.connected_at = now
        neighbour = link.neighbour
        family = socket.AF_INET6 if ":" in neighbour.address else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # tick() tries again
            logger.warning("cannot listen to %s: %s", neighbour.name, descriptors.explain(error))
            return
        connection.setblocking(False)
        try:
            connection.connect_ex((neighbour.address, neighbour.peer_port))
        except (OSError, OverflowError) as error:
            logger.warning("%s gave an address that cannot be used, %s: %s", neighbour.name, neighbour.address, error)
            connection.close()
            return
        link.connection, link.rest = connection, b""
        self._event_loop.add_reader(connection.fileno(), lambda: self._receive(link, connection))

    def _receive(self, link: _Link, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            link.last_heartbeat_at = link.last_heartbeat_at if link.closed else self._event_loop.now()
            link.closed = True
            self._disconnect(link)
        elif not self._accept_lines(link, data):
            link.closed = True  # another process has its port now
            self._disconnect(link)
        else:
            link.closed = False
            link.last_heartbeat_at = self._event_loop.now()

    def _accept_lines(self, link: _Link, data: bytes) -> bool:
        """False: another process answers at the neighbour's port."""
        *lines, link.rest = (link.rest + data).split(b"\n")
        link.rest = link.rest[-_LONGEST_LINE:]
        for line in lines:
            if line.startswith(b"{") and link.neighbour.incarnation.encode() not in line:
                return False
            if line[:1] == b"." and line[1:].isdigit() and int(line[1:]) != link.round:
                link.round, link.round_at = int(line[1:]), self._event_loop.now()
        return True

    def _disconnect(self, link: _Link) -> None:
        if link.connection is not None:
            self._event_loop.remove_reader(link.connection.fileno())
            link.connection.close()
            link.connection = None


def _send_heartbeat(connection: socket.socket, beat: bytes) -> bool:
    """False: the listener has closed the connection."""
    try:
        connection.send(beat)
    except BlockingIOError:
        return True  # the listener does not read; that is no reason to drop it
    except OSError:
        with contextlib.suppress(OSError):
            connection.close()
        return False
    return True
