"""What counts as a sign of life from outside the group: only what has crossed the network."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator

import pytest
from elasticjob_runtime.rendezvous.outside_hosts import OutsideHost, answers, outside_hosts, probe_outside_in_background

HERE = "127.0.0.1"


@contextlib.contextmanager
def listener(says: bytes | None) -> Iterator[int]:
    """Accepts one connection and sends this. With None, the kernel accepts it and nothing is sent."""
    with socket.create_server((HERE, 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(says or b"")

        if says is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def unused_port() -> int:
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


def test_a_response_is_a_sign_of_life() -> None:
    with listener(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") as port:
        assert answers([OutsideHost(HERE, port, must_speak=True)], timeout=10.0)


def test_in_a_pod_a_connection_without_a_response_is_no_sign_of_life() -> None:
    with listener(None) as port:
        assert not answers([OutsideHost(HERE, port, must_speak=True)], timeout=0.3)
    assert not answers([OutsideHost(HERE, unused_port(), must_speak=True)], timeout=10.0)


def test_outside_pods_etcds_host_is_a_sign_of_life_even_if_etcd_hangs() -> None:
    with listener(None) as port:
        assert answers([OutsideHost(HERE, port, must_speak=False)], timeout=10.0)


def test_one_responding_host_is_enough_and_one_where_etcd_has_ended_responds() -> None:
    silent = OutsideHost("192.0.2.1", 2379, must_speak=True)  # TEST-NET, where nothing listens
    assert answers([silent, OutsideHost(HERE, unused_port(), must_speak=False)], timeout=10.0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 300, ""])
def test_an_unknown_host_name_is_no_sign_of_life(host: str) -> None:
    assert not answers([OutsideHost(host, 1, must_speak=True)], timeout=0.2)


def test_asking_without_outside_hosts_reports_no_sign_of_life() -> None:
    results: queue.SimpleQueue[bool] = queue.SimpleQueue()
    probe_outside_in_background([], results.put)
    assert results.get(timeout=30) is False


def test_the_outside_host_is_the_api_server_in_a_pod_and_etcds_elsewhere() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert outside_hosts(pod, [("etcd", 2379)]) == (OutsideHost("10.96.0.1", 6443, must_speak=True),)
    assert outside_hosts(pod | {"KUBERNETES_SERVICE_PORT": "tcp://1"}, ()) == (
        OutsideHost("10.96.0.1", 443, must_speak=True),
    )
    assert outside_hosts({}, [("e1", 2379), ("e2", 2380)]) == (
        OutsideHost("e1", 2379, must_speak=False),
        OutsideHost("e2", 2380, must_speak=False),
    )
