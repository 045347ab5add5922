"""The cursor against a simulated etcd that sends what the real one may send: late backlogs, batches, fragments and
duplicates."""

from __future__ import annotations

import random
from typing import Any

import pytest
from elasticjob_runtime.etcd import Denied, Event, KeyRange, KeyValue, Unavailable, WatchUpdate
from elasticjob_runtime.etcd.cursor import BehindError, HistoryGone, WatchCursor, merge
from elasticjob_runtime.etcd.protocol import encode

BATCH_REVISIONS = 3
"""The real one sends a thousand at a time."""
A, B = KeyRange("a"), KeyRange("b")
Json = dict[str, Any]


def header(revision: int, term: int = 2, cluster: str = "1") -> Json:
    return {"cluster_id": cluster, "revision": str(revision), "raft_term": str(term)}


def created(number: int, revision: int, **more: Any) -> Json:
    return {"header": header(revision, **more), "watch_id": str(number), "created": True}


def put(key: str, revision: int) -> Json:
    value = encode(str(revision))
    return {"kv": {"key": encode(key), "value": value, "create_revision": "1", "mod_revision": str(revision)}}


def message(number: int, *revisions: int, key: str = "", **more: Any) -> Json:
    events = [put(key or "?ab"[number], revision) for revision in revisions]
    return {"header": header(max(revisions)), "watch_id": str(number), "events": events, **more}


def revisions(update: WatchUpdate | None) -> list[int]:
    return [event.mod_revision for event in update.events] if update else []


def connected(*spans: KeyRange, start: int = 10, at: int = 20) -> WatchCursor:
    cursor = WatchCursor(spans, start)
    cursor.begin()
    for number in range(1, len(spans) + 1):
        assert not cursor.ready, "not before all watchers are created"
        assert cursor.feed(created(number, at)) is None
    assert cursor.ready
    return cursor


def test_changes_are_delivered_as_they_arrive() -> None:
    cursor = connected(A)
    update = cursor.feed(message(1, 12, 15))
    assert update is not None
    assert (update.revision, revisions(update)) == (15, [12, 15])
    assert revisions(cursor.feed(message(1, 21))) == [21]
    assert cursor.next == [22]


def test_no_change_is_delivered_twice() -> None:
    cursor = connected(A)
    cursor.feed(message(1, 12, 15))
    cursor.begin()
    cursor.feed(created(1, 20))
    assert revisions(cursor.feed(message(1, 12, 15, 16))) == [16]
    assert cursor.feed(message(1, 16)) is None


def test_fragments_are_delivered_as_one_message() -> None:
    cursor = connected(A)
    assert cursor.feed(message(1, 12, 13, fragment=True)) is None
    assert cursor.feed(message(1, 13, fragment=True)) is None
    assert revisions(cursor.feed(message(1, 14))) == [12, 13, 13, 14]


def test_an_unfinished_fragmented_message_is_delivered_again() -> None:
    cursor = connected(A)
    cursor.feed(message(1, 12, fragment=True))
    cursor.begin()
    assert cursor.next == [10]
    cursor.feed(created(1, 20))
    assert revisions(cursor.feed(message(1, 12, 13))) == [12, 13]


def test_a_range_does_not_wait_for_another() -> None:
    """The server does not announce that a range has no changes, so waiting for it could take forever."""
    cursor = connected(A, B)
    assert revisions(cursor.feed(message(1, 21))) == [21]
    assert cursor.next == [22, 10]
    assert revisions(cursor.feed(message(2, 11, 19))) == [11, 19]
    assert cursor.next == [22, 20], "each range continues from its own position"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"watch_id": "1", "canceled": True, "compact_revision": "15"}, HistoryGone),
        ({"watch_id": "-1", "created": True, "canceled": True, "cancel_reason": "permission denied"}, Denied),
        ({"watch_id": "1", "canceled": True, "cancel_reason": "etcdserver: no leader"}, Unavailable),
        (created(1, 8), BehindError),
    ],
)
def test_a_cancelled_stream_gives_the_right_error(answer: Json, kind: type[Exception]) -> None:
    cursor = WatchCursor([A], 10)
    cursor.begin()
    with pytest.raises(kind):
        cursor.feed(answer)


def test_a_lower_revision_or_another_cluster_is_a_rewound_store() -> None:
    cursor = WatchCursor([A], 10)
    cursor.begin()
    cursor.feed(created(1, 9, term=3))
    assert not cursor.is_rewound(header(9, term=3))
    assert cursor.is_rewound(header(8, term=3))
    assert cursor.is_rewound(header(100, term=2))
    assert cursor.is_rewound(header(100, term=4, cluster="2"))
    update = cursor.restart(5, [KeyValue("b", "", 1, 2, 1), KeyValue("a", "", 1, 2, 1)])
    assert update.revision == 5
    assert [kv.key for kv in update.snapshot or ()] == ["a", "b"]
    assert cursor.next == [6]
    assert not cursor.is_rewound(header(5, term=1, cluster="2"))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([B, A], [A, B]),
        ([A, A], [A]),
        ([KeyRange("a", "c"), B], [KeyRange("a", "c")]),
        ([KeyRange("b", "d"), KeyRange("a", "c")], [KeyRange("a", "d")]),
        ([KeyRange("a", "b"), KeyRange("b", "c")], [KeyRange("a", "b"), KeyRange("b", "c")]),
        ([A, KeyRange("a", "b")], [KeyRange("a", "b")]),
        ([KeyRange.prefix("m/"), KeyRange("m")], [KeyRange("m"), KeyRange.prefix("m/")]),
    ],
)
def test_ranges_are_merged_where_they_overlap(spans: list[KeyRange], expected: list[KeyRange]) -> None:
    assert merge(spans) == expected


class SimulatedEtcd:
    """Keeps a history of puts and sends it over one connection as etcd does: each watcher first catches up in batches,
    some time after it was created, and is in sync from then on."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.history: list[tuple[int, int]] = []  # revision, watcher
        self.count = count
        self.position: list[int] = []
        self.in_sync: list[bool] = []

    @property
    def revision(self) -> int:
        return self.history[-1][0] if self.history else 1

    def write(self) -> list[Json]:
        number = self.rng.randrange(self.count)
        self.history.append((self.revision + 1, number))
        if not self.in_sync or not self.in_sync[number]:
            return []
        return [message(number + 1, self.revision, key="abc"[number])]

    def connect(self, start: list[int]) -> list[Json]:
        """Writes may happen while watchers are created, even after the reported revision was read."""
        self.position, self.in_sync = list(start), [False] * self.count
        sent = []
        for number in range(self.count):
            response = created(number + 1, self.revision)
            if self.rng.random() < 0.2:
                sent += self.write()
            self.in_sync[number] = start[number] > self.revision
            sent.append(response)
            if self.rng.random() < 0.2:
                sent += self.write()
        return sent

    def catch_up(self) -> list[Json]:
        number = self.rng.randrange(self.count)
        if self.in_sync[number]:
            return []
        mine = [r for r, n in self.history if n == number and r >= self.position[number]]
        batch = mine[:BATCH_REVISIONS]
        self.in_sync[number] = len(batch) == len(mine)
        if not batch:
            return []
        self.position[number] = batch[-1] + 1
        cut = self.rng.randrange(len(batch)) if len(batch) > 1 else 0
        parts = [message(number + 1, *batch[:cut], key="abc"[number], fragment=True)] if cut else []
        return [*parts, message(number + 1, *batch[cut:], key="abc"[number])]


class Walk:
    """A watch that reads from a simulated etcd, a bit at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.etcd = SimulatedEtcd(self.rng, count=self.rng.randint(1, 3))
        self.cursor = WatchCursor([KeyRange(key) for key in "abc"[: self.etcd.count]], 2)
        self.seen: list[Event] = []
        self.wire: list[Json] = []
        self.connect()

    def connect(self) -> None:
        """Anything still on the wire is lost."""
        self.wire = self.etcd.connect(self.cursor.next)
        self.cursor.begin()

    def step(self, burst: int) -> None:
        for _ in range(self.rng.choice((0, 1, 3, burst))):
            self.wire += self.etcd.write()
        if self.rng.random() < 0.3:
            self.wire += self.etcd.catch_up()
        self.read(self.rng.choice((0, 1, 5)))
        if self.rng.random() < 0.03:
            self.connect()

    def finish(self) -> None:
        while not all(self.etcd.in_sync):
            self.wire += self.etcd.catch_up()
        while self.wire:
            self.read(100)

    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            update = self.cursor.feed(self.wire.pop(0))
            if update is not None:
                assert update.revision == update.events[-1].mod_revision
                self.seen.extend(update.events)


@pytest.mark.parametrize("seed", range(60))
def test_each_change_is_delivered_once_and_in_order_within_its_range(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(400):
        walk.step(burst=20 if seed % 10 == 0 else 5)
    walk.finish()
    for number, key in enumerate("abc"):
        assert [e.mod_revision for e in walk.seen if e.key == key] == [r for r, n in walk.etcd.history if n == number]


def test_a_range_with_fewer_keys_than_delivered_has_missed_a_deletion() -> None:
    cursor = connected(A)
    assert not cursor.misses(0, 3), "the first count is the reference"
    assert not cursor.misses(0, 3)
    assert cursor.misses(0, 2)
    cursor.recount()
    assert not cursor.misses(0, 2)
    new = {"kv": {"key": encode("a"), "value": "", "create_revision": "21", "mod_revision": "21"}}
    gone = {"type": "DELETE", "kv": {"key": encode("a"), "mod_revision": "22"}}
    for event, count in ((put("a", 20), 2), (new, 3), (gone, 2)):
        cursor.feed({"header": header(30), "watch_id": "1", "events": [event]})
        assert not cursor.misses(0, count)


def test_a_snapshot_sets_the_number_of_keys() -> None:
    cursor = connected(A, B)
    cursor.restart(30, [KeyValue("a", "", 1, 1, 1)])
    assert not cursor.misses(0, 1)
    assert not cursor.misses(1, 0)
    assert cursor.misses(1, 1)
