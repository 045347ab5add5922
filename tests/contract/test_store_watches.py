"""Watches behave the same on every store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.etcd import Delete, Get, KeyRange, Put, Store, WatchFailure, WatchUpdate

from hack.support import eventually
from tests.contract.backends import Backend, Collector, by_range


def now(store: Store, prefix: str) -> int:
    return store.range(Get(KeyRange(prefix))).revision


OpenWatch = Callable[..., Collector]


@pytest.fixture
def watch(store: Store, prefix: str) -> Iterator[OpenWatch]:
    """Watches these ranges (default: the prefix), from now on unless `start` is given, until the end of the test."""
    watches = []

    def begin(*ranges: KeyRange, start: int = 0) -> Collector:
        seen = Collector()
        spans = ranges or (KeyRange.prefix(prefix),)
        watches.append(store.watch(spans, start or now(store, prefix) + 1, seen))
        return seen

    yield begin
    for item in watches:
        item.cancel()


def test_a_watch_reports_every_change_of_a_key(store: Store, prefix: str, watch: OpenWatch) -> None:
    seen = watch(KeyRange(prefix + "a"))
    created = store.put(prefix + "a", "1")
    store.put(prefix + "b", "not watched")
    store.put(prefix + "a", "")
    store.txn((), (Delete(KeyRange(prefix + "a")),))
    eventually(lambda: len(seen.events) == 3)
    assert seen.changes == [(prefix + "a", "1"), (prefix + "a", ""), (prefix + "a", None)]
    assert seen.revisions == [created, created + 2, created + 3]
    assert [event.create_revision for event in seen.events] == [created, created, 0]
    assert [update.revision for update in seen.updates][-1] == created + 3
    assert seen.failures == []
    assert seen.snapshots == []


def test_a_watch_replays_past_changes_and_continues(store: Store, prefix: str, watch: OpenWatch) -> None:
    revisions = [store.put(prefix + "a", str(i)) for i in range(5)]
    seen = watch(start=revisions[2])
    revisions.append(store.put(prefix + "b", "5"))
    eventually(lambda: len(seen.events) == 4)
    assert seen.revisions == revisions[2:]


def test_a_watch_from_a_future_revision_starts_with_a_snapshot(store: Store, prefix: str, watch: OpenWatch) -> None:
    """A client that knows such a revision saw it before the store lost its data."""
    revision = store.put(prefix + "a", "1")
    seen = watch(start=revision + 1000)
    eventually(lambda: seen.snapshots)
    news = store.put(prefix + "a", "2")
    eventually(lambda: seen.revisions == [news])
    assert [[(kv.key, kv.value) for kv in snapshot] for snapshot in seen.snapshots] == [[(prefix + "a", "1")]]


def test_a_prefix_watch_reports_only_keys_with_the_prefix(store: Store, prefix: str, watch: OpenWatch) -> None:
    seen = watch()
    for key in (prefix[:-1], prefix, prefix + "a", prefix + "\x7f", prefix[:-1] + "0", prefix + "z"):
        store.put(key, "")
    eventually(lambda: (prefix + "z", "") in seen.changes)
    assert [key for key, _ in seen.changes] == [prefix, prefix + "a", prefix + "\x7f", prefix + "z"]


def test_several_ranges_are_each_reported_in_order_and_once(store: Store, prefix: str, watch: OpenWatch) -> None:
    """Past and new changes, in three ranges."""
    rng = random.Random(1)
    keys = [prefix + name for name in ("plan", "members/a", "members/b", "stop/1", "unwatched")]
    start = now(store, prefix) + 1
    written = []

    def write(count: int) -> None:
        for _ in range(count):
            key = rng.choice(keys)
            revision = store.put(key, "")
            if key != keys[-1]:
                written.append((key, revision))

    write(100)
    ranges = [KeyRange.prefix(prefix + "members/"), KeyRange(prefix + "plan"), KeyRange.prefix(prefix + "stop/")]
    seen = watch(*ranges, start=start)
    write(300)
    eventually(lambda: len(seen.events) >= len(written))
    reported = [[(event.key, event.mod_revision) for event in events] for events in by_range(seen.events, ranges)]
    assert reported == [[(key, revision) for key, revision in written if key in span] for span in ranges]


def test_a_range_reports_all_its_keys_in_revision_order(store: Store, prefix: str, watch: OpenWatch) -> None:
    """Starts in the past, with keys created and deleted, and continues with new changes."""
    start = now(store, prefix) + 1
    revisions = []
    for i in range(60):
        revisions.append(store.put(f"{prefix}{i % 7}", ""))
        if i % 3 == 0:
            revisions.append(store.txn((), (Delete(KeyRange(f"{prefix}{i % 7}")),)).revision)
    seen = watch(KeyRange(prefix + "0", prefix + "9"), start=start)
    revisions += [store.put(f"{prefix}{i % 7}", "") for i in range(60)]
    eventually(lambda: len(seen.events) >= len(revisions))
    assert seen.revisions == revisions


def test_a_key_in_two_ranges_is_reported_once(store: Store, prefix: str, watch: OpenWatch) -> None:
    everything = KeyRange.prefix(prefix)
    seen = watch(everything, KeyRange(prefix + "a"), KeyRange(prefix + "a", prefix + "c"), everything)
    revisions = [store.put(prefix + name, "") for name in "abc"]
    eventually(lambda: len(seen.events) >= 3)
    store.put(prefix + "end", "")
    eventually(lambda: seen.changes[-1][0] == prefix + "end")
    assert seen.revisions[:-1] == revisions


def test_the_changes_of_a_transaction_share_a_revision(store: Store, prefix: str, watch: OpenWatch) -> None:
    store.put(prefix + "old", "")
    seen = watch()
    result = store.txn((), (Put(prefix + "b", "1"), Put(prefix + "a", "2"), Delete(KeyRange(prefix + "old"))))
    eventually(lambda: len(seen.events) == 3)
    assert seen.changes == [(prefix + "b", "1"), (prefix + "a", "2"), (prefix + "old", None)]
    assert set(seen.revisions) == {result.revision}


def test_the_end_of_a_lease_is_reported_as_deletions(store: Store, prefix: str, watch: OpenWatch) -> None:
    lease = store.lease(60, lambda _: None)
    store.txn((), (Put(prefix + "a", "", lease.id), Put(prefix + "b", "", lease.id)))
    seen = watch()
    lease.revoke()
    eventually(lambda: len(seen.events) == 2)
    assert seen.changes == [(prefix + "a", None), (prefix + "b", None)]


def test_a_long_history_is_delivered_completely_and_in_order(store: Store, prefix: str, watch: OpenWatch) -> None:
    """More changes than etcd sends in one batch, in two ranges, while writes continue."""
    start = now(store, prefix) + 1
    written = [store.put(f"{prefix}{'ab'[i % 3 == 0]}/{i % 7}", str(i)) for i in range(1500)]
    ranges = [KeyRange.prefix(prefix + "a/"), KeyRange.prefix(prefix + "b/")]
    seen = watch(*ranges, start=start)
    written += [store.put(f"{prefix}{'ab'[i % 2]}/x", str(i)) for i in range(200)]
    eventually(lambda: len(seen.events) >= len(written))
    assert sorted(seen.revisions) == written
    for events in by_range(seen.events, ranges):
        assert [e.mod_revision for e in events] == sorted(e.mod_revision for e in events)


def test_large_values_are_delivered_intact(store: Store, prefix: str, watch: OpenWatch) -> None:
    """30 MB at once do not fit in one message, so etcd splits them."""
    start = now(store, prefix) + 1
    values = [f"{i:02}" * 500_000 for i in range(30)]
    for i, value in enumerate(values):
        store.put(f"{prefix}{i:02}", value)
    seen = watch(start=start)
    eventually(lambda: len(seen.events) >= len(values))
    assert [value for _, value in seen.changes] == values
    store.txn((), (Delete(KeyRange.prefix(prefix)),))


def test_a_compacted_start_revision_gives_a_snapshot(backend: Backend, prefix: str, watch: OpenWatch) -> None:
    store = backend.store
    first = store.put(prefix + "gone", "1")
    store.txn((), (Delete(KeyRange(prefix + "gone")),))
    store.put(prefix + "b/1", "old")
    store.put(prefix + "b/1", "new")
    last = store.put(prefix + "a", "stays")
    backend.compact(last)
    seen = watch(KeyRange.prefix(prefix + "b/"), KeyRange(prefix + "a"), KeyRange(prefix + "gone"), start=first)
    eventually(lambda: seen.updates)
    news = store.put(prefix + "a", "news")
    eventually(lambda: seen.events)
    assert [[(kv.key, kv.value) for kv in snapshot] for snapshot in seen.snapshots] == [
        [(prefix + "a", "stays"), (prefix + "b/1", "new")]
    ]
    assert seen.updates[0].revision >= last
    assert seen.updates[0].events == ()
    assert seen.revisions == [news]
    assert seen.failures == []


def test_nothing_is_delivered_after_cancel(store: Store, prefix: str, watch: OpenWatch) -> None:
    seen, other = Collector(), watch()
    cancelled = store.watch([KeyRange.prefix(prefix)], now(store, prefix) + 1, seen)
    store.put(prefix + "a", "")
    eventually(lambda: seen.events)
    cancelled.cancel()
    cancelled.cancel()
    store.put(prefix + "b", "")
    eventually(lambda: len(other.events) == 2)
    assert [key for key, _ in seen.changes] == [prefix + "a"]


def test_a_callback_may_raise_or_cancel_its_own_watch(store: Store, prefix: str, watch: OpenWatch) -> None:
    seen = []
    done = threading.Event()

    def callback(item: WatchUpdate | WatchFailure) -> None:
        seen.append(item)
        if len(seen) == 2:
            cancelled.cancel()
            done.set()
        raise RuntimeError("the receiver has a bug")

    other = watch()
    cancelled = store.watch([KeyRange.prefix(prefix)], now(store, prefix) + 1, callback)
    for i in range(4):
        store.put(prefix + "a", str(i))
        eventually(lambda i=i: len(other.events) > i and (done.is_set() or len(seen) > i))  # type: ignore[misc]
    assert len(seen) == 2


def test_a_watch_without_a_valid_range_or_revision_is_rejected(store: Store, prefix: str) -> None:
    with pytest.raises(ValueError, match="at least one range"):
        store.watch([], 1, Collector())
    with pytest.raises(ValueError, match="key must not be empty"):
        store.watch([KeyRange("")], 1, Collector())
    with pytest.raises(ValueError, match="the first is 1"):
        store.watch([KeyRange(prefix)], 0, Collector())
