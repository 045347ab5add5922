"""The store of a job with a single member behaves to it as etcd does."""

from __future__ import annotations

import random

import pytest
from elasticjob_runtime.etcd import (
    Compare,
    Delete,
    Event,
    Get,
    KeyRange,
    LeaseLost,
    Operation,
    Put,
    SoloStore,
    WatchFailure,
    WatchUpdate,
)

from hack.embedded_etcd.memory import MemoryStore

NAMES = ("a", "a/1", "a/2", "b", "b/1", "ä")
RANGES = [KeyRange("a"), KeyRange.prefix("a/"), KeyRange("a", "c"), KeyRange("a", "\U0001f600")]


def operation(draw: random.Random) -> Operation:
    kind = draw.randrange(4)
    if kind == 0:
        return Delete(draw.choice(RANGES))
    if kind == 1:
        return Get(
            draw.choice(RANGES), limit=draw.randrange(3), by_creation=draw.random() < 0.5,
            descending=draw.random() < 0.5, max_create_revision=draw.randrange(12), keys_only=draw.random() < 0.5,
        )  # fmt: skip
    return Put(draw.choice(NAMES), str(draw.random()))


def guard(draw: random.Random) -> Compare:
    revision = draw.choice([None, 0, *range(2, 12)])
    if draw.random() < 0.5:
        return Compare(draw.choice(NAMES), create_revision=revision, exists=draw.random() < 0.3)
    return Compare(draw.choice(NAMES), mod_revision=revision)


class Seen:
    """A watch callback that keeps what it is given."""

    def __init__(self) -> None:
        self.updates: list[WatchUpdate] = []

    def __call__(self, item: WatchUpdate | WatchFailure) -> None:
        assert isinstance(item, WatchUpdate)
        self.updates.append(item)

    @property
    def changes(self) -> list[tuple[str, str | None]]:
        return [(event.key, event.value) for update in self.updates for event in update.events]


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_transactions_has_the_results_that_etcd_gives(seed: int) -> None:
    draw = random.Random(seed)
    solo, other = SoloStore(), MemoryStore()
    for _ in range(60):
        compare = [guard(draw) for _ in range(draw.randrange(3))]
        one, two = operation(draw), operation(draw)
        failure = [operation(draw)]
        both = [one] if {type(one), type(two)} & {Delete} or isinstance(one, Put) else [one, two]
        assert solo.txn(compare, both, failure) == other.txn(compare, both, failure)
    other.close()


def test_a_watch_delivers_each_change_of_its_ranges_in_order() -> None:
    store, seen = SoloStore(), Seen()
    watch = store.watch([KeyRange("a"), KeyRange.prefix("b/")], 2, seen)
    store.put("a", "1")
    store.put("c", "not watched")
    store.txn([], [Put("b/1", "2"), Put("a", "3")])
    store.txn([], [Delete(KeyRange("a", "z"))])
    assert seen.changes == [("a", "1"), ("b/1", "2"), ("a", "3"), ("a", None), ("b/1", None)]
    assert [update.revision for update in seen.updates] == [2, 4, 5]
    watch.cancel()
    watch.cancel()
    store.put("a", "after the end")
    assert len(seen.updates) == 3


def test_a_watch_that_begins_late_begins_with_all_keys() -> None:
    store, seen = SoloStore(), Seen()
    store.put("a", "1")
    store.put("b", "2")
    store.watch([KeyRange("b")], 2, seen)
    (update,) = seen.updates
    assert update.snapshot is not None
    assert ([kv.value for kv in update.snapshot], update.revision) == (["2"], 3)
    store.put("b", "3")
    assert seen.updates[-1].events == (Event("b", "3", 4, 3),)


def test_a_lease_lasts_until_it_is_revoked_and_takes_its_keys_along() -> None:
    store, seen = SoloStore(), Seen()
    lease = store.lease(1e-9, lambda _reason: pytest.fail("it does not expire"))
    store.put("a", "1", lease=lease.id)
    store.put("b", "1")
    store.watch([KeyRange("a", "z")], 4, seen)
    lease.stop()
    assert store.get("a") is not None
    lease.revoke()
    lease.revoke()
    assert seen.changes == [("a", None)]
    with pytest.raises(LeaseLost):
        store.put("a", "1", lease=lease.id)
    store.close()
    store.put("b", "2")
    assert seen.changes == [("a", None)]
