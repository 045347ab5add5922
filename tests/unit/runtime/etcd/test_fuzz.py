"""Whatever an endpoint responds, the result is a value or a StoreError, and in time.

The examples are inputs that once caused a traceback or an endless loop.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from elasticjob_runtime.etcd import Endpoint, Event, KeyRange, StoreError, protocol
from elasticjob_runtime.etcd.cursor import WatchCursor
from elasticjob_runtime.etcd.endpoints import parse_endpoints
from elasticjob_runtime.etcd.responses import check_header, check_version, http_error, parse_answer
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.runtime.etcd.byte_connection import read_response, read_stream

PIECES = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 ",
    b"HTTP/1.1 999 \r\n", b"HTTP/1.1 204\r\n", b"Content-Length: 13\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: \xb2\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"d\r\n", b"-5\r\n", b"+d\r\n", b"1_0\r\n", b"ffffffffffffffffffff\r\n",
    b" d \r\n", b"d;x=y\r\n", b'{"answer":42}', b'{"header":{}}', b"\n", b"\0", b"\xff",
]  # fmt: skip
answers_on_the_wire = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=12)), max_size=14).map(b"".join)
cuts = st.integers(1, 30)


@given(answers_on_the_wire, cuts)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", 30)
@example(b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n", 30)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcdefgh", 30)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\nabcdefgh", 30)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 9000, 30)
def test_any_response_is_read_or_a_transport_error(data: bytes, size: int) -> None:
    read_response(data, size)


@given(answers_on_the_wire, cuts)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 20_000, 4096)
def test_any_stream_is_read_or_a_transport_error(data: bytes, size: int) -> None:
    read_stream(data, size)


NAMES = [
    "error", "code", "grpc_code", "message", "result", "header", "revision", "raft_term", "cluster_id", "kvs", "key",
    "value", "count", "mod_revision", "create_revision", "responses", "response_range", "succeeded", "watch_id",
    "created", "canceled", "cancel_reason", "compact_revision", "events", "kv", "type", "fragment", "etcdserver",
    "version", "lease", "TTL", "token",
]  # fmt: skip
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["5", "-1", "YQ==", "a", "DELETE", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=6)


@given(
    st.sampled_from([200, 400, 401, 404, 429, 500, 503]),
    objects.map(lambda data: json.dumps(data).encode()) | st.binary(max_size=80),
)
@example(500, b'{"error": {"code": 1, "message": null}}')
@example(200, b"[" * 100_000)
@example(200, b'{"a": ' + b"9" * 5000 + b"}")
@example(200, b'\xff\xfe{"a"')
def test_any_body_is_a_response_or_a_store_error(status: int, body: bytes) -> None:
    for check in (parse_answer, check_version):
        with contextlib.suppress(StoreError):
            check(status, {}, body)
    assert isinstance(http_error(status, {}, body), StoreError)


@given(objects)
@example({"header": None})
@example({"header": {"revision": "x"}})
@example({"kvs": [None], "header": {}})
@example({"responses": {"a": 1}, "header": {"revision": "1"}})
def test_any_response_is_parsed_or_a_store_error(answer: dict[str, Any]) -> None:
    for read in (protocol.revision_of, protocol.key_values, protocol.txn_result, protocol.news, check_header):
        with contextlib.suppress(StoreError):
            read(answer)


@given(st.lists(objects, max_size=6))
@example([{"watch_id": "1", "created": True, "header": None}])
@example([{"watch_id": [], "events": []}])
@example([{"watch_id": "1", "events": [{"kv": None}]}])
@example([{"watch_id": "1", "events": [{"kv": {"key": "é", "mod_revision": "1"}}]}])
@example([{"canceled": True, "cancel_reason": 7}])
def test_a_watch_message_is_processed_or_a_store_error(messages: list[dict[str, Any]]) -> None:
    cursor = WatchCursor([KeyRange("a"), KeyRange("b")], 5)
    cursor.begin()
    try:
        for message in messages:
            update = cursor.feed(message)
            assert update is None or all(isinstance(event, Event) for event in update.events)
    except StoreError:
        pass


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["http://", "[", "]", "::1", ":", "2379", "a", ",", "/", "@", "٣"]), max_size=8).map(
        "".join
    )
)
@example("a:²")
@example("[::1]:٣")
def test_an_endpoint_is_parsed_or_rejected_with_a_reason(text: str) -> None:
    rejection, found = "", tuple[Endpoint, ...]()
    try:
        found = parse_endpoints(text)
    except ValueError as error:
        rejection = str(error)
    assert bool(found) != ("etcd endpoint" in rejection)
    assert all(0 < endpoint.port < 65536 for endpoint in found)
