"""Where a watch stands: turns the messages of one stream after another into updates, each change once. Pure.

etcd orders the changes of one watcher (one range), and so does this. Between the ranges of a stream it does not: etcd
takes up watchers that start in the past one by one, up to 0.1 s apart, and does not say when it has. To put their
changes in order means to hold them back for that long, or to ask with every change. Who needs an order of two keys
watches them in one range.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.interface import Event, KeyRange, KeyValue, StoreError, WatchUpdate
from elasticjob_runtime.etcd.responses import cancel_error


class HistoryGone(StoreError):
    """The changes from here on cannot be had any more: read everything again."""


class Behind(StoreError):
    """The member does not know what this watch has seen. It is late, or the store has lost its data: ask it."""


class Cursor:
    """`begin` at every connection, then `feed` its messages."""

    def __init__(self, ranges: Sequence[KeyRange], start_revision: int) -> None:
        protocol.check_revision(start_revision)
        self.ranges = merge(ranges)
        self.next = [start_revision] * len(self.ranges)
        """For each range, the first revision not yet handed out."""
        self._counts: list[int | None] = [None] * len(self.ranges)
        """For each range, the keys that there are by what was handed out; None: not known."""
        self._asked_for = self._known
        self._created = 0
        self._fragments: dict[int, list[Event]] = {}
        self._store = ""
        self._term = 0

    def begin(self) -> None:
        """A new connection."""
        self._asked_for = self._known
        self._created = 0
        self._fragments = {}

    @property
    def _known(self) -> int:
        """The last revision that this watch knows of."""
        return max(self.next) - 1

    @property
    def ready(self) -> bool:
        """All watchers stand."""
        return self._created == len(self.ranges)

    @protocol.understood
    def feed(self, message: protocol.Json) -> WatchUpdate | None:
        """What is new in it. Raises HistoryGone, Behind, TokenRefused, Denied, NotEtcd or Unavailable: this connection
        is over."""
        if message.get("canceled"):
            if message.get("compact_revision"):
                raise HistoryGone(f"compacted up to revision {message['compact_revision']}")
            raise cancel_error(message.get("cancel_reason", ""))
        index = int(message.get("watch_id", 0)) - 1
        if not 0 <= index < len(self.ranges):
            return None
        if message.get("created"):
            self._on_created(message.get("header", {}))
            return None
        events = self._fragments.pop(index, []) + [protocol.event(item) for item in message.get("events", ())]
        if message.get("fragment"):
            self._fragments[index] = events
            return None
        return self._on_events(index, tuple(e for e in events if e.mod_revision >= self.next[index]))

    def _on_created(self, header: protocol.Json) -> None:
        # Changes of one range may come before another's watcher is told to stand: it knew of no more than was known
        # then.
        if self._is_before(header, self._asked_for):
            raise Behind("the member does not know what this watch has seen")
        self._store = header.get("cluster_id", "")
        self._term = int(header.get("raft_term", 0))
        self._created += 1

    def _on_events(self, index: int, events: tuple[Event, ...]) -> WatchUpdate | None:
        if not events:
            return None
        self.next[index] = events[-1].mod_revision + 1
        known = self._counts[index]
        if known is not None:
            self._counts[index] = known + sum(map(_growth, events))
        return WatchUpdate(events[-1].mod_revision, events)

    def misses(self, index: int, count: int) -> bool:
        """Whether the range `index`, which has `count` keys now, is not what this watch has brought: a deletion leaves
        no newer key.

        The first count is believed.
        """
        if self._counts[index] is None:
            self._counts[index] = count
        return self._counts[index] != count

    def recount(self) -> None:
        """Believes the next counts."""
        self._counts = [None] * len(self.ranges)

    @protocol.understood
    def is_rewound(self, header: protocol.Json) -> bool:
        """Whether a member with this header is at an earlier point than the watch, or in another cluster.

        A member may just be late; but if it says so in answer to a linearizable read, the store has lost its data. (A
        new store that has overtaken the old one's revision and raft term cannot be told from it.)
        """
        return self._is_before(header, self._known)

    def _is_before(self, header: protocol.Json, revision: int) -> bool:
        return (
            int(header.get("revision", 0)) < revision
            or int(header.get("raft_term", 0)) < self._term
            or bool(self._store and header.get("cluster_id", "") != self._store)
        )

    def restart(self, revision: int, kvs: Sequence[KeyValue]) -> WatchUpdate:
        """Everything was read again at `revision`."""
        self.next = [revision + 1] * len(self.ranges)
        self._counts = [sum(kv.key in span for kv in kvs) for span in self.ranges]
        self._store, self._term = "", 0
        self.begin()
        return WatchUpdate(revision, snapshot=tuple(sorted(kvs, key=lambda kv: kv.key)))


def _growth(event: Event) -> int:
    """By how many keys its range grew."""
    if event.value is None:
        return -1
    return int(event.create_revision == event.mod_revision)


def merge(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Ranges that do not overlap, sorted: a key in two of them would be reported twice."""
    if not ranges:
        raise ValueError("a watch needs at least one range")
    merged: list[KeyRange] = []
    for span in sorted(ranges, key=lambda r: (r.key, r.end)):
        protocol.check_key(span.key)
        if not merged or _end(merged[-1]) <= span.key:
            merged.append(span)
        elif _end(merged[-1]) < _end(span):
            merged[-1] = KeyRange(merged[-1].key, _end(span))
    return merged


def _end(span: KeyRange) -> str:
    return span.end or span.key + "\0"
