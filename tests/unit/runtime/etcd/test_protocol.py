"""Requests and responses: the embedded server reads what the client writes, and vice versa."""

from __future__ import annotations

import pytest
from elasticjob_runtime.etcd import Compare, Delete, Get, KeyRange, KeyValue, Operation, Put, protocol

from hack.embedded_etcd.gateway import Gateway, watch_requests
from hack.embedded_etcd.memory import MemoryStore


@pytest.mark.parametrize("text", ["", "plain", "/a/b", "Grüße \U0001f600", "\x00\x7f", "not UTF-8: \udcff"])
def test_text_survives_a_round_trip(text: str) -> None:
    assert protocol.decode(protocol.encode(text)) == text


def test_a_transaction_has_etcds_documented_format() -> None:
    request = protocol.txn_request(
        [Compare("k", create_revision=0, mod_revision=5)],
        [
            Put("k", "v", lease=7),
            Get(KeyRange("k", "l"), limit=1, by_creation=True, max_create_revision=9, keys_only=True),
        ],
        [Delete(KeyRange("k")), Get(KeyRange("k"), descending=True)],
    )
    key = {"key": "aw=="}
    assert request == {
        "compare": [
            {**key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
            {**key, "target": "MOD", "result": "EQUAL", "mod_revision": "5"},
        ],
        "success": [
            {"request_put": {**key, "value": "dg==", "lease": "7"}},
            {
                "request_range": {
                    **key,
                    "range_end": "bA==",
                    "limit": "1",
                    "sort_target": "CREATE",
                    "sort_order": "ASCEND",
                    "max_create_revision": "9",
                    "keys_only": True,
                }
            },
        ],
        "failure": [{"request_delete_range": key}, {"request_range": {**key, "sort_order": "DESCEND"}}],
    }


def test_fields_missing_from_a_response_are_zero() -> None:
    """proto3's JSON: recorded from etcd 3.6, a key with an empty value and no lease."""
    answer = {
        "header": {"revision": "5"},
        "kvs": [{"key": "L2EveA==", "create_revision": "5", "mod_revision": "5", "version": "1"}],
    }
    assert protocol.key_values(answer) == (KeyValue("/a/x", "", 5, 5, 1, 0),)
    assert protocol.key_values({"header": {}}) == ()
    assert protocol.revision_of({"header": {}}) == 0


def test_a_watch_request_creates_a_watcher_for_each_range() -> None:
    body = protocol.watch_request([KeyRange("a"), KeyRange.prefix("b/")], [3, 4])
    assert watch_requests(body) == {1: (KeyRange("a"), 3), 2: (KeyRange("b/", "b0"), 4)}


OPERATIONS: list[list[Operation]] = [
    [Put("a", "1"), Put("b", "Grüße"), Get(KeyRange("a", "c"))],
    [Delete(KeyRange("a")), Get(KeyRange("a", "c"), descending=True, limit=1)],
    [Get(KeyRange("a", "z"), by_creation=True, keys_only=True, max_create_revision=2)],
]


@pytest.mark.parametrize("operations", OPERATIONS)
def test_the_embedded_server_understands_the_clients_requests(operations: list[Operation]) -> None:
    direct, served = MemoryStore(), MemoryStore()
    gateway = Gateway(served, "1")
    for store_put in (Put("a", "0"), Put("c", "x")):
        direct.txn((), [store_put])
        gateway.answer("/v3/kv/txn", protocol.txn_request((), [store_put], ()))
    guards = [Compare("a", mod_revision=2), Compare("new", create_revision=0)]
    for compare in (guards, [Compare("a", mod_revision=9)]):
        answer = gateway.answer("/v3/kv/txn", protocol.txn_request(compare, operations, operations[-1:]))
        assert protocol.txn_result(answer) == direct.txn(compare, operations, operations[-1:])


def test_the_embedded_server_answers_whether_a_range_has_changed() -> None:
    store = MemoryStore()
    gateway = Gateway(store, "1")
    store.put("a", "1")  # 2
    store.put("b", "1")  # 3

    def news(since: int, *spans: KeyRange) -> list[bool]:
        answer = gateway.answer("/v3/kv/txn", protocol.news_request(spans, [since] * len(spans)))
        return [bool(kvs) for kvs in protocol.txn_result(answer).reads]

    assert news(3, KeyRange("a"), KeyRange("b"), KeyRange("a", "c")) == [False, True, True]
    assert news(4, KeyRange("a", "c")) == [False]


def test_an_invalid_transaction_is_rejected_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="at most 100"):
        protocol.check_txn([], [Put("k", "")] * 101)
    with pytest.raises(ValueError, match="at most 128"):
        protocol.check_txn([], guards=[Compare("k", mod_revision=1)] * 129)
    with pytest.raises(ValueError, match="must not be empty"):
        protocol.check_txn([Delete(KeyRange(""))])
