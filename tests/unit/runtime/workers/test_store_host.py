"""A member's stores for coming rounds: each round gets a fresh one, and only stores that listen are published."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.store_host import PortUse, StoreHost
from elasticjob_runtime.workers.zygote import ipc

from hack.support import eventually

PORTS = [100, 101, 102, 103]

TURNS = {
    "leads for the first time": ([(1, True)], [[]]),
    "leads again at once: the previous store is renewed": ([(1, True), (2, True)], [[], [101]]),
    "another leads: the store is renewed before it is needed again": (
        [(1, True), (2, False), (5, True)],
        [[], [101], []],
    ),
    "leads again later with the same port": ([(1, True), (5, True)], [[], [101]]),
    "the same round again": ([(1, True), (1, True)], [[], []]),
    "only ever follows": ([(1, False), (2, False)], [[], []]),
}


@pytest.mark.parametrize("name", TURNS)
def test_no_round_uses_the_store_of_an_earlier_one(name: str) -> None:
    turns, renewed = TURNS[name]
    use = PortUse(PORTS)
    assert [use.enter(round_number, leads=leads) for round_number, leads in turns] == renewed


class Host:
    """An agent's StoreHost; the test plays the process at the other end."""

    def __init__(self) -> None:
        self.event_loop = EventLoop()
        self.reported: list[bool] = []
        self.agent = StoreHost(self.event_loop, PORTS, self.reported.append)
        ours, self.process = socket.socketpair()
        self.agent.attach(ours)
        assert self.received() == {"ports": PORTS}

    def claims(self) -> bool:
        return self.agent.listening

    def received(self) -> Any:
        return ipc.receive(self.process)[0]

    def send(self, **message: Any) -> None:
        count = len(self.reported)
        ipc.send(self.process, message)

        def arrived() -> bool:
            self.event_loop.wait(0.01)
            return len(self.reported) > count

        eventually(arrived)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.agent.close()
    host.process.close()
    host.event_loop.close()


def test_a_store_that_cannot_be_renewed_is_not_published_until_it_is(host: Host) -> None:
    host.send(pid=1, libuv=True)
    assert host.claims()
    host.agent.enter(1, leads=True)
    host.agent.enter(2, leads=False)
    assert host.received() == {"renew": 101}
    host.send(renewed=101, problem="Address already in use")
    assert not host.claims()
    assert host.agent.attached, "the other stores are in use"
    host.agent.enter(3, leads=False)
    assert host.received() == {"renew": 101}, "it is not tried again"
    host.send(renewed=101, problem="")
    assert host.claims()


def test_no_world_of_a_replica_uses_the_store_of_an_earlier_one(host: Host) -> None:
    host.send(pid=1, libuv=True)
    for port in (200, 200, 201, 0, 201):  # the same world in two plans; another one; a world that another agent hosts
        host.agent.enter_replica(port)
    assert [host.received(), host.received()] == [{"renew": 200}, {"renew": 201}]


def test_rounds_use_their_own_ports_only() -> None:
    event_loop = EventLoop()
    ours, process = socket.socketpair()
    agent = StoreHost(event_loop, [*PORTS, 200, 201], lambda _listening: None, round_ports=4)
    agent.attach(ours)
    assert ipc.receive(process)[0] == {"ports": [*PORTS, 200, 201]}
    agent.enter(4, leads=True)
    agent.enter(5, leads=True)
    assert ipc.receive(process)[0] == {"renew": 100}
    agent.close()
    process.close()
    event_loop.close()


def test_a_second_store_host_process_exits_and_the_first_remains(host: Host) -> None:
    host.send(pid=1, libuv=True)
    ours, second = socket.socketpair()
    with second:
        host.agent.attach(ours)
        assert second.recv(1) == b"", "it exits when its connection is closed"
    assert host.claims()
    host.agent.enter(1, leads=True)
    host.agent.enter(2, leads=False)
    assert host.received() == {"renew": 101}
