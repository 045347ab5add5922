"""Keys, ranges and transactions behave the same on every store."""

from __future__ import annotations

import threading

import pytest
from elasticjob_runtime.etcd import Compare, Delete, Get, KeyRange, LeaseLost, Put, Store, StoreError

from tests.contract.backends import present


def test_reading_an_absent_key_gives_none(store: Store, prefix: str) -> None:
    assert store.get(prefix + "a") is None
    assert store.range(Get(KeyRange.prefix(prefix))).kvs == ()


@pytest.mark.parametrize(
    "value",
    ["", "plain", "Grüße, 世界 \U0001f600", 'quotes " and \\ and \n', "x" * 1_000_000],
    ids=["empty", "ASCII", "Unicode", "to be escaped", "1 MB"],
)
def test_values_are_stored_unchanged(store: Store, prefix: str, value: str) -> None:
    store.put(prefix + "schlüssel", value)
    found = present(store, prefix + "schlüssel")
    assert (found.key, found.value) == (prefix + "schlüssel", value)


def test_a_key_has_its_create_and_mod_revision_and_its_version(store: Store, prefix: str) -> None:
    first = store.put(prefix + "a", "1")
    second = store.put(prefix + "a", "2")
    assert second == first + 1
    found = present(store, prefix + "a")
    assert (found.create_revision, found.mod_revision, found.version, found.lease) == (first, second, 2, 0)
    store.txn((), (Delete(KeyRange(prefix + "a")),))
    third = store.put(prefix + "a", "3")
    found = present(store, prefix + "a")
    assert (found.create_revision, found.mod_revision, found.version) == (third, third, 1)


def test_ranges_are_sorted_limited_and_filtered_as_requested(store: Store, prefix: str) -> None:
    created = {name: store.put(prefix + name, f"value of {name}") for name in ("c", "a", "d", "b")}
    store.put(prefix[:-1] + "0", "not in the prefix")
    store.put(prefix[:-1], "not in the prefix")
    everything = KeyRange.prefix(prefix)

    def names(get: Get) -> str:
        return "".join(kv.key[-1] for kv in store.range(get).kvs)

    assert names(Get(everything)) == "abcd"
    assert names(Get(everything, descending=True)) == "dcba"
    assert names(Get(everything, limit=2)) == "ab"
    assert names(Get(everything, by_creation=True)) == "cadb"
    assert names(Get(everything, by_creation=True, descending=True)) == "bdac"
    assert names(Get(everything, by_creation=True, limit=1)) == "c"
    assert names(Get(everything, max_create_revision=created["d"])) == "acd"
    assert names(Get(everything, by_creation=True, descending=True, limit=1, max_create_revision=created["d"])) == "d"
    assert names(Get(KeyRange(prefix + "b", prefix + "d"))) == "bc"
    assert names(Get(KeyRange(prefix + "b"))) == "b"
    assert names(Get(KeyRange(prefix + "x", prefix + "z"))) == ""
    without_values = store.range(Get(everything, keys_only=True))
    assert [kv.value for kv in without_values.kvs] == [""] * 4
    assert [kv.mod_revision for kv in without_values.kvs] == [created[name] for name in "abcd"]


def test_a_range_has_the_revision_at_which_it_was_read(store: Store, prefix: str) -> None:
    revision = store.put(prefix + "a", "1")
    assert store.range(Get(KeyRange(prefix + "nothing"))).revision == revision


def test_only_the_first_of_two_creates_succeeds(store: Store, prefix: str) -> None:
    create = ((Compare(prefix + "a", create_revision=0),), (Put(prefix + "a", "mine"),), (Get(KeyRange(prefix + "a")),))
    first = store.txn(*create)
    second = store.txn(*create)
    assert first.succeeded
    assert first.reads == ()
    assert not second.succeeded
    assert second.revision == first.revision
    assert [kv.create_revision for kv in second.reads[0]] == [first.revision]


def test_a_transaction_succeeds_only_if_all_guards_hold(store: Store, prefix: str) -> None:
    a, created = store.put(prefix + "a", ""), store.put(prefix + "b", "")
    b = store.put(prefix + "b", "")

    def holds(*guards: Compare) -> bool:
        return store.txn(guards, ()).succeeded

    at_a = Compare(prefix + "a", mod_revision=a)
    assert holds()
    assert holds(at_a, Compare(prefix + "b", create_revision=created, mod_revision=b))
    assert not holds(at_a, Compare(prefix + "b", create_revision=created, mod_revision=created))
    assert not holds(Compare(prefix + "a", mod_revision=a + 1), Compare(prefix + "b", mod_revision=b))
    assert holds(Compare(prefix + "c", mod_revision=0))
    assert not holds(Compare(prefix + "a", mod_revision=0))
    assert holds(Compare(prefix + "a", exists=True))
    assert not holds(Compare(prefix + "c", exists=True))


def test_a_transaction_is_one_revision_and_sees_its_own_writes(store: Store, prefix: str) -> None:
    before = store.put(prefix + "old", "")
    everything = Get(KeyRange.prefix(prefix))
    result = store.txn(
        (), (everything, Put(prefix + "a", "1"), Delete(KeyRange(prefix + "old")), everything, Put(prefix + "b", "2"))
    )
    assert result.revision == before + 1
    assert [[kv.key for kv in read] for read in result.reads] == [[prefix + "old"], [prefix + "a"]]
    assert {kv.mod_revision for kv in store.range(everything).kvs} == {before + 1}


def test_a_transaction_without_changes_makes_no_revision(store: Store, prefix: str) -> None:
    before = store.put(prefix + "a", "")
    assert store.txn((), (Get(KeyRange(prefix + "a")), Delete(KeyRange.prefix(prefix + "none")))).revision == before
    assert store.put(prefix + "a", "") == before + 1


def test_a_prefix_is_deleted_in_one_revision(store: Store, prefix: str) -> None:
    for name in "abc":
        store.put(prefix + name, "")
    store.put(prefix[:-1] + "0", "another prefix")
    before = store.range(Get(KeyRange(prefix))).revision
    result = store.txn((), (Delete(KeyRange.prefix(prefix)),))
    assert result.revision == before + 1
    assert store.range(Get(KeyRange.prefix(prefix))).kvs == ()
    assert store.get(prefix[:-1] + "0") is not None


def test_a_transaction_takes_100_operations_and_rejects_more(store: Store, prefix: str) -> None:
    puts = [Put(f"{prefix}{i:03}", "") for i in range(101)]
    with pytest.raises(ValueError, match="101 operations in a transaction; at most 100"):
        store.txn((), puts)
    guards = [Compare(put.key, create_revision=0) for put in puts[:100]]
    assert store.txn(guards, puts[:100]).succeeded
    assert len(store.range(Get(KeyRange.prefix(prefix))).kvs) == 100


def test_a_transaction_that_changes_a_key_twice_is_rejected(store: Store, prefix: str) -> None:
    for side in (
        (Put(prefix + "a", "1"), Put(prefix + "a", "2")),
        (Put(prefix + "a", "1"), Delete(KeyRange.prefix(prefix))),
    ):
        with pytest.raises(StoreError, match="duplicate key"):
            store.txn((), side)
    assert store.get(prefix + "a") is None


def test_an_empty_key_is_rejected(store: Store) -> None:
    with pytest.raises(ValueError, match="key must not be empty"):
        store.put("", "x")
    with pytest.raises(ValueError, match="key must not be empty"):
        store.get("")


def test_a_write_under_an_unknown_lease_changes_nothing(store: Store, prefix: str) -> None:
    with pytest.raises(LeaseLost):
        store.put(prefix + "a", "", lease=4711)
    with pytest.raises(LeaseLost):
        store.txn((), (Put(prefix + "b", ""), Put(prefix + "a", "", lease=4711)))
    assert store.range(Get(KeyRange.prefix(prefix))).kvs == ()
    assert store.txn((Compare(prefix + "x", mod_revision=1),), (Put(prefix + "a", "", lease=4711),)).succeeded is False


def test_concurrent_compare_and_swaps_lose_no_update(store: Store, prefix: str) -> None:
    """Every plan relies on this compare-and-swap: 8 threads each add 1 to a counter 25 times."""
    key = prefix + "counter"
    start = store.put(key, "0")

    def work() -> None:
        for _ in range(25):
            while True:
                now = present(store, key)
                update = (Put(key, str(int(now.value) + 1)),)
                if store.txn((Compare(key, mod_revision=now.mod_revision),), update).succeeded:
                    break

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = present(store, key)
    assert (final.value, final.mod_revision) == ("200", start + 200)
