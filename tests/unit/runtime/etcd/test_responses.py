"""Which error each response of etcd 3.4, 3.6 or a proxy in front of them is. Bodies are recorded from real servers."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from elasticjob_runtime.etcd import Denied, Full, LeaseLost, NotEtcd, StoreError, Unavailable
from elasticjob_runtime.etcd.responses import (
    AuthDisabled,
    Exists,
    TokenRefused,
    cancel_error,
    check_version,
    http_error,
    parse_answer,
)


def old(code: int, message: str) -> bytes:
    """etcd 3.4."""
    return json.dumps({"error": message, "message": message, "code": code}).encode()


def new(code: int, message: str) -> bytes:
    """etcd 3.6."""
    return f'{{"code":{code}, "message":"{message}"}}'.encode()


@pytest.mark.parametrize("style", [old, new])
@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (404, 5, "etcdserver: requested lease not found", LeaseLost),
        (403, 7, "etcdserver: permission denied", Denied),
        (400, 3, "etcdserver: authentication failed, invalid user ID or password", Denied),
        (401, 16, "etcdserver: invalid auth token", TokenRefused),
        (400, 3, "etcdserver: user name is empty", TokenRefused),
        (400, 3, "etcdserver: revision of auth store is old", TokenRefused),
        (412, 9, "etcdserver: lease already exists", Exists),
        (400, 9, "etcdserver: authentication is not enabled", AuthDisabled),
        (400, 11, "etcdserver: mvcc: required revision has been compacted", StoreError),
        (503, 14, "etcdserver: request timed out", Unavailable),
        (503, 14, "etcdserver: no leader", Unavailable),
        (500, 2, "etcdserver: leader changed", Unavailable),
        (429, 8, "etcdserver: too many requests", Unavailable),
        (429, 8, "etcdserver: mvcc: database space exceeded", Full),
        (400, 3, "etcdserver: duplicate key given in txn request", StoreError),
    ],
)
def test_each_etcd_error_has_its_type(
    style: Callable[[int, str], bytes], status: int, code: int, message: str, kind: type[StoreError]
) -> None:
    error = http_error(status, {}, style(code, message))
    assert type(error) is kind
    assert str(error).startswith(message.removeprefix("etcdserver: ")), "etcd's message, and sometimes what to do"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (404, {"server": "nginx"}, b"<html>no such page</html>", NotEtcd, "HTTP 404 from nginx"),
        (200, {}, b"hello", NotEtcd, "'hello'"),
        (502, {}, b"bad gateway", Unavailable, "HTTP 502 bad gateway"),
        (504, {}, b"", Unavailable, "HTTP 504"),
        (400, {}, b"CommonName of client sending a request against gateway will be ignored", Denied, "without"),
        (418, {}, b"[]", NotEtcd, "418"),
        (404, {}, b'{"code": "x"}', NotEtcd, "404"),
    ],
)
def test_responses_of_other_services_are_recognized(
    status: int, headers: dict[str, str], body: bytes, kind: type[StoreError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        parse_answer(status, headers, body)


def test_a_streamed_response_is_its_last_message() -> None:
    assert parse_answer(200, {}, b'{"result":{"ID":"1","TTL":"5"}}\n') == {"ID": "1", "TTL": "5"}
    assert parse_answer(200, {}, b'{"header":{"revision":"2"}}') == {"header": {"revision": "2"}}


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service '
        b'Unavailable"}}',
        b'{"error":{"code":14,"message":"etcdserver: no leader"}}',
    ],
    ids=["3.4", "3.6"],
)
def test_an_error_in_a_stream_is_raised(body: bytes) -> None:
    with pytest.raises(Unavailable, match="no leader"):
        parse_answer(200, {}, body)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", Denied),
        ("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", TokenRefused),
        ("rpc error: code = InvalidArgument desc = etcdserver: user name is empty", TokenRefused),
        ("etcdserver: no leader", Unavailable),
        ("", Unavailable),
    ],
)
def test_each_cancel_reason_of_a_watch_has_its_error(reason: str, kind: type[StoreError]) -> None:
    assert type(cancel_error(reason)) is kind


@pytest.mark.parametrize("version", ["3.4.0", "3.4.23", "3.6.8", "3.7.0-alpha.1", "4.0.0", "10.0"])
def test_etcd_3_4_and_newer_is_accepted(version: str) -> None:
    check_version(200, {}, json.dumps({"etcdserver": version, "etcdcluster": "not_decided"}).encode())


@pytest.mark.parametrize("version", ["3.3.27", "3.0.17", "2.3.8", "0.4.9"])
def test_an_etcd_before_3_4_is_rejected(version: str) -> None:
    with pytest.raises(NotEtcd, match=f"an etcd {version}, which is too old: 3.4 or newer is needed"):
        check_version(200, {}, json.dumps({"etcdserver": version}).encode())
