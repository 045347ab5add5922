"""Endpoints that are silent, absent, wrong or not an etcd each give one clear error in time; good endpoints work next
to bad ones."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticjob_runtime.etcd import KeyRange, NotEtcd, Unavailable
from elasticjob_runtime.etcd.config import Credentials

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.contract.backends import Collector, OpenClient
from tests.contract.etcd_servers import EtcdServer


class RawServer:
    """Accepts connections, reads once, always sends the same answer and closes. With `answer` None, it never answers or
    closes."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._answer is None:
                self._open.append(connection)
                continue
            try:
                connection.recv(65536)
                connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(1)
                connection.recv(65536)
            except OSError:
                pass
            connection.close()

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes | None], RawServer]]:
    servers: list[RawServer] = []

    def start(answer: bytes | None) -> RawServer:
        servers.append(RawServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


StartRaw = Callable[[bytes | None], RawServer]


def web_server(answers: dict[str, Any], asked: list[str] | None = None) -> http.server.ThreadingHTTPServer:
    """Answers GET and POST of the given paths with JSON, and everything else with 404. Appends the requested paths to
    `asked`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path not in answers:
                return self.send_error(404)
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        do_POST = do_GET  # noqa: N815 - named by http.server

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


HEADER = {"cluster_id": "1", "member_id": "1", "revision": "1", "raft_term": "1"}
LIKE_ETCD = {
    "/version": {"etcdserver": "3.6.0"},
    "/v3/auth/authenticate": {"header": HEADER, "token": "t"},
    "/v3/kv/range": {"header": HEADER},
    "/v3/kv/put": {"header": HEADER},
}


def test_writes_and_passwords_are_sent_only_to_a_verified_etcd(open_client: OpenClient) -> None:
    """A thousand agents that start together need no thousand version checks: the answer to the first lease shows that
    it is an etcd."""
    asked: list[str] = []
    server = web_server(LIKE_ETCD, asked)
    address = f"127.0.0.1:{server.server_port}"
    try:
        reader = open_client(address)
        reader.get("/a")
        reader.put("/a", "")
        assert asked == ["/v3/kv/range", "/v3/kv/put"]
        asked.clear()
        open_client(address).put("/a", "")
        assert asked == ["/version", "/v3/kv/put"]
        asked.clear()
        open_client(address, credentials=Credentials("user", "password")).get("/a")
        assert asked == ["/version", "/v3/auth/authenticate", "/v3/kv/range"]
    finally:
        server.shutdown()


def test_a_service_that_responds_with_other_json_is_not_taken_for_etcd(open_client: OpenClient) -> None:
    server = web_server({"/v3/kv/range": {"status": "ok"}, "/version": {"status": "ok"}})
    try:
        with pytest.raises(NotEtcd, match=r'not an etcd v3 gateway .*"status": "ok"'):
            open_client(f"127.0.0.1:{server.server_port}").get("/a")
    finally:
        server.shutdown()


def test_a_refused_connection_is_reported_with_its_address(open_client: OpenClient) -> None:
    client = open_client(f"127.0.0.1:{free_ports(1)[0]}", timeout=0.5)
    with pytest.raises(Unavailable, match=r"no etcd answered within 0\.5 s: http://127\.0\.0\.1:\d+: .*refused"):
        client.get("/a")


def test_an_unknown_host_name_is_reported(open_client: OpenClient) -> None:
    with pytest.raises(Unavailable, match=r"the name etcd\.invalid "):
        open_client("etcd.invalid", timeout=1).get("/a")


def test_one_good_endpoint_among_bad_ones_is_enough(
    etcd_server: EtcdServer, raw_server: StartRaw, open_client: OpenClient
) -> None:
    other = web_server({})
    bad = [
        f"127.0.0.1:{other.server_port}",
        f"127.0.0.1:{free_ports(1)[0]}",
        f"127.0.0.1:{raw_server(None).port}",
        "etcd.invalid",
    ]
    revision = 0
    for _ in range(3):  # the first endpoint is random
        client = open_client(",".join([*bad, f"127.0.0.1:{etcd_server.port}"]))
        seen = Collector()
        client.watch([KeyRange("/a")], revision + 1, seen)
        revision = client.put("/a", "")
        eventually(lambda seen=seen, revision=revision: revision in seen.revisions)  # type: ignore[misc]
        lease = client.lease(30, lambda _: None)
        lease.revoke()
        client.close()
    other.shutdown()


def test_an_ipv6_endpoint_is_tried_and_named_in_the_error(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    """etcd listens on 127.0.0.1 only; the test checks that ::1 is tried and named in the error."""
    with pytest.raises(Unavailable, match=rf"http://\[::1\]:{etcd_server.port}: "):
        open_client(f"[::1]:{etcd_server.port}", timeout=0.3).get("/a")
    assert open_client(f"localhost:{etcd_server.port}").get("/a") is None
