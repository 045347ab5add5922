"""The address and the ports that a member publishes."""

from __future__ import annotations

import contextlib
import socket

import pytest
from elasticjob_runtime.etcd import Endpoint, parse_endpoints, sockets
from elasticjob_runtime.rendezvous import network
from elasticjob_runtime.rendezvous.network import PortRange, given_address, hold_ports, own_address

from hack.cluster.ports import free_ports

OUTSIDE = "10.20.30.40"


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a default route from `OUTSIDE`, and a name that /etc/hosts maps to 127.0.1.1, as Debian does."""
    real = sockets.resolve

    def route(family: int, address: str) -> str:
        return "127.0.0.1" if address.startswith("127.") else "" if family == socket.AF_INET6 else OUTSIDE

    def resolve(host: str, port: int, end: float) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        return [(socket.AF_INET, ("127.0.1.1", port))] if host == "debian" else real(host, port, end)

    monkeypatch.setattr(network, "_route", route)
    monkeypatch.setattr(sockets, "resolve", resolve)


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("endpoint", ["10.0.0.1", "https://10.0.0.1:2379", "10.0.0.1,10.0.0.2", "no.such.host.invalid"])
def test_the_address_is_that_of_the_endpoints_route_or_of_the_default_one(endpoint: str) -> None:
    assert own_address(parse_endpoints(endpoint), several=True) == OUTSIDE


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("endpoint", ["localhost:2379", "127.0.0.1", "debian:2379"])
def test_loopback_is_published_only_on_a_single_machine(endpoint: str) -> None:
    assert own_address(parse_endpoints(endpoint), several=True) == OUTSIDE
    assert own_address(parse_endpoints(endpoint), several=False).startswith("127."), "a single machine needs no other"


def test_a_machine_with_only_loopback_warns_to_set_local_addr(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network, "_route", lambda _family, address: "127.0.0.1" if address.startswith("127.") else "")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert own_address([Endpoint("127.0.0.1")], several=True) == "127.0.0.1"
    assert "set the address with --local-addr" in caplog.text


@pytest.mark.usefixtures("routed")
def test_a_given_host_name_is_published_as_an_address() -> None:
    assert given_address("10.1.2.3", several=True) == "10.1.2.3"
    assert given_address("127.0.0.1", several=True) == "127.0.0.1", "an explicit loopback is kept"
    assert given_address("debian", several=True) == OUTSIDE
    assert given_address("localhost", several=False) in ("127.0.0.1", "::1")
    with pytest.raises(OSError, match=r"no\.such\.host\.invalid"):
        given_address("no.such.host.invalid", several=True)


@pytest.mark.parametrize("text", ["", "30000", "30000-", "a-b", "0-10", "30009-30000", "65000-70000", "30000-30003"])
def test_an_invalid_port_range_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"write LOW-HIGH|an agent needs 5"):
        PortRange.parse(text)


def test_a_port_range_has_each_port_once() -> None:
    assert sorted(PortRange.parse(" 30000-30009 ")) == list(range(30000, 30010))


def ports_of(held: list[socket.socket]) -> list[int]:
    """Gives them back."""
    with contextlib.ExitStack() as held_ports:
        return [held_ports.enter_context(holder).getsockname()[1] for holder in held]


def test_agents_on_one_host_share_a_port_range() -> None:
    low = max(free_ports(1)[0] - 40, 1024)
    ports = PortRange(low, low + 40)
    held = [holder for _ in range(3) for holder in hold_ports(ports)]
    taken = ports_of(held)
    assert len(set(taken)) == 12
    assert all(port in range(low, low + 41) for port in taken)


def test_an_exhausted_port_range_names_the_flag() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"no port from {port}-{port} is free on this host \(--port-range\)"):
            hold_ports(PortRange(port, port))


@pytest.mark.parametrize("in_range", [False, True], ids=["any port", "from a range"])
def test_held_ports_are_distinct_and_a_store_can_bind_them(in_range: bool) -> None:
    low = free_ports(1)[0]
    held = hold_ports(PortRange(low, min(low + 40, 65535)) if in_range else None, count=3)
    assert len({holder.getsockname()[1] for holder in held}) == 3
    for holder in held:
        with socket.create_server(("", holder.getsockname()[1])):  # with SO_REUSEADDR
            holder.close()


def test_the_first_round_uses_the_master_port_and_each_round_the_next_one() -> None:
    first = _four_free_ports()
    ports = ports_of(hold_ports(first=first))
    assert [ports[round_number % len(ports)] for round_number in (1, 2, 3, 4, 5)] == [
        first, first + 1, first + 2, first + 3, first,
    ]  # fmt: skip


def test_a_master_port_that_is_taken_is_named_with_what_to_do() -> None:
    first = _four_free_ports()
    with socket.socket() as other:
        other.bind(("", first + 2))
        with pytest.raises(
            OSError, match=rf"--master-port={first} needs the ports .* {first + 2} cannot be used"
        ) as it:
            hold_ports(first=first)
    assert "leave the flag out" in str(it.value)
    assert ports_of(hold_ports(first=first)), "the others were given back"


def _four_free_ports() -> int:
    for first in range(21000, 30000, 7):
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + 4):
                    holder = sockets.enter_context(socket.socket())
                    holder.bind(("", port))
            except OSError:
                continue
            return first
    raise AssertionError("no four free ports")
