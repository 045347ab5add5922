"""A member's stores for coming rounds: each round gets a fresh one, and only stores that listen are published."""

from __future__ import annotations

import contextlib
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

    def __init__(self, *more_ports: int) -> None:
        self.event_loop = EventLoop()
        self.reported: list[bool] = []
        ports = [*PORTS, *more_ports]
        self.agent = StoreHost(self.event_loop, ports, self.reported.append, round_ports=len(PORTS))
        ours, self.process = socket.socketpair()
        self.agent.attach(ours)
        assert self.received() == {"ports": ports}

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

    def close(self) -> None:
        self.agent.close()
        self.process.close()
        self.event_loop.close()


@pytest.fixture
def host() -> Iterator[Host]:
    with contextlib.closing(Host()) as host:
        yield host


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
    with contextlib.closing(Host(200, 201)) as host:
        host.agent.enter(4, leads=True)
        host.agent.enter(5, leads=True)
        assert host.received() == {"renew": 100}


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
