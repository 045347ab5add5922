"""The TCP port on which an agent answers the other agents of its run: probes, heartbeats and copies of snapshots.

Anything may connect to it, so until a connection has proved that it is an agent of this run (peer_protocol.py), it gets
no answer and costs next to nothing: a bounded number of connections, a few dozen bytes each, a deadline, and a bounded
number of new ones per second. Agents that are connected already are not affected by any of these limits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import logging
import os
import socket
from collections.abc import Callable

from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.network import PortRange
from elasticjob_runtime.rendezvous.peer_protocol import (
    CONFIRM_SIZE,
    HELLO_SIZE,
    NONCE_SIZE,
    NotAuthenticError,
    Purpose,
    ServerHandshake,
    Session,
    could_be_hello,
)
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that may wait until they are accepted: in a group of thousands, many members may connect at the same
moment."""

MAX_UNKNOWN = 256
"""Connections that have not proved yet that they are agents of this run. If there are more, the address with most of
them loses its oldest one."""

DEADLINE = 3.0
"""s to prove it. An agent sends its hello with its first packet; it gives up sooner itself."""

ACCEPTED_AT_ONCE = 64
"""Connections accepted before the event loop runs again: they must not delay heartbeats."""

WINDOW = 0.1
MAX_DROPPED = 400
"""Connections dropped per WINDOW seconds; further ones wait in the kernel until it is over. At 0.03 ms each, that is an
eighth of a core."""

WARN_SECONDS = 60.0
"""s between two warnings."""


@dataclasses.dataclass(slots=True)
class _Unknown:
    """A connection whose other side is not known yet."""

    connection: socket.socket
    address: str
    until: float
    received: bytes = b""
    answer: ServerHandshake | None = None
    """The hello was valid; the confirm is awaited."""


class PeerServer:
    """Runs on the event loop, from `open` to `close`. Call `tick` at `deadline`."""

    def __init__(
        self,
        incarnation: str,
        event_loop: EventLoop,
        on_listener: Callable[[socket.socket, Session], None],
        ports: PortRange | None = None,
        *,
        on_dropped: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """`on_listener` is called with each connection that wants heartbeats, and closes it. `ports`: the ports to
        choose from; None: any. `on_dropped` is called for each connection that is closed because it is not an agent's,
        with one word of why. Raises OSError."""
        both = socket.has_dualstack_ipv6()  # for IPv4 and IPv6 peers
        self._socket = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
        if both:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.port = network.bind(self._socket, ports)
        self._socket.listen(BACKLOG)
        with contextlib.suppress(OSError):  # a sandbox that cannot do it
            # The client speaks first, so a connection that says nothing need not wake this process.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        self._socket.setblocking(False)
        self._incarnation = incarnation
        self._event_loop = event_loop
        self._on_listener = on_listener
        self.on_copy: Callable[[socket.socket, Session], None] = lambda connection, _session: connection.close()
        """Called with each connection on which a copy of a snapshot follows; closes it."""
        self._on_dropped = on_dropped
        self._acceptor = descriptors.Acceptor(self._socket, self._answer_last)
        self._secrets: tuple[SecretValue, ...] = ()
        self._accepting = False
        self._unknown: dict[int, _Unknown] = {}
        """By descriptor, the oldest first."""
        self._per_address: collections.Counter[str] = collections.Counter()
        self._window_ends = 0.0
        self._dropped_in_window = 0
        self._warnings = _Warnings()
        self.round = 0
        """The round of the plan that this agent knows."""

    def open(self, secret: SecretValue) -> None:
        """Answers agents that know `secret` from now on. Until the first call, connections wait."""
        if secret not in self._secrets[:1]:
            self._secrets = (secret, *self._secrets[:1])  # others may learn a new one a moment later
        if not self._accepting:
            self._accept_again()

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        oldest = next(iter(self._unknown.values()), None)
        waits = () if self._accepting or not self._secrets else (self._window_ends,)
        return min((*waits, *((oldest.until,) if oldest is not None else ())), default=None)

    def tick(self, now: float) -> None:
        while (oldest := next(iter(self._unknown.values()), None)) is not None and now >= oldest.until:
            self._drop(oldest, "slow")
        if not self._accepting and self._secrets and now >= self._window_ends:
            self._accept_again()

    def close(self) -> None:
        if self._accepting:
            self._event_loop.remove(self._socket.fileno())
            self._accepting = False
        for unknown in list(self._unknown.values()):
            self._forget(unknown).close()
        self._secrets = ()
        self._acceptor.close()
        self._socket.close()

    # -- accepting

    def _accept_again(self) -> None:
        self._accepting = True
        self._event_loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        now, before = self._event_loop.now(), self._acceptor.rejected
        for connection in self._acceptor.accept(ACCEPTED_AT_ONCE):
            self._expect_hello(connection, now)
        if self._acceptor.rejected > before:
            self._warnings.no_descriptors(now)

    def _expect_hello(self, connection: socket.socket, now: float) -> None:
        unknown = _Unknown(connection, _address(connection), now + DEADLINE)
        if len(self._unknown) >= MAX_UNKNOWN:
            self._make_room()
        self._unknown[connection.fileno()] = unknown
        self._per_address[unknown.address] += 1
        self._event_loop.add_reader(connection.fileno(), lambda: self._read(unknown))
        self._read(unknown)  # an agent's hello mostly arrives with the connection

    def _make_room(self) -> None:
        ((crowded, _),) = self._per_address.most_common(1)
        self._drop(next(one for one in self._unknown.values() if one.address == crowded), "crowded")

    def _answer_last(self, connection: socket.socket) -> None:
        """No descriptor is left for this connection: it is closed at once, but may be answered before."""
        with contextlib.suppress(NotAuthenticError):
            connection.send(self._answer(connection.recv(HELLO_SIZE)).greeting(self.round))

    # -- reading

    def _read(self, unknown: _Unknown) -> None:
        wanted = HELLO_SIZE if unknown.answer is None else CONFIRM_SIZE
        try:
            data = unknown.connection.recv(wanted - len(unknown.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        unknown.received += data
        if not data:
            self._drop(unknown, "closed")
        elif unknown.answer is None and not could_be_hello(unknown.received):
            self._drop(unknown, "invalid")
        elif len(unknown.received) == wanted:
            try:
                self._take(unknown)
            except NotAuthenticError:
                self._drop(unknown, "invalid")
            except OSError:
                self._drop(unknown, "closed")

    def _take(self, unknown: _Unknown) -> None:
        """The hello or the confirm is complete. Raises NotAuthenticError and OSError."""
        if unknown.answer is not None:
            session = unknown.answer.session(unknown.received)
            known = self.on_copy if unknown.answer.purpose is Purpose.COPY else self._on_listener
            known(self._forget(unknown), session)
            return
        unknown.answer, unknown.received = self._answer(unknown.received), b""
        unknown.connection.send(unknown.answer.greeting(self.round))
        if unknown.answer.purpose is Purpose.PROBE:
            self._forget(unknown).close()

    def _answer(self, hello: bytes) -> ServerHandshake:
        return ServerHandshake(self._secrets, self._incarnation, hello, os.urandom(NONCE_SIZE))

    def _forget(self, unknown: _Unknown) -> socket.socket:
        connection = unknown.connection
        del self._unknown[connection.fileno()]
        self._per_address[unknown.address] -= 1
        if not self._per_address[unknown.address]:
            del self._per_address[unknown.address]
        self._event_loop.remove(connection.fileno())
        return connection

    def _drop(self, unknown: _Unknown, why: str) -> None:
        self._forget(unknown).close()
        now = self._event_loop.now()
        self._on_dropped(why)
        self._warnings.dropped(unknown.address, now)
        if now >= self._window_ends:
            self._window_ends, self._dropped_in_window = now + WINDOW, 0
        self._dropped_in_window += 1
        if self._dropped_in_window >= MAX_DROPPED and self._accepting:
            self._accepting = False
            self._event_loop.remove(self._socket.fileno())


class _Warnings:
    """At most one warning of each kind in WARN_SECONDS, however many connections there are."""

    def __init__(self) -> None:
        self._dropped = 0
        self._next_dropped = self._next_descriptors = 0.0

    def dropped(self, address: str, now: float) -> None:
        self._dropped += 1
        if now >= self._next_dropped:
            self._next_dropped = now + WARN_SECONDS
            logger.warning(
                "dropped %d connections (the last from %s) that are not from an agent of this run. A port scanner or "
                "a health check is harmless; anything else should not reach this port (docs/reference/elasticrun.md)",
                self._dropped,
                address,
            )
            self._dropped = 0

    def no_descriptors(self, now: float) -> None:
        if now >= self._next_descriptors:
            self._next_descriptors = now + WARN_SECONDS
            logger.warning(
                "this member answers probes but cannot send heartbeats: %s",
                descriptors.explain(OSError(errno.EMFILE, "")),
            )


def _address(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0]).removeprefix("::ffff:")
    except OSError:  # it has been closed already
        return ""
