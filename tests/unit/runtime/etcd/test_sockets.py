"""How etcd is reached while DNS does not respond."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from elasticjob_runtime.etcd import sockets
from elasticjob_runtime.etcd.sockets import Address, Resolver, connect


class Dns:
    """A name server driven by the test."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.asked = 0
        self.thawed = threading.Event()
        self.thawed.set()

    def lookup(self, host: str, port: int, flags: int) -> list[Address]:
        if flags & socket.AI_NUMERICHOST:
            if host.startswith("127."):
                return [(socket.AF_INET, (host, port))]
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        self.asked += 1
        self.thawed.wait(60)
        if not self.address:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, (self.address, port))]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    dns = Dns()
    monkeypatch.setattr(sockets, "_lookup", dns.lookup)
    yield dns
    dns.thawed.set()


@pytest.fixture
def etcd() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def reached(resolver: Resolver, port: int, host: str = "etcd", timeout: float = 20.0) -> str:
    """The address that a connection went to. Raises OSError."""
    used: list[socket.socket] = []
    try:
        connect(host, port, time.monotonic() + timeout, used.append, resolver)
        return str(used[-1].getpeername()[0])
    finally:
        for one in used:
            one.close()


def test_the_last_address_is_used_while_dns_does_not_respond(dns: Dns, etcd: int) -> None:
    resolver = Resolver()
    assert reached(resolver, etcd) == "127.0.0.1"
    dns.thawed.clear()
    for _ in range(5):
        assert reached(resolver, etcd) == "127.0.0.1", "DNS is silent"
    assert dns.asked == 2, "one lookup is in progress for all that wait"
    dns.address = ""
    dns.thawed.set()
    assert reached(resolver, etcd) == "127.0.0.1", "DNS reports a failure"


def test_a_name_that_never_resolved_is_an_error(dns: Dns, etcd: int) -> None:
    dns.address = ""
    with pytest.raises(OSError, match="the name etcd cannot be resolved: Temporary failure"):
        reached(Resolver(), etcd)
    dns.thawed.clear()
    with pytest.raises(OSError, match="the name other was not resolved within the deadline"):
        reached(Resolver(), etcd, host="other", timeout=0.1)


def test_an_etcd_that_moved_is_reached_at_its_new_address(dns: Dns, etcd: int) -> None:
    """The old address is only a fallback until DNS responds."""
    resolver = Resolver()
    resolver.connected("etcd", etcd, (socket.AF_INET, ("127.0.0.77", etcd)))  # nothing listens there any longer
    assert reached(resolver, etcd) == "127.0.0.1"
    resolver.connected("etcd", etcd, (socket.AF_INET, ("127.0.0.77", etcd)))
    dns.thawed.clear()
    threading.Timer(1.0, dns.thawed.set).start()
    assert reached(resolver, etcd) == "127.0.0.1", "the late response"


def test_an_ip_address_needs_no_lookup(dns: Dns, etcd: int) -> None:
    dns.thawed.clear()
    assert reached(Resolver(), etcd, host="127.0.0.1") == "127.0.0.1"
    assert dns.asked == 0
