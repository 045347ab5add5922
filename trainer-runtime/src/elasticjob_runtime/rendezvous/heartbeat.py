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

CALL_AGAIN = 2.0
"""s without a heartbeat after which the connection is opened again: after a partition, TCP may take a minute to resume
the old one."""

_LONGEST_LINE = 1024


@dataclasses.dataclass(slots=True)
class _Line:
    """The connection to one neighbour."""

    neighbour: Neighbour
    heard_at: float
    called_at: float
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
        self._lines: dict[str, _Line] = {}
        self._followed: tuple[Neighbour, ...] = ()
        self._beat_at = 0.0
        self.round = 0
        """The round of the plan that this agent knows."""

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do; None: no listeners and no neighbours."""
        return self._beat_at if self._listeners or self._lines else None

    def silent(self, now: float) -> frozenset[str]:
        """Names of the neighbours whose connection is closed or that sent nothing for SILENT."""
        return frozenset(name for name, line in self._lines.items() if line.closed or now - line.heard_at > SILENT)

    def silent_since(self, now: float) -> float | None:
        """When the last heartbeat came from the neighbour that has been silent longest (monotonic, s); None: none is
        silent."""
        silent = self.silent(now)
        return min((self._lines[name].heard_at for name in silent), default=None)

    def heard(self) -> tuple[int, float]:
        """(the latest round that a neighbour knows, or 0; monotonic time when one first sent it)."""
        latest = max((line.round for line in self._lines.values()), default=0)
        return latest, min((line.round_at for line in self._lines.values() if line.round == latest), default=0.0)

    def last_heard(self, name: str) -> tuple[float, bool] | None:
        """(monotonic time of the neighbour's last heartbeat or of its connection's end, whether the connection is
        closed); None: not a neighbour."""
        line = self._lines.get(name)
        return None if line is None else (line.heard_at, line.closed)

    def add_listener(self, connection: socket.socket) -> None:
        """Sends heartbeats on `connection` until the peer closes it."""
        self._listeners.append(connection)

    def follow(self, neighbours: Sequence[Neighbour], now: float) -> None:
        """Listens to these neighbours and to no others."""
        if tuple(neighbours) == self._followed:
            return
        self._followed = tuple(neighbours)
        for name in list(self._lines):
            self._hang_up(self._lines.pop(name))
        for neighbour in neighbours:
            if neighbour.peer_port:
                self._lines[neighbour.name] = _Line(neighbour, now, now)
                self._call(self._lines[neighbour.name], now)

    def tick(self, now: float) -> None:
        """Sends heartbeats, and reconnects to neighbours whose connection broke."""
        if now < self._beat_at:
            return
        held_up = now - self._beat_at > SILENT  # suspended or very busy: missed heartbeats mean nothing
        self._beat_at = now + BEAT
        beat = b".%d\n" % self.round
        self._listeners = [connection for connection in self._listeners if _beat(connection, beat)]
        for line in self._lines.values():
            if held_up:
                line.heard_at = now
            if line.connection is None or now - max(line.heard_at, line.called_at) > CALL_AGAIN:
                self._hang_up(line)
                self._call(line, now)

    def close(self) -> None:
        for line in self._lines.values():
            self._hang_up(line)
        for connection in self._listeners:
            connection.close()

    def _call(self, line: _Line, now: float) -> None:
        line.called_at = now
        neighbour = line.neighbour
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
        line.connection, line.rest = connection, b""
        self._event_loop.add_reader(connection.fileno(), lambda: self._hear(line, connection))

    def _hear(self, line: _Line, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            line.heard_at = line.heard_at if line.closed else self._event_loop.now()
            line.closed = True
            self._hang_up(line)
        elif not self._understands(line, data):
            line.closed = True  # another process has its port now
            self._hang_up(line)
        else:
            line.closed = False
            line.heard_at = self._event_loop.now()

    def _understands(self, line: _Line, data: bytes) -> bool:
        """False: another process answers at the neighbour's port."""
        *said, line.rest = (line.rest + data).split(b"\n")
        line.rest = line.rest[-_LONGEST_LINE:]
        for word in said:
            if word.startswith(b"{") and line.neighbour.incarnation.encode() not in word:
                return False
            if word[:1] == b"." and word[1:].isdigit() and int(word[1:]) != line.round:
                line.round, line.round_at = int(word[1:]), self._event_loop.now()
        return True

    def _hang_up(self, line: _Line) -> None:
        if line.connection is not None:
            self._event_loop.remove_reader(line.connection.fileno())
            line.connection.close()
            line.connection = None


def _beat(connection: socket.socket, beat: bytes) -> bool:
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
