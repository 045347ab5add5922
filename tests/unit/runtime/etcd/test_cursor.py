"""The cursor against a paper etcd that sends what the real one may send: backlogs late, in batches, in fragments, twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from elasticjob_runtime.etcd import Denied, Event, KeyRange, KeyValue, Unavailable, WatchUpdate
from elasticjob_runtime.etcd.answers import TokenRefused
from elasticjob_runtime.etcd.cursor import BATCH_REVISIONS, IN_STEP, TAKE_UP, Behind, Cursor, HistoryGone, merge
from elasticjob_runtime.etcd.wire import encode

A, B = KeyRange("a"), KeyRange("b")
Json = dict[str, Any]
LATER = TAKE_UP + 0.01
"""Every watcher stood at 0."""


def header(revision: int, term: int = 2, cluster: str = "1") -> Json:
    return {"cluster_id": cluster, "revision": str(revision), "raft_term": str(term)}


def created(number: int, revision: int, **more: Any) -> Json:
    return {"header": header(revision, **more), "watch_id": str(number), "created": True}


def put(key: str, revision: int) -> Json:
    return {"kv": {"key": encode(key), "value": encode(str(revision)), "create_revision": "1", "mod_revision": str(revision)}}


def message(number: int, *revisions: int, key: str = "", **more: Any) -> Json:
    name = key or "?ab"[number]
    return {"header": header(max(revisions)), "watch_id": str(number), "events": [put(name, r) for r in revisions], **more}


def revisions(updates: list[WatchUpdate]) -> list[int]:
    return [event.mod_revision for update in updates for event in update.events]


def connected(*spans: KeyRange, start: int = 10, at: int = 20) -> Cursor:
    cursor = Cursor(spans, start)
    cursor.begin()
    for number in range(1, len(spans) + 1):
        assert cursor.feed(created(number, at), now=0.0) == []
    return cursor


def test_one_range_is_handed_out_as_it_comes() -> None:
    cursor = connected(A)
    assert cursor.unsettled(LATER) == {}
    assert cursor.feed(message(1, 12, 15), 0.0)[0].revision == 15
    assert revisions(cursor.feed(message(1, 21), 0.0)) == [21]
    assert cursor.next == [22]


def test_what_was_handed_out_is_not_handed_out_again() -> None:
    cursor = connected(A)
    cursor.feed(message(1, 12, 15), 0.0)
    cursor.begin()
    cursor.feed(created(1, 20), 0.0)
    assert revisions(cursor.feed(message(1, 12, 15, 16), 0.0)) == [16]
    assert cursor.feed(message(1, 16), 0.0) == []


def test_fragments_are_one_message() -> None:
    cursor = connected(A)
    assert cursor.feed(message(1, 12, 13, fragment=True), 0.0) == []
    assert cursor.feed(message(1, 13, fragment=True), 0.0) == []
    assert revisions(cursor.feed(message(1, 14), 0.0)) == [12, 13, 13, 14]


def test_a_fragment_without_its_end_comes_again() -> None:
    cursor = connected(A)
    cursor.feed(message(1, 12, fragment=True), 0.0)
    cursor.begin()
    assert cursor.next == [10]
    cursor.feed(created(1, 20), 0.0)
    assert revisions(cursor.feed(message(1, 12, 13), 0.0)) == [12, 13]


def test_news_wait_for_the_older_changes_of_another_range() -> None:
    cursor = connected(A, B)
    assert cursor.unsettled(LATER) == {}, "nothing came, so nothing is asked"
    assert cursor.feed(message(1, 21), 0.0) == []
    assert cursor.unsettled(LATER) == {1: 10}
    assert cursor.settle({1: True}) == []
    assert cursor.unsettled(LATER) == {}
    assert cursor.pass_time(IN_STEP + 1) == [], "changes that are known to be on their way are waited for"
    assert revisions(cursor.feed(message(2, 11, 19), 0.0)) == [11, 19, 21]
    assert cursor.next == [22, 20]
    assert revisions(cursor.feed(message(1, 30), 0.0)) == [30]


def test_news_are_handed_out_when_no_range_owes_anything() -> None:
    cursor = connected(A, B)
    cursor.feed(message(1, 21), 0.0)
    assert revisions(cursor.settle({1: False})) == [21]
    assert cursor.feed(message(1, 22), 0.0) == [], "the other range may not be in step yet: ask again"
    assert cursor.unsettled(LATER) == {1: 10}
    assert revisions(cursor.settle({1: False})) == [22]
    assert cursor.pass_time(IN_STEP - 0.1) == []
    assert cursor.feed(message(1, 23), IN_STEP - 0.1) == []
    assert revisions(cursor.pass_time(IN_STEP)) == [23]
    assert revisions(cursor.feed(message(1, 24), IN_STEP)) == [24], "and now it is in step"


def test_both_have_sent_something_so_both_are_in_step() -> None:
    cursor = connected(A, B)
    cursor.feed(message(1, 21), 0.0)
    assert revisions(cursor.feed(message(2, 20, 22), 0.0)) == [20, 21, 22]
    assert cursor.unsettled(LATER) == {}
    assert revisions(cursor.feed(message(2, 23), 0.0)) == [23]


def test_a_full_batch_is_not_the_end_of_a_backlog() -> None:
    cursor = connected(A, B, start=1, at=5000)
    cursor.feed(message(2, 4000), 0.0)
    full = list(range(1, BATCH_REVISIONS + 1))
    assert cursor.feed(message(1, *full), 0.0) == []
    assert cursor.unsettled(LATER) == {0: BATCH_REVISIONS + 1}
    assert cursor.settle({0: True}) == []
    assert revisions(cursor.feed(message(1, 3000), 0.0)) == [*full, 3000, 4000]


def test_a_backlog_that_just_fills_its_batch_is_not_waited_on_for_ever() -> None:
    cursor = connected(A, B, start=1, at=5000)
    cursor.feed(message(2, 4000), 0.0)
    assert cursor.settle({0: True}) == []
    full = list(range(1, BATCH_REVISIONS + 1))
    cursor.feed(message(1, *full), 0.0)
    assert cursor.unsettled(LATER) == {0: BATCH_REVISIONS + 1}
    assert revisions(cursor.settle({0: False})) == [*full, 4000]


def test_where_the_past_cannot_be_asked_for_it_goes_on() -> None:
    cursor = connected(A, B)
    cursor.feed(message(1, 21), 0.0)
    assert revisions(cursor.cannot_ask()) == [21]
    assert cursor.unsettled(LATER) == {}


def test_the_server_is_given_a_moment_before_its_answer_counts() -> None:
    cursor = connected(A, B)
    assert cursor.wake_at == TAKE_UP
    cursor.feed(message(1, 21), 0.0)
    assert cursor.unsettled(TAKE_UP / 2) == {}
    assert cursor.pass_time(TAKE_UP) == []
    assert cursor.wake_at == IN_STEP
    assert cursor.unsettled(TAKE_UP) == {1: 10}
    assert revisions(cursor.pass_time(IN_STEP)) == [21]
    assert cursor.wake_at == float("inf")


def test_nothing_is_handed_out_before_all_watchers_stand() -> None:
    cursor = Cursor([A, B], 10)
    cursor.begin()
    cursor.feed(created(1, 20), 0.0)
    assert cursor.feed(message(1, 21), 0.0) == []
    assert not cursor.ready
    assert cursor.unsettled(LATER) == {}
    cursor.feed(created(2, 21), 0.0)
    assert cursor.unsettled(LATER) == {1: 10}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"watch_id": "1", "canceled": True, "compact_revision": "15"}, HistoryGone),
        ({"watch_id": "-1", "created": True, "canceled": True, "cancel_reason": "... desc = etcdserver: permission denied"}, Denied),
        ({"watch_id": "-1", "created": True, "canceled": True, "cancel_reason": "... desc = etcdserver: invalid auth token"}, TokenRefused),
        ({"watch_id": "1", "canceled": True, "cancel_reason": "etcdserver: no leader"}, Unavailable),
        (created(1, 8), Behind),
    ],
)
def test_why_a_stream_is_over(answer: Json, kind: type[Exception]) -> None:
    cursor = Cursor([A], 10)
    cursor.begin()
    with pytest.raises(kind):
        cursor.feed(answer, 0.0)


def test_a_store_that_knows_less_is_another_store() -> None:
    cursor = Cursor([A], 10)
    cursor.begin()
    cursor.feed(created(1, 9, term=3), 0.0)
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


class PaperEtcd:
    """Keeps a history of puts and sends it over one connection as etcd does: each watcher is taken up some time after it was created,
    in batches, and goes in step from then on."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.history: list[tuple[int, int]] = []  # revision, watcher
        self.count = count
        self.position: list[int] = []
        self.in_step: list[bool] = []

    @property
    def revision(self) -> int:
        return self.history[-1][0] if self.history else 1

    def write(self) -> list[Json]:
        number = self.rng.randrange(self.count)
        self.history.append((self.revision + 1, number))
        if not self.in_step or not self.in_step[number]:
            return []
        return [message(number + 1, self.revision, key="abc"[number])]

    def connect(self, start: list[int]) -> list[Json]:
        self.position, self.in_step = list(start), [False] * self.count
        return [created(number, self.revision) for number in range(1, self.count + 1)]

    def take_up(self) -> list[Json]:
        number = self.rng.randrange(self.count)
        if self.in_step[number]:
            return []
        mine = [r for r, n in self.history if n == number and r >= self.position[number]]
        batch = mine[:BATCH_REVISIONS]
        self.in_step[number] = len(batch) == len(mine)
        if not batch:
            return []
        self.position[number] = batch[-1] + 1
        cut = self.rng.randrange(len(batch)) if len(batch) > 1 else 0
        parts = [message(number + 1, *batch[:cut], key="abc"[number], fragment=True)] if cut else []
        return [*parts, message(number + 1, *batch[cut:], key="abc"[number])]

    def owes(self, since: dict[int, int]) -> dict[int, bool]:
        return {number: any(n == number and r >= revision for r, n in self.history) for number, revision in since.items()}


class Walk:
    """A watch that reads from a paper etcd, a bit at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.etcd = PaperEtcd(self.rng, count=self.rng.randint(1, 3))
        self.cursor = Cursor([KeyRange(key) for key in "abc"[: self.etcd.count]], 2)
        self.seen: list[Event] = []
        self.wire: list[Json] = []
        self.connect()

    def connect(self) -> None:
        """What was on the wire is lost."""
        self.wire = self.etcd.connect(self.cursor.next)
        self.cursor.begin()

    def step(self, burst: int) -> None:
        for _ in range(self.rng.choice((0, 1, 3, burst))):
            self.wire += self.etcd.write()
        if self.rng.random() < 0.3:
            self.wire += self.etcd.take_up()
        self.read(self.rng.choice((0, 1, 5)))
        if self.rng.random() < 0.03:
            self.connect()

    def finish(self) -> None:
        while not all(self.etcd.in_step):
            self.wire += self.etcd.take_up()
        while self.wire:
            self.read(100)
        self.ask()

    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self.take(self.cursor.feed(self.wire.pop(0), 0.0))
        if self.rng.random() < 0.9:
            self.ask()

    def ask(self) -> None:
        if unsettled := self.cursor.unsettled(LATER):
            self.take(self.cursor.settle(self.etcd.owes(unsettled)))

    def take(self, updates: list[WatchUpdate]) -> None:
        for update in updates:
            assert update.revision == update.events[-1].mod_revision
            self.seen.extend(update.events)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_change_comes_once_and_in_order(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(400):
        walk.step(burst=400 if seed % 10 == 0 else 5)
    walk.finish()
    assert [(e.mod_revision, e.key) for e in walk.seen] == [(r, "abc"[n]) for r, n in walk.etcd.history]
