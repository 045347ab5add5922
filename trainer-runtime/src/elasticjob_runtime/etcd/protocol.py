"""The gateway's JSON: converts requests and answers to and from interface.py's types. Pure (errors: responses.py).

Keys, values and names are base64; 64-bit numbers are strings, and are omitted when 0 (proto3's JSON).
"""

from __future__ import annotations

import binascii
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from elasticjob_runtime.etcd.interface import (
    Compare,
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    NotEtcd,
    Operation,
    Put,
    TxnResult,
)

MAX_OPERATIONS = 100
"""In a transaction. etcd allows 128, of operations and of comparisons."""
MAX_COMPARISONS = 128
Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


def encode(text: str) -> str:
    return binascii.b2a_base64(text.encode("utf-8", "surrogateescape"), newline=False).decode("ascii")


def decode(text: str) -> str:
    """Bytes that are not UTF-8 become surrogates: they are in other users' keys, and must not stop a watch."""
    return binascii.a2b_base64(text).decode("utf-8", "surrogateescape")


_to_json = json.JSONEncoder(
    separators=(",", ":"), check_circular=False
).encode  # json.dumps creates one for each message


def dump(data: Json) -> bytes:
    return _to_json(data).encode("ascii")


def load(data: bytes) -> Json:
    """Raises ValueError if `data` is not a JSON object."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


# Requests


def range_request(get: Get) -> Json:
    request = _span(get.range)
    if get.limit:
        request["limit"] = str(get.limit)
    if get.by_creation:
        request["sort_target"] = "CREATE"
    if get.by_creation or get.descending:
        request["sort_order"] = "DESCEND" if get.descending else "ASCEND"
    if get.max_create_revision:
        request["max_create_revision"] = str(get.max_create_revision)
    if get.keys_only:
        request["keys_only"] = True
    return request


def put_request(put: Put) -> Json:
    request: Json = {"key": encode(put.key), "value": encode(put.value)}
    if put.lease:
        request["lease"] = str(put.lease)
    return request


def txn_request(compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> Json:
    return {
        "compare": [guard for item in compare for guard in _guards(item)],
        "success": [_operation(op) for op in success],
        "failure": [_operation(op) for op in failure],
    }


def watch_request(ranges: Sequence[KeyRange], start_revisions: Sequence[int]) -> bytes:
    """A body that creates one watcher per range, numbered from 1: the gateway reads JSON objects until the body
    ends."""
    requests = [
        {**_span(span), "start_revision": str(start), "watch_id": str(number), "fragment": True}
        for number, (span, start) in enumerate(zip(ranges, start_revisions, strict=True), 1)
    ]
    return b"\n".join(dump({"create_request": request}) for request in requests) + b"\n"


def news_request(ranges: Sequence[KeyRange], since: Sequence[int]) -> Json:
    """Reads at most one key per range that was written at or after the revision in `since`. The answer also contains
    the number of all keys in each range."""
    return {
        "success": [
            {"request_range": {**_span(span), "min_mod_revision": str(revision), "limit": "1", "keys_only": True}}
            for span, revision in zip(ranges, since, strict=True)
        ]
    }


def _span(span: KeyRange) -> Json:
    request: Json = {"key": encode(span.key)}
    if span.end:
        request["range_end"] = encode(span.end)
    return request


def _operation(op: Operation) -> Json:
    if isinstance(op, Put):
        return {"request_put": put_request(op)}
    if isinstance(op, Delete):
        return {"request_delete_range": _span(op.range)}
    return {"request_range": range_request(op)}


def _guards(compare: Compare) -> list[Json]:
    guards = []
    for target, field, revision in (
        ("CREATE", "create_revision", compare.create_revision),
        ("MOD", "mod_revision", compare.mod_revision),
    ):
        if revision is not None:
            guards.append({"key": encode(compare.key), "target": target, "result": "EQUAL", field: str(revision)})
    if compare.exists:
        guards.append({"key": encode(compare.key), "target": "CREATE", "result": "GREATER", "create_revision": "0"})
    return guards


# Answers


def understood(read: Callable[P, T]) -> Callable[P, T]:
    """Raises NotEtcd for an answer that etcd never sends: a field is missing, has another type, or is not a number."""

    @functools.wraps(read)
    def checked(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return read(*arguments, **options)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise NotEtcd(f"the answer is not of an etcd v3 gateway: {type(error).__name__}: {error}") from error

    return checked


@understood
def header_of(answer: Json) -> Json:
    header: Json = answer["header"]
    if not isinstance(header, dict):
        raise TypeError(f"header is {header!r}"[:80])
    return header


@understood
def ttl_of(answer: Json) -> float:
    """Seconds; 0: the lease is gone."""
    return float(int(answer.get("TTL", 0)))


@understood
def token_of(answer: Json) -> str:
    token = str(answer["token"])
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token is no header's value")
    return token


@understood
def revision_of(answer: Json) -> int:
    return int(header_of(answer).get("revision", 0))


@understood
def key_values(answer: Json) -> tuple[KeyValue, ...]:
    return tuple(_key_value(kv) for kv in answer.get("kvs", ()))


@understood
def txn_result(answer: Json) -> TxnResult:
    reads = [key_values(item["response_range"]) for item in answer.get("responses", ()) if "response_range" in item]
    return TxnResult(bool(answer.get("succeeded")), revision_of(answer), tuple(reads))


@understood
def news(answer: Json) -> list[tuple[bool, int]]:
    """Reads the answer to `news_request`: for each range, whether a key was written, and the number of keys."""
    ranges = [item["response_range"] for item in answer.get("responses", ())]
    return [(bool(found.get("kvs")), int(found.get("count", 0))) for found in ranges]


def _key_value(kv: Json) -> KeyValue:
    return KeyValue(
        decode(kv["key"]),
        decode(kv.get("value", "")),
        int(kv.get("create_revision", 0)),
        int(kv.get("mod_revision", 0)),
        int(kv.get("version", 0)),
        int(kv.get("lease", 0)),
    )


def event(data: Json) -> Event:
    kv = data["kv"]
    deleted = data.get("type") == "DELETE"
    value = None if deleted else decode(kv.get("value", ""))
    return Event(decode(kv["key"]), value, int(kv["mod_revision"]), int(kv.get("create_revision", 0)))


# Checks before anything is sent, with the same messages for every store


def check_key(key: str) -> None:
    if not key:
        raise ValueError("a key must not be empty")


def check_txn(*sides: Sequence[Operation], guards: Sequence[Compare] = ()) -> None:
    if len(guards) > MAX_COMPARISONS:
        raise ValueError(f"{len(guards)} comparisons in a transaction; at most {MAX_COMPARISONS}")
    for side in sides:
        if len(side) > MAX_OPERATIONS:
            raise ValueError(f"{len(side)} operations in a transaction; at most {MAX_OPERATIONS}")
        for op in side:
            check_key(key_of(op))


def check_revision(start_revision: int) -> None:
    if start_revision < 1:
        raise ValueError(f"a watch from revision {start_revision}; the first is 1")


def key_of(op: Operation) -> str:
    """The key of an operation, or the first key of its range."""
    return op.key if isinstance(op, Put) else op.range.key
