"""Endpoints that are silent, absent, wrong or not an etcd each give one clear error in time; good endpoints work next
to bad ones."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.etcd import KeyRange, NotEtcd, Unavailable
from elasticjob_runtime.etcd.config import EtcdCredentials

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.contract.backends import OpenClient, watched
from tests.contract.etcd_servers import EtcdServer


@contextlib.contextmanager
def web_server(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Answers GET and POST of the given paths with JSON, and everything else with 404. Gives its address, and the
    requested paths."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
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
    yield f"127.0.0.1:{server.server_port}", asked
    server.shutdown()


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
    with web_server(LIKE_ETCD) as (address, asked):
        reader = open_client(address)
        reader.get("/a")
        reader.put("/a", "")
        assert asked == ["/v3/kv/range", "/v3/kv/put"]
        asked.clear()
        open_client(address).put("/a", "")
        assert asked == ["/version", "/v3/kv/put"]
        asked.clear()
        open_client(address, credentials=EtcdCredentials("user", "password")).get("/a")
        assert asked == ["/version", "/v3/auth/authenticate", "/v3/kv/range"]


def test_a_service_that_responds_with_other_json_is_not_taken_for_etcd(open_client: OpenClient) -> None:
    with (
        web_server({"/v3/kv/range": {"status": "ok"}, "/version": {"status": "ok"}}) as (address, _),
        pytest.raises(NotEtcd, match=r'not an etcd v3 gateway .*"status": "ok"'),
    ):
        open_client(address).get("/a")


def test_a_refused_connection_is_reported_with_its_address(open_client: OpenClient) -> None:
    client = open_client(f"127.0.0.1:{free_ports(1)[0]}", timeout=0.5)
    with pytest.raises(Unavailable, match=r"no etcd answered within 0\.5 s: http://127\.0\.0\.1:\d+: .*refused"):
        client.get("/a")


def test_an_unknown_host_name_is_reported(open_client: OpenClient) -> None:
    with pytest.raises(Unavailable, match=r"the name etcd\.invalid "):
        open_client("etcd.invalid", timeout=1).get("/a")


def test_one_good_endpoint_among_bad_ones_is_enough(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    revision = 0
    with web_server({}) as (other, _), socket.create_server(("127.0.0.1", 0)) as silent:
        ports = (free_ports(1)[0], silent.getsockname()[1])
        bad = [other, *(f"127.0.0.1:{port}" for port in ports), "etcd.invalid"]
        for _ in range(3):  # the first endpoint is random
            client = open_client(",".join([*bad, f"127.0.0.1:{etcd_server.port}"]))
            seen = watched(client, KeyRange("/a"), start=revision + 1)
            revision = client.put("/a", "")
            eventually(lambda seen=seen, revision=revision: revision in seen.revisions)  # type: ignore[misc]
            client.lease(30, lambda _: None).revoke()
            client.close()


def test_an_ipv6_endpoint_is_tried_and_named_in_the_error(etcd_server: EtcdServer, open_client: OpenClient) -> None:
    """etcd listens on 127.0.0.1 only; the test checks that ::1 is tried and named in the error."""
    with pytest.raises(Unavailable, match=rf"http://\[::1\]:{etcd_server.port}: "):
        open_client(f"[::1]:{etcd_server.port}", timeout=0.3).get("/a")
    assert open_client(f"localhost:{etcd_server.port}").get("/a") is None
