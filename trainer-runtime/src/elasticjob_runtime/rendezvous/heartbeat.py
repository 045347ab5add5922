"""Heartbeats between neighbours in rank order, which detect a silent member.

Every agent listens to the next two ranks, which the plan names, so two others listen to every agent and the cost stays
linear. A closed connection is detected at once, silence after `silent_after` (membership/silence.py). The result is
only a suspicion: the planner probes the suspect before it acts.

A heartbeat contains the round of the plan that the sender knows. So an agent that cannot reach the store still learns
that the others have moved on to a later round. peer_protocol.py says how the two agents know each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Sequence

from elasticjob_runtime.contract import Neighbour, SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.rendezvous.network import family_of
from elasticjob_runtime.rendezvous.peer_protocol import NONCE_SIZE, Client, NotAuthenticError, Purpose, Session
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)

BEAT = 0.25
"""s between two heartbeats."""

LATE = 0.1
"""s. An agent that looks so late was suspended, or is very busy: what its neighbours sent meanwhile is not read yet."""

RECONNECT = 2.0
"""s without a heartbeat after which the connection is opened again: after a partition, TCP may take a minute to resume
the old one."""

MAX_LISTENERS = 64
"""Connections that get heartbeats. Two members listen to each; if there are more, the oldest is closed."""


@dataclasses.dataclass(slots=True)
class _Link:
    """The connection to one neighbour."""

    neighbour: Neighbour
    last_heartbeat_at: float
    connected_at: float
    connection: socket.socket | None = None
    closed: bool = False
    round: int = 0
    """The round of the plan that the neighbour knows."""
    round_at: float = 0.0
    """When the neighbour first sent that round."""


class _Listener:
    """A connection that gets heartbeats."""

    def __init__(self, connection: socket.socket, session: Session) -> None:
        self._connection = connection
        self._session = session
        self._unsent = b""

    def send(self, round_number: int) -> bool:
        """False: the listener has closed the connection."""
        unsent = self._unsent or self._session.beat(round_number)  # one that does not read gets no more
        try:
            self._unsent = unsent[self._connection.send(unsent) :]
        except BlockingIOError:
            self._unsent = unsent
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


class Heartbeats:
    """Both directions: sends heartbeats to the peers that listen to this agent, and listens to its neighbours. Not
    thread-safe: use it on the agent's event loop only."""

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self._listeners: list[_Listener] = []
        self._links: dict[str, _Link] = {}
        self._followed: tuple[Neighbour, ...] = ()
        self._next_beat = 0.0
        self._secret: SecretValue | None = None
        self.round = 0
        """The round of the plan that this agent knows."""
        self.silent_after = RESTART.heartbeat

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do, or at which a neighbour becomes silent; None: no
        listeners and no neighbours."""
        if not self._listeners and not self._links:
            return None
        silent_at = [link.last_heartbeat_at + self.silent_after for link in self._links.values() if not link.closed]
        now = self._event_loop.now()
        return min([self._next_beat, *(at for at in silent_at if at > now)])

    def silent(self, now: float) -> frozenset[str]:
        """Names of the neighbours whose connection is closed or that sent nothing for `silent_after`."""
        return frozenset(
            name
            for name, link in self._links.items()
            if link.closed or now >= link.last_heartbeat_at + self.silent_after
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

    def open(self, secret: SecretValue) -> None:
        """Connects from now on, to agents that know `secret`."""
        self._secret = secret

    def add_listener(self, connection: socket.socket, session: Session) -> None:
        """Sends heartbeats on `connection` until the peer closes it."""
        self._listeners.append(_Listener(connection, session))
        if len(self._listeners) > MAX_LISTENERS:
            self._listeners.pop(0).close()

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
        late = now - self._next_beat
        self._next_beat = now + BEAT
        self._listeners = [listener for listener in self._listeners if listener.send(self.round)]
        for link in self._links.values():
            if late > LATE:
                link.last_heartbeat_at = min(now, link.last_heartbeat_at + late)
            if link.connection is None or now - max(link.last_heartbeat_at, link.connected_at) > RECONNECT:
                self._disconnect(link)
                self._connect(link, now)

    def close(self) -> None:
        for link in self._links.values():
            self._disconnect(link)
        for listener in self._listeners:
            listener.close()

    def _connect(self, link: _Link, now: float) -> None:
        if self._secret is None:
            return
        link.connected_at = now
        neighbour = link.neighbour
        try:
            connection = socket.socket(family_of(neighbour.address), socket.SOCK_STREAM)
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
        link.connection = connection
        client = Client(self._secret, neighbour.incarnation, Purpose.HEARTBEATS, os.urandom(NONCE_SIZE))
        self._event_loop.add_writer(connection.fileno(), lambda: self._connected(link, connection, client))

    def _connected(self, link: _Link, connection: socket.socket, client: Client) -> None:
        try:
            connection.send(client.hello)
        except OSError:  # the connection was refused
            self._closed(link)
        else:
            self._event_loop.add_reader(connection.fileno(), lambda: self._receive(link, connection, client))

    def _receive(self, link: _Link, connection: socket.socket, client: Client) -> None:
        try:
            data = connection.recv(4096)
            rounds = client.receive(data)
            if reply := client.reply:
                connection.send(reply)
        except BlockingIOError:
            return
        except NotAuthenticError:  # another process has its port now
            link.closed = True
            self._disconnect(link)
            return
        except OSError:
            data, rounds = b"", ()
        if not data:
            self._closed(link)
        elif rounds:
            self._heard(link, rounds)

    def _heard(self, link: _Link, rounds: Sequence[int]) -> None:
        now = self._event_loop.now()
        link.closed = False
        link.last_heartbeat_at = now
        if rounds[-1] != link.round:
            link.round, link.round_at = rounds[-1], now

    def _closed(self, link: _Link) -> None:
        link.last_heartbeat_at = link.last_heartbeat_at if link.closed else self._event_loop.now()
        link.closed = True
        self._disconnect(link)

    def _disconnect(self, link: _Link) -> None:
        if link.connection is not None:
            self._event_loop.remove(link.connection.fileno())
            link.connection.close()
            link.connection = None
