"""Probes of peers, over real sockets."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.silence import RESTART
from elasticjob_runtime.membership.view import Member, Probe
from elasticjob_runtime.rendezvous import peers
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.rendezvous.peers import probe_in_background

from hack.cluster.ports import free_ports
from tests.unit.runtime.membership.builders import make_member

SECRET = SecretValue(secret="5e" * 32)


@pytest.fixture
def server() -> Iterator[PeerServer]:
    """A live member `a`: answers until the test ends."""
    loop, ended = EventLoop(), threading.Event()
    server = PeerServer("a1", loop, lambda connection, _session: connection.close())
    server.open(SECRET)

    def answer() -> None:
        while not ended.is_set():
            loop.wait(0.002)

    thread = threading.Thread(target=answer)
    thread.start()
    yield server
    ended.set()
    thread.join()
    server.close()
    loop.close()


def probe(members: Sequence[Member], timeout: float = RESTART.answer, **more: Any) -> dict[str, Probe]:
    return peers.probe(members, SECRET, timeout, **more)


def at(port: int, name: str = "a", **fields: Any) -> Member:
    return make_member(name, **{"address": "127.0.0.1", "peer_port": port, **fields})


def test_a_live_peer_is_reachable_and_reports_the_round_it_knows(server: PeerServer) -> None:
    before = time.monotonic()
    for known in (0, 7):
        server.round = known
        found = probe([at(server.port)])["a"]
        assert (found.reachable, found.incarnation, found.round) == (True, "a1", known)
        assert before <= found.asked_at <= found.at


def test_a_live_peer_is_reachable_over_ipv6(server: PeerServer) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert probe([at(server.port, address="::1")])["a"].reachable


def test_another_incarnation_does_not_count_as_reachable(server: PeerServer) -> None:
    server.round = 7
    found = probe([at(server.port, incarnation="a0")])["a"]
    assert (found.reachable, found.round) == (False, 0)


def test_a_dead_peer_is_detected_at_once() -> None:
    (port,) = free_ports(1)
    found = probe([at(port)], timeout=60.0)["a"]
    assert not found.reachable


def test_a_frozen_peer_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts, but no greeting follows
        assert not probe([at(frozen.getsockname()[1])], timeout=0.1)["a"].reachable


@pytest.mark.parametrize(
    "fields", [{"address": "no.such.host.invalid"}, {"peer_port": 70000}, {"address": ""}], ids=str
)
def test_an_invalid_address_is_unreachable_and_affects_no_other_peer(
    server: PeerServer, fields: dict[str, Any]
) -> None:
    bad = at(server.port, "b", **fields)
    found = probe([bad, at(server.port)], timeout=5.0)
    assert (found["a"].reachable, found["b"].reachable) == (True, False)


def test_another_service_at_the_address_does_not_count_as_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk() -> None:
            connection, _ = other.accept()
            with connection:
                connection.send(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert not probe([at(other.getsockname()[1])])["a"].reachable
        thread.join()


def test_a_background_probe_that_fails_reports_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(peers, "probe", fails)
    found: queue.SimpleQueue[object] = queue.SimpleQueue()
    probe_in_background([at(1)], SECRET, found.put, timeout=0.01)
    assert found.get(timeout=10.0) == {}, "nothing is known about the peers"


def test_more_members_than_descriptors_are_all_probed(server: PeerServer) -> None:
    """The default limit in a pod is 1,024, and a planner must be able to probe a larger group."""
    (closed,) = free_ports(1)
    live = {f"m{number}" for number in range(300) if number % 3}
    members = [at(server.port if f"m{n}" in live else closed, f"m{n}", incarnation="a1") for n in range(300)]
    found = probe(members, timeout=60.0, at_once=7)
    assert {name for name, one in found.items() if one.reachable} == live


def test_reachable_peers_do_not_wait_for_silent_ones(server: PeerServer) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as frozen:
        silent = [at(frozen.getsockname()[1], f"s{number}") for number in range(6)]
        live = [at(server.port, f"m{number}", incarnation="a1") for number in range(20)]
        found = probe([*silent, *live], timeout=0.5, at_once=4)
    assert {name for name, one in found.items() if one.reachable} == {member.name for member in live}


OUT_OF_DESCRIPTORS = """
import resource, threading
from elasticjob_runtime.contract import SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.rendezvous.peers import probe
from tests.unit.runtime.membership.builders import make_member
loop, secret = EventLoop(), SecretValue(secret="5e" * 32)
server = PeerServer("a1", loop, lambda connection, _session: connection.close())
server.open(secret)
def answer():
    while True:
        loop.wait(0.001)
threading.Thread(target=answer, daemon=True).start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
members = [make_member(f"m{n}", incarnation="a1", address="127.0.0.1", peer_port=server.port) for n in range(500)]
found = probe(members, secret, 30.0, at_once=400)  # more than the limit allows
assert all(one.reachable for one in found.values()), sum(one.reachable for one in found.values())
"""


def test_running_out_of_descriptors_only_slows_probing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
