"""The port for other agents, over real sockets: who is not an agent of the run gets no answer and costs next to
nothing."""

from __future__ import annotations

import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.rendezvous import peer_server
from elasticjob_runtime.rendezvous.peer_protocol import NONCE_SIZE, Client, Purpose, Session
from elasticjob_runtime.rendezvous.peer_server import DEADLINE, MAX_DROPPED, MAX_UNKNOWN, WARN_SECONDS, PeerServer

from hack.support import eventually
from tests.unit.runtime.rendezvous.sessions import Loop

SECRET, OTHER = SecretValue(secret="5e" * 32), SecretValue(secret="07" * 32)


class Server:
    """A PeerServer and what it has reported."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.dropped: Counter[str] = Counter()
        self.listeners: list[tuple[socket.socket, Session]] = []
        self.peers = PeerServer(
            "a1",
            self.loop,
            lambda connection, session: self.listeners.append((connection, session)),
            on_dropped=lambda why: self.dropped.update([why]),
        )

    def serve(self) -> None:
        self.loop.wait(0.005)
        self.peers.tick(self.loop.at)

    def until(self, holds: Callable[[], object]) -> None:
        def check() -> object:
            self.serve()
            return holds()

        eventually(check, 20.0, interval=0.0, what=str(self.dropped))

    def until_dropped(self, count: int) -> None:
        self.until(lambda: self.dropped.total() >= count)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.peers.port), timeout=5.0)
        connection.settimeout(0.0)
        return connection

    def received(self, connection: socket.socket, size: int) -> bytes:
        data = b""

        def complete() -> bool:
            nonlocal data
            try:
                data += connection.recv(4096)
            except BlockingIOError:
                return False
            return len(data) >= size

        self.until(complete)
        return data

    def probe(self, secret: SecretValue = SECRET) -> int:
        client = asking(Purpose.PROBE, secret)
        with self.connect() as connection:
            connection.send(client.hello)
            (round_number,) = client.receive(self.received(connection, 40))
        return round_number


def asking(purpose: Purpose = Purpose.HEARTBEATS, secret: SecretValue = SECRET) -> Client:
    return Client(secret, "a1", purpose, bytes(NONCE_SIZE))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.peers.open(SECRET)
    yield server
    server.peers.close()
    for connection, _ in server.listeners:
        connection.close()
    server.loop.close()


def nothing_is_sent(connection: socket.socket) -> bool:
    """Whether the server has sent nothing, and has closed the connection."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


STRANGERS = {
    "another run's agent": asking(secret=OTHER).hello,
    "a health check": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "one byte": b"\0",
    "half a hello": asking().hello[:20],
    "a forged hello": asking().hello[:-1] + b"\0",
    "a megabyte": b"a" * (1 << 20),
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_dropped_without_an_answer(server: Server, sent: bytes) -> None:
    with server.connect() as connection:
        connection.settimeout(5.0)
        connection.send(sent[: 1 << 16])
        connection.shutdown(socket.SHUT_WR)
        server.until_dropped(1)
        assert nothing_is_sent(connection)
    assert server.listeners == []
    assert server.peers.deadline is None


def test_a_slow_sender_is_dropped_at_the_deadline(server: Server) -> None:
    hello = asking().hello
    with server.connect() as connection:
        connection.send(hello[:-2])
        server.until(lambda: server.peers.deadline)
        for _ in range(3):
            server.loop.at += DEADLINE / 4
            server.serve()
        connection.send(hello[-2:-1])  # a byte now and then does not extend it
        server.serve()
        assert server.dropped.total() == 0
        server.loop.at += DEADLINE / 2
        server.serve()
        assert server.dropped == {"slow": 1}


def test_a_recorded_hello_gets_a_greeting_and_no_heartbeats(server: Server) -> None:
    client = asking()
    with server.connect() as first, server.connect() as second:
        first.send(client.hello)
        client.receive(server.received(first, 40))
        first.send(confirm := client.reply)
        server.until(lambda: server.listeners)
        second.send(client.hello)
        server.received(second, 40)
        second.send(confirm)
        server.until_dropped(1)
    assert len(server.listeners) == 1
    assert server.dropped == {"invalid": 1}


def test_a_thousand_strangers_use_a_bounded_number_of_connections_and_keep_no_agent_out(server: Server) -> None:
    server.peers.round = 7
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    strangers = []
    try:
        for number in range(1000):
            strangers.append(server.connect())
            strangers[-1].send(b"e")  # the beginning of a hello, and no more
            if number % 20 == 0:
                server.serve()
                assert len(server.peers._unknown) <= MAX_UNKNOWN
                server.loop.at += 0.2
        server.loop.at += 0.2
        assert server.probe() == 7
        assert server.dropped["crowded"] > 0
        assert all(len(unknown.received) <= 1 for unknown in server.peers._unknown.values())
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_crowd_from_one_address_loses_its_own_connections_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_UNKNOWN", 8)
    monkeypatch.setattr(peer_server, "_address", lambda connection: addresses[connection.getpeername()[1]])
    addresses: dict[int, str] = {}
    connections = []
    for address in ["10.0.0.1", *["10.0.0.66"] * 20]:
        connection = server.connect()
        addresses[connection.getsockname()[1]] = address
        connections.append(connection)
        connection.send(b"e")
    server.until_dropped(13)
    assert "10.0.0.1" in {unknown.address for unknown in server.peers._unknown.values()}
    for connection in connections:
        connection.close()


def test_more_strangers_than_the_rate_wait_in_the_kernel(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_DROPPED > 3
    monkeypatch.setattr(peer_server, "MAX_DROPPED", 3)
    monkeypatch.setattr(peer_server, "ACCEPTED_AT_ONCE", 1)
    for _ in range(8):
        with server.connect() as connection:
            connection.send(b"x")
    server.until_dropped(3)
    for _ in range(5):
        server.serve()
    assert server.dropped.total() <= 4, "it goes on accepting"
    assert server.peers.deadline is not None, "it does not accept again by itself"
    server.loop.at += 1.0
    server.until_dropped(5)


def test_strangers_cause_one_warning_a_minute(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for round_of_strangers in range(2):
        for _ in range(50):
            with server.connect() as connection:
                connection.send(b"x")
        server.until_dropped(50 * (round_of_strangers + 1))
        assert len(caplog.records) == round_of_strangers + 1
        server.loop.at += WARN_SECONDS + 1
    assert "dropped 50 connections" in caplog.records[1].message, "the others are counted"


def test_no_connection_is_answered_before_the_secret_is_known() -> None:
    server = Server()
    with server.connect() as early:
        client = asking(Purpose.PROBE)
        early.send(client.hello)
        server.serve()
        assert server.peers.deadline is None
        server.peers.open(SECRET)
        assert client.receive(server.received(early, 40)) == [0], "it has waited"
    server.peers.close()
    server.loop.close()


def test_agents_that_know_the_secret_before_are_answered_for_a_while(server: Server) -> None:
    """After a store lost its data, members learn the new secret one after the other."""
    server.peers.open(OTHER)
    assert server.probe(SECRET) == server.probe(OTHER) == 0
