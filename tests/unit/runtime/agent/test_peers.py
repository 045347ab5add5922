"""Asking peers whether they are there, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.agent import peers
from elasticjob_runtime.agent.peers import PeerServer, hold_ports, local_address, probe, probe_in_background
from elasticjob_runtime.membership.model import Member

from tests.cluster.processes import free_ports
from tests.unit.runtime.membership.builders import make_member


@pytest.fixture
def server() -> Iterator[PeerServer]:
    """A live member `a`: greets until the test ends."""
    server = PeerServer("a", "a1")
    ended = threading.Event()

    def greet() -> None:
        while not ended.is_set():
            for connection in server.greet():
                connection.close()
            time.sleep(0.002)

    thread = threading.Thread(target=greet)
    thread.start()
    yield server
    ended.set()
    thread.join()
    server.close()


def at(port: int, name: str = "a", **fields: Any) -> Member:
    return make_member(name, **{"address": "127.0.0.1", "peer_port": port, **fields})


def test_a_live_peer_answers(server: PeerServer) -> None:
    before = time.monotonic()
    found = probe([at(server.port)])["a"]
    assert found.reachable
    assert found.incarnation == "a1"
    assert before <= found.asked_at <= found.at


def test_a_live_peer_answers_over_ipv6(server: PeerServer) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert probe([at(server.port, address="::1")])["a"].reachable


def test_another_incarnation_does_not_count(server: PeerServer) -> None:
    assert not probe([at(server.port, incarnation="a0")])["a"].reachable


def test_a_dead_peer_is_known_at_once() -> None:
    (port,) = free_ports(1)
    found = probe([at(port)], timeout=60.0)["a"]
    assert not found.reachable


def test_a_frozen_peer_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts, nobody greets
        assert not probe([at(frozen.getsockname()[1])], timeout=0.1)["a"].reachable


@pytest.mark.parametrize("fields", [{"address": "no.such.host.invalid"}, {"peer_port": 70000}, {"address": ""}])
def test_an_address_that_cannot_be_used_is_no_answer(server: PeerServer, fields: dict[str, Any]) -> None:
    bad = at(server.port, "b", **fields)
    found = probe([bad, at(server.port)], timeout=5.0)
    assert (found["a"].reachable, found["b"].reachable) == (True, False)


def test_somebody_else_who_listens_there_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk() -> None:
            connection, _ = other.accept()
            with connection:
                connection.send(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert not probe([at(other.getsockname()[1])])["a"].reachable
        thread.join()


def test_the_answer_comes_even_when_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(peers, "probe", fails)
    told = threading.Event()
    found: list[object] = []

    def take(answers: object) -> None:
        found.append(answers)
        told.set()

    probe_in_background([at(1)], take, timeout=0.01)
    assert told.wait(10.0)
    assert found == [{}], "nothing is known of the peers"


def test_held_ports_are_free_for_a_store_and_for_nobody_else() -> None:
    held = hold_ports(3)
    ports = [holder.getsockname()[1] for holder in held]
    assert len(set(ports)) == 3
    for port in ports:
        store = socket.socket()
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()
        store.close()
    for holder in held:
        holder.close()


def test_the_own_address_is_the_one_the_others_see() -> None:
    assert local_address("127.0.0.1", 2379) == "127.0.0.1"
    assert local_address("no.such.host.invalid", 2379) == "127.0.0.1"


def test_a_peer_says_which_plan_it_knows(server: PeerServer) -> None:
    assert probe([at(server.port)])["a"].epoch == 0
    server.epoch = 7
    assert probe([at(server.port)])["a"].epoch == 7
    assert probe([at(server.port, incarnation="a0")])["a"].epoch == 0, "somebody else's word does not count"
