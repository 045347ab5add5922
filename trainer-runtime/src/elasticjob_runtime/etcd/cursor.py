"""The position of a watch: turns the messages of successive streams into updates that deliver each change once. Pure.

Changes of one range (one watcher) come in order, as etcd sends them. Changes of different ranges of a stream do not:
etcd starts watchers from the past one by one, up to 0.1 s apart, and does not say when it has started them. To order
their changes, the client would have to hold them back for that long, or to query etcd with every change. To get the
changes of two keys in order, watch both in one range.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.interface import Event, KeyRange, KeyValue, StoreError, WatchUpdate
from elasticjob_runtime.etcd.responses import cancel_error


class HistoryGone(StoreError):
    """The changes from this position on are no longer available: read everything again."""


class BehindError(StoreError):
    """The member does not know a revision that this watch has seen. Either it lags behind or the store has lost its
    data; a linearizable read distinguishes the two."""


class WatchCursor:
    """Call `begin` for each connection, then `feed` with its messages."""

    def __init__(self, ranges: Sequence[KeyRange], start_revision: int) -> None:
        protocol.check_revision(start_revision)
        self.ranges = merge(ranges)
        self.next = [start_revision] * len(self.ranges)
        """For each range, the first revision not yet delivered."""
        self._counts: list[int | None] = [None] * len(self.ranges)
        """For each range, the number of keys according to the changes delivered; None: not known."""
        self._asked_for = self._known
        self._created = 0
        self._fragments: dict[int, list[Event]] = {}
        self._store = ""
        self._term = 0

    def begin(self) -> None:
        """Starts a new connection."""
        self._asked_for = self._known
        self._created = 0
        self._fragments = {}

    @property
    def _known(self) -> int:
        """The highest revision that this watch knows."""
        return max(self.next) - 1

    @property
    def ready(self) -> bool:
        """Whether all watchers have been created."""
        return self._created == len(self.ranges)

    @protocol.understood
    def feed(self, message: protocol.Json) -> WatchUpdate | None:
        """Returns the new changes in a message. Raises HistoryGone, BehindError, TokenRefused, Denied, NotEtcd or
        Unavailable when the connection must be given up."""
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
        # Changes of one range may arrive before another range's watcher is created. The revision in its header is
        # compared with the highest one known when the connection began, because it may have been read before those
        # changes.
        if self._is_before(header, self._asked_for):
            raise BehindError("the member does not know what this watch has seen")
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
        """Whether the range `index`, which now has `count` keys, differs from what this watch has delivered. Detects
        lost deletions, which leave no newer key.

        The first count is taken as correct.
        """
        if self._counts[index] is None:
            self._counts[index] = count
        return self._counts[index] != count

    def recount(self) -> None:
        """Takes the next count of each range as correct."""
        self._counts = [None] * len(self.ranges)

    @protocol.understood
    def is_rewound(self, header: protocol.Json) -> bool:
        """Whether a member with this header is at an earlier point than the watch, or in another cluster.

        A member may only lag behind. But if the header comes from a linearizable read, the store has lost its data. (A
        new store that has already passed the old one's revision and raft term looks the same as the old one.)
        """
        return self._is_before(header, self._known)

    def _is_before(self, header: protocol.Json, revision: int) -> bool:
        return (
            int(header.get("revision", 0)) < revision
            or int(header.get("raft_term", 0)) < self._term
            or bool(self._store and header.get("cluster_id", "") != self._store)
        )

    def restart(self, revision: int, kvs: Sequence[KeyValue]) -> WatchUpdate:
        """Continues from a complete read at `revision`; returns it as a snapshot."""
        self.next = [revision + 1] * len(self.ranges)
        self._counts = [sum(kv.key in span for kv in kvs) for span in self.ranges]
        self._store, self._term = "", 0
        self.begin()
        return WatchUpdate(revision, snapshot=tuple(sorted(kvs, key=lambda kv: kv.key)))


def _growth(event: Event) -> int:
    """By how many keys an event changes the size of its range: 1, 0 or -1."""
    if event.value is None:
        return -1
    return int(event.create_revision == event.mod_revision)


def merge(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Merges overlapping ranges, so that no key is reported twice; returns them sorted."""
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
