"""A member's stores of coming rounds: fresh when their turn comes, and claimed only where they are."""

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
    "leads again at once: the store before is stale": ([(1, True), (2, True)], [[], [101]]),
    "another leads: renewed then, long before it is needed again": (
        [(1, True), (2, False), (5, True)],
        [[], [101], []],
    ),
    "fell silent, and leads again with the same port": ([(1, True), (5, True)], [[], [101]]),
    "told of the same round again": ([(1, True), (1, True)], [[], []]),
    "only ever follows": ([(1, False), (2, False)], [[], []]),
}


@pytest.mark.parametrize("name", TURNS)
def test_no_round_meets_the_store_of_an_earlier_one(name: str) -> None:
    turns, renewed = TURNS[name]
    use = PortUse(PORTS)
    assert [use.enter(round_number, leads=leads) for round_number, leads in turns] == renewed


class Host:
    """A store host's agent, and the process at the other end, played by the test."""

    def __init__(self) -> None:
        self.event_loop = EventLoop()
        self.told: list[bool] = []
        self.agent = StoreHost(self.event_loop, PORTS, self.told.append)
        ours, self.process = socket.socketpair()
        self.agent.attach(ours)
        assert self.received() == {"ports": PORTS}

    def claims(self) -> bool:
        return self.agent.listening

    def received(self) -> Any:
        return ipc.receive(self.process)[0]

    def says(self, **message: Any) -> None:
        count = len(self.told)
        ipc.send(self.process, message)

        def heard() -> bool:
            self.event_loop.wait(0.01)
            return len(self.told) > count

        eventually(heard)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.agent.close()
    host.process.close()
    host.event_loop.close()


def test_a_store_that_cannot_be_renewed_is_no_longer_claimed_until_it_is(host: Host) -> None:
    host.says(pid=1, libuv=True)
    assert host.claims()
    host.agent.enter(1, leads=True)
    host.agent.enter(2, leads=False)
    assert host.received() == {"renew": 101}
    host.says(renewed=101, problem="Address already in use")
    assert not host.claims()
    assert host.agent.attached, "the other stores are in use"
    host.agent.enter(3, leads=False)
    assert host.received() == {"renew": 101}, "it is not tried again"
    host.says(renewed=101, problem="")
    assert host.claims()
