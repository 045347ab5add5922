"""`free_ports`: tests that run at the same time do not get each other's ports."""

from __future__ import annotations

import collections
import itertools
import socket
import types

import pytest

from hack.cluster import ports
from hack.cluster.ports import PARTS, TEST_PORTS, free_ports, ports_of


def test_each_process_of_pytest_has_ports_of_its_own() -> None:
    parts = [set(ports_of(f"gw{number}")) for number in range(PARTS)]
    assert all(not one & other for one, other in itertools.combinations(parts, 2))
    assert set().union(*parts) == set(TEST_PORTS) == set(ports_of(""))


def test_a_port_that_is_not_used_yet_is_not_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    given = [*free_ports(100), *free_ports(50), *free_ports(50)]
    assert len(set(given)) == 200
    assert set(given) <= set(ports_of("gw3"))


def test_a_port_in_use_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    used, free = free_ports(2)
    monkeypatch.setattr(ports, "_given", collections.deque())
    numbers = iter([used, used, free])
    monkeypatch.setattr(ports, "_draw", types.SimpleNamespace(choice=lambda _ports: next(numbers)))
    with socket.socket() as server:
        server.bind(("127.0.0.1", used))
        assert free_ports(1) == [free]
