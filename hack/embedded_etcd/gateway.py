"""The server side of etcd's JSON gateway, as far as our client uses it: converts requests to operations and results to
answers. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.interface import (
    Compare,
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    LeaseLost,
    Operation,
    Put,
    StoreError,
)
from elasticjob_runtime.etcd.responses import Exists

from hack.embedded_etcd.memory import MemoryStore
from hack.embedded_etcd.memory_state import Compact, Compacted, Grant, KeepAlive, Revoke, Txn

Json = dict[str, Any]

VERSION = {"etcdserver": "3.6.0", "etcdcluster": "3.6.0", "elasticjob": "embedded"}
"""Answer to GET /version: the etcd version whose behaviour this copies."""


class BadRequest(StoreError):
    """The embedded etcd does not serve this request."""


class Gateway:
    """Answers the calls in `_routes` from a store. Thread-safe."""

    def __init__(self, store: MemoryStore, store_id: str) -> None:
        """`store_id`: a decimal number, different for every new store, so that watches notice a new store."""
        self._store = store
        self._id = store_id
        self._routes: dict[str, Callable[[Json], Json]] = {
            "/v3/kv/range": self._range,
            "/v3/kv/put": self._put,
            "/v3/kv/txn": self._txn,
            "/v3/kv/compaction": self._compact,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
            "/v3/maintenance/status": lambda _: {"header": self.header(), "version": VERSION["etcdserver"]},
            "/v3/auth/authenticate": self._authenticate,
        }

    def answer(self, path: str, request: Json) -> Json:
        """Answers one call. Raises StoreError (see `error`), or KeyError, ValueError or TypeError if the request is
        malformed."""
        if path not in self._routes:
            raise BadRequest(f"{path} is not served by the embedded store")
        return self._routes[path](request)

    def header(self, revision: int | None = None) -> Json:
        number = self._store.revision if revision is None else revision
        return {"cluster_id": self._id, "member_id": "1", "revision": str(number), "raft_term": "1"}

    def _range(self, request: Json) -> Json:
        result = self._store.apply(Txn(success=(_get(request),)))
        return {"header": self.header(result.revision), **self._range_answer(request, result.reads[0])}

    def _put(self, request: Json) -> Json:
        return {"header": self.header(self._store.apply(Txn(success=(_put(request),))).revision)}

    def _txn(self, request: Json) -> Json:
        success, failure = request.get("success", ()), request.get("failure", ())
        operations = Txn(
            [_compare(c) for c in request.get("compare", ())],
            [_operation(o) for o in success],
            [_operation(o) for o in failure],
        )
        result = self._store.apply(operations)
        reads = iter(result.reads)
        responses = []
        for item in success if result.succeeded else failure:
            if "request_range" in item:
                responses.append({"response_range": self._range_answer(item["request_range"], next(reads))})
            else:
                responses.append({"response_put" if "request_put" in item else "response_delete_range": {}})
        return {"header": self.header(result.revision), "succeeded": result.succeeded, "responses": responses}

    def _range_answer(self, request: Json, kvs: Sequence[KeyValue]) -> Json:
        """Applies min_mod_revision, which the client's watches use and `interface.Get` does not have."""
        since, limit = int(request.get("min_mod_revision", 0)), int(request.get("limit", 0))
        newer = [_key_value(kv) for kv in kvs if kv.mod_revision >= since]
        return {"kvs": newer[:limit] if limit else newer, "count": str(len(kvs))}

    def _compact(self, request: Json) -> Json:
        return {"header": self.header(self._store.apply(Compact(int(request["revision"]))).revision)}

    def _grant(self, request: Json) -> Json:
        lease, ttl = int(request["ID"]), int(request["TTL"])
        self._store.apply(Grant(lease, ttl))
        return {"header": self.header(), "ID": str(lease), "TTL": str(ttl)}

    def _keep_alive(self, request: Json) -> Json:
        answer = {"header": self.header(), "ID": request["ID"]}
        try:
            self._store.apply(KeepAlive(int(request["ID"])))
        except LeaseLost:
            return {"result": answer}
        return {"result": {**answer, "TTL": str(self._store.ttl(int(request["ID"])))}}

    def _revoke(self, request: Json) -> Json:
        return {"header": self.header(self._store.apply(Revoke(int(request["ID"]))).revision)}

    def _authenticate(self, _: Json) -> Json:
        raise NoUsers("etcdserver: authentication is not enabled")


class NoUsers(StoreError):
    """The embedded store has no authentication."""


def error(problem: StoreError) -> tuple[int, Json]:
    """The HTTP status and body that etcd returns for an error."""
    match problem:
        case LeaseLost():
            status, code = 404, 5
        case Exists() | NoUsers():
            status, code = 400, 9
        case Compacted():
            status, code = 400, 11
        case BadRequest():
            status, code = 404, 12
        case _:
            status, code = 400, 3
    return status, {"code": code, "message": f"etcdserver: {problem}".replace("etcdserver: etcdserver:", "etcdserver:")}


def watch_requests(body: bytes) -> dict[int, tuple[KeyRange, int]]:
    """The watchers that a body creates: number to range and start revision. Raises ValueError or KeyError."""
    watchers = {}
    for line in body.splitlines():
        request = protocol.load(line)["create_request"]
        watchers[int(request["watch_id"])] = (_span(request), int(request["start_revision"]))
    return watchers


def watch_events(
    watchers: dict[int, tuple[KeyRange, int]], events: Sequence[Event]
) -> list[tuple[int, int, list[Json]]]:
    """The revision, watcher and events of each message to send, in revision order; each message holds one revision."""
    messages: list[tuple[int, int, list[Json]]] = []
    revisions = dict.fromkeys(event.mod_revision for event in events)
    by_revision: dict[int, list[Event]] = {revision: [] for revision in revisions}
    for event in events:
        by_revision[event.mod_revision].append(event)
    for revision, group in by_revision.items():
        for number, (span, start) in watchers.items():
            mine = [_event(event) for event in group if event.key in span and revision >= start]
            if mine:
                messages.append((revision, number, mine))
    return messages


def _span(request: Json) -> KeyRange:
    span = KeyRange(protocol.decode(request["key"]), protocol.decode(request.get("range_end", "")))
    protocol.check_key(span.key)
    return span


def _get(request: Json) -> Get:
    limit = 0 if request.get("min_mod_revision") else int(request.get("limit", 0))
    return Get(
        _span(request),
        limit=limit,
        by_creation=request.get("sort_target") == "CREATE",
        descending=request.get("sort_order") == "DESCEND",
        max_create_revision=int(request.get("max_create_revision", 0)),
        keys_only=bool(request.get("keys_only")),
    )


def _put(request: Json) -> Put:
    return Put(_span(request).key, protocol.decode(request.get("value", "")), int(request.get("lease", 0)))


def _operation(item: Json) -> Operation:
    if "request_put" in item:
        return _put(item["request_put"])
    if "request_delete_range" in item:
        return Delete(_span(item["request_delete_range"]))
    return _get(item["request_range"])


def _compare(item: Json) -> Compare:
    key = protocol.decode(item["key"])
    if (item.get("result"), item.get("target")) == ("GREATER", "CREATE") and int(item.get("create_revision", 0)) == 0:
        return Compare(key, exists=True)
    if item.get("result") != "EQUAL" or item.get("target") not in {"CREATE", "MOD"}:
        raise BadRequest("only comparisons for equality of create and mod revisions are served")
    if item["target"] == "CREATE":
        return Compare(key, create_revision=int(item.get("create_revision", 0)))
    return Compare(key, mod_revision=int(item.get("mod_revision", 0)))


def _key_value(kv: KeyValue) -> Json:
    numbers = {
        "create_revision": str(kv.create_revision),
        "mod_revision": str(kv.mod_revision),
        "version": str(kv.version),
    }
    return {"key": protocol.encode(kv.key), "value": protocol.encode(kv.value), "lease": str(kv.lease), **numbers}


def _event(event: Event) -> Json:
    kv = {
        "key": protocol.encode(event.key),
        "create_revision": str(event.create_revision),
        "mod_revision": str(event.mod_revision),
    }
    return (
        {"type": "DELETE", "kv": kv} if event.value is None else {"kv": {**kv, "value": protocol.encode(event.value)}}
    )
