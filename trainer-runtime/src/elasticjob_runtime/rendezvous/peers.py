"""Probes: asking peers directly whether they are alive.

Every agent listens on a TCP port that is in its member key (peer_server.py). A connection to a dead process is refused
at once, while its lease lasts for seconds longer; a frozen process, or one that is cut off, does not answer in time;
another process at the same address cannot prove that it is the member (peer_protocol.py).
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.event_loop import start_thread
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.membership.view import Member, Probe
from elasticjob_runtime.rendezvous.network import family_of
from elasticjob_runtime.rendezvous.peer_protocol import NONCE_SIZE, Client, NotAuthenticError, Purpose
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)


def probe_in_background(
    members: Sequence[Member],
    secret: SecretValue,
    on_result: Callable[[Mapping[str, Probe]], None],
    timeout: float = RESTART.answer,
) -> None:
    """Probes on a new thread if possible, and always calls `on_result`."""

    def run() -> None:
        try:
            found = probe(members, secret, timeout)
        except OSError as error:  # such as no descriptor left: that says nothing about the peers
            logger.warning("cannot probe the other members: %s", descriptors.explain(error))
            time.sleep(timeout)
            found = {}
        on_result(found)

    if not start_thread(run, "probe"):
        run()  # an answer takes milliseconds; only a silent member holds up the caller


def probe(
    members: Sequence[Member], secret: SecretValue, timeout: float = RESTART.answer, at_once: int | None = None
) -> dict[str, Probe]:
    """Probes all `members`, `at_once` of them at a time (None: as many as file descriptors allow). A member is
    reachable if within `timeout` seconds it proves that it knows the run's `secret` and is the incarnation in its
    member key.

    Raises OSError if this process cannot open a single connection.
    """
    with selectors.DefaultSelector() as selector:
        prober = _Prober(members, secret, timeout, at_once or descriptors.available(), selector)
        try:
            return prober.run()
        finally:
            prober.close()


@dataclasses.dataclass(slots=True)
class _OpenProbe:
    """A probe that has no answer yet."""

    member: Member
    connection: socket.socket
    client: Client
    asked_at: float
    asked: bool = False
    """The connection is established, and the hello is sent."""


class _Prober:
    """Probes a list of members, a limited number at a time: each answer or refused connection makes room for the next
    one. Only silence takes the whole timeout."""

    def __init__(
        self,
        members: Sequence[Member],
        secret: SecretValue,
        timeout: float,
        at_once: int,
        selector: selectors.BaseSelector,
    ) -> None:
        self._members = members
        self._secret = secret
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
                connection = socket.socket(family_of(member.value.address), socket.SOCK_STREAM)
            except OSError as error:
                if not (descriptors.exhausted(error) and self._open):
                    raise
                self._at_once = len(self._open)  # the rest of this process uses the other descriptors
                return
            self._waiting.popleft()
            self._asked_at[member.name] = time.monotonic()
            client = Client(self._secret, member.value.incarnation, Purpose.PROBE, os.urandom(NONCE_SIZE))
            self._open[connection.fileno()] = _OpenProbe(member, connection, client, self._asked_at[member.name])
            connection.setblocking(False)
            if _connect(connection, member):
                self._selector.register(connection, selectors.EVENT_WRITE)
            else:
                self._open.pop(connection.fileno()).connection.close()

    def _collect_answers(self) -> None:
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return
        for key, _ in self._selector.select(max(0.0, oldest.asked_at + self._timeout - time.monotonic())):
            self._continue(self._open[key.fd])
        now = time.monotonic()
        for late in [one for one in self._open.values() if now >= one.asked_at + self._timeout]:
            self._finish(late, None)

    def _continue(self, open_probe: _OpenProbe) -> None:
        """The connection is established, has failed, or has data."""
        try:
            if not open_probe.asked:
                open_probe.connection.send(open_probe.client.hello)
                open_probe.asked = True
                self._selector.modify(open_probe.connection, selectors.EVENT_READ)
                return
            data = open_probe.connection.recv(1024)
            rounds = open_probe.client.receive(data)
        except (OSError, NotAuthenticError):
            data, rounds = b"", ()
        if rounds or not data:
            self._finish(open_probe, rounds[0] if rounds else None)

    def _finish(self, open_probe: _OpenProbe, round_number: int | None) -> None:
        """`round_number`: the round of the plan that the member knows; None: it did not answer."""
        del self._open[open_probe.connection.fileno()]
        self._selector.unregister(open_probe.connection)
        if round_number is not None:
            self._rounds[open_probe.member.name] = round_number
        open_probe.connection.close()


def _connect(connection: socket.socket, member: Member) -> bool:
    """False: the member's address or port is not valid."""
    address = (member.value.address, member.value.peer_port)
    try:
        connection.connect_ex(address)
    except (OSError, OverflowError) as error:
        logger.warning("%s gave an address that cannot be used, %s port %d: %s", member.name, *address, error)
        return False
    return True
