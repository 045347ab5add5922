"""The embedded etcd as a server: start, close, restart, invalid requests. (For its store's semantics, see
test_store_*.py.)"""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest
from elasticjob_runtime.etcd import KeyRange, Unavailable

from hack.embedded_etcd import server as embedded_module
from hack.embedded_etcd.server import EmbeddedServer
from hack.support import eventually
from tests.contract.backends import Collector, OpenClient


def test_leases_and_watches_notice_a_restart_as_an_empty_store(open_client: OpenClient) -> None:
    first = EmbeddedServer().start()
    client = open_client(first.endpoint)
    lost: list[str] = []
    seen = Collector()
    client.watch([KeyRange.prefix("/job/"), KeyRange("/plan")], 2, seen)
    lease = client.lease(3, lost.append)
    client.put("/job/me", "old", lease=lease.id)
    for number in range(10):
        client.put("/plan", str(number))
    eventually(lambda: len(seen.events) == 11)
    port = int(first.endpoint.rpartition(":")[2])
    first.close()
    with pytest.raises(Unavailable):
        client.get("/plan", timeout=0.3)
    with EmbeddedServer(port=port):
        eventually(lambda: lost, what="the lease is reported as lost")
        eventually(lambda: seen.snapshots == [()], what="the watch starts over with an empty snapshot")
        revision = client.put("/plan", "new")
        eventually(lambda: seen.events[-1].mod_revision == revision)
        assert len(lost) == 1
    client.close()


def test_closing_ends_watches_and_all_threads(open_client: OpenClient) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    server = EmbeddedServer().start()
    client = open_client(server.endpoint)
    seen = Collector()
    for _ in range(5):
        client.watch([KeyRange("/a")], 1, seen)
    client.put("/a", "")
    eventually(lambda: len(seen.events) == 5)
    started = time.monotonic()
    server.close()
    eventually(lambda: len(seen.failures) == 5, what="the watches report that their server is down")
    client.close()
    eventually(lambda: {thread.ident for thread in threading.enumerate()} <= before, what="all threads end")
    assert time.monotonic() - started < 30


def test_the_watch_of_a_closed_client_ends(open_client: OpenClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_module, "_GONE_CHECK", 0.2)
    with EmbeddedServer() as server:
        client = open_client(server.endpoint)
        client.watch([KeyRange("/never")], 1, Collector())
        client.put("/a", "")
        serving: list[threading.Thread] = []

        def both_are_served() -> bool:  # the watch connects on its own thread
            serving[:] = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
            return len(serving) >= 2

        eventually(both_are_served)
        client.close()
        eventually(lambda: not any(t.is_alive() for t in serving), what="the server's threads for that client end")


def test_a_port_in_use_is_an_immediate_error() -> None:
    with EmbeddedServer() as server, pytest.raises(OSError, match="in use"):
        EmbeddedServer(port=int(server.endpoint.rpartition(":")[2]))


def test_the_server_listens_on_ipv6(open_client: OpenClient) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with EmbeddedServer("::1") as server:
        assert server.endpoint.startswith("[::1]:")
        assert open_client(server.endpoint).put("/a", "") == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v3/kv/range", b"{", 400, "malformed"),
        ("/v3/kv/range", b"[]", 400, "malformed"),
        ("/v3/kv/range", b"{}", 400, "malformed"),
        ("/v3/kv/range", b'{"key":"%%%"}', 400, "malformed"),
        ("/v3/kv/txn", b'{"success":[{"request_put":{"key":1}}]}', 400, "malformed"),
        (
            "/v3/kv/txn",
            b'{"compare":[{"key":"YQ==","target":"VALUE","result":"EQUAL"}]}',
            404,
            "only comparisons for equality",
        ),
        ("/v3/watch", b'{"cancel_request":{}}', 400, "malformed"),
        ("/v3/cluster/member/list", b"{}", 404, "not served by the embedded store"),
        ("/v3/lease/revoke", b'{"ID":"7"}', 404, "requested lease not found"),
        ("/v3/auth/authenticate", b"{}", 400, "authentication is not enabled"),
    ],
    ids=[
        "cut JSON",
        "not an object",
        "no key",
        "bad base64",
        "number as key",
        "unsupported comparison",
        "unsupported watch request",
        "unsupported path",
        "unknown lease",
        "login without users",
    ],
)
def test_invalid_requests_get_an_error_and_do_no_harm(path: str, body: bytes, status: int, words: str) -> None:
    with EmbeddedServer() as server:
        connection = http.client.HTTPConnection(server.endpoint, timeout=10)
        connection.request("POST", path, body)
        answer = connection.getresponse()
        assert (answer.status, words in answer.read().decode()) == (status, True)
        connection.request("GET", "/version")
        assert b"etcdserver" in connection.getresponse().read()
        connection.close()


def test_a_body_over_the_limit_is_rejected() -> None:
    with EmbeddedServer() as server:
        connection = http.client.HTTPConnection(server.endpoint, timeout=10)
        connection.putrequest("POST", "/v3/kv/put")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_thirty_concurrent_clients_all_see_every_change(open_client: OpenClient) -> None:
    with EmbeddedServer() as server:
        seen = [Collector() for _ in range(30)]
        clients = [open_client(server.endpoint) for _ in seen]
        for client, collector in zip(clients, seen, strict=True):
            client.watch([KeyRange.prefix("/a/")], 1, collector)
        threads = [
            threading.Thread(target=lambda c=client, n=number: [c.put(f"/a/{n}", str(i)) for i in range(5)])
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for collector in seen:
            eventually(lambda collector=collector: len(collector.events) == 150)  # type: ignore[misc]
            assert collector.revisions == list(range(2, 152))
