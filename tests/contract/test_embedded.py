"""The embedded etcd as a server: a restart, invalid requests. (For its store's semantics, see
test_store_*.py.)"""

from __future__ import annotations

import http.client

import pytest
from elasticjob_runtime.etcd import KeyRange, Unavailable

from hack.embedded_etcd.server import EmbeddedServer
from hack.support import eventually
from tests.contract.backends import OpenClient, watched


def test_leases_and_watches_notice_a_restart_as_an_empty_store(open_client: OpenClient) -> None:
    first = EmbeddedServer().start()
    client = open_client(first.endpoint)
    lost: list[str] = []
    seen = watched(client, KeyRange.prefix("/job/"), KeyRange("/plan"))
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


COMPARISON = b'{"compare":[{"key":"YQ==","target":"VALUE","result":"EQUAL"}]}'
INVALID = {
    "cut JSON": ("/v3/kv/range", b"{", 400, "malformed"),
    "not an object": ("/v3/kv/range", b"[]", 400, "malformed"),
    "no key": ("/v3/kv/range", b"{}", 400, "malformed"),
    "bad base64": ("/v3/kv/range", b'{"key":"%%%"}', 400, "malformed"),
    "number as key": ("/v3/kv/txn", b'{"success":[{"request_put":{"key":1}}]}', 400, "malformed"),
    "unsupported comparison": ("/v3/kv/txn", COMPARISON, 404, "only comparisons for equality"),
    "unsupported watch request": ("/v3/watch", b'{"cancel_request":{}}', 400, "malformed"),
    "unsupported path": ("/v3/cluster/member/list", b"{}", 404, "not served by the embedded store"),
    "unknown lease": ("/v3/lease/revoke", b'{"ID":"7"}', 404, "requested lease not found"),
    "login without users": ("/v3/auth/authenticate", b"{}", 400, "authentication is not enabled"),
}


@pytest.mark.parametrize(("path", "body", "status", "words"), INVALID.values(), ids=INVALID)
def test_invalid_requests_get_an_error_and_do_no_harm(path: str, body: bytes, status: int, words: str) -> None:
    with EmbeddedServer() as server:
        connection = http.client.HTTPConnection(server.endpoint, timeout=10)
        connection.request("POST", path, body)
        answer = connection.getresponse()
        assert (answer.status, words in answer.read().decode()) == (status, True)
        connection.request("GET", "/version")
        assert b"etcdserver" in connection.getresponse().read()
        connection.close()
