"""Where a watch stands: turns the messages of one stream after another into updates, each change once and in revision order. Pure.

etcd orders the changes of one watcher (one range). Watchers on a stream are in step as well, except while they catch up after a connection:
then one may deliver its backlog, and news, before another delivers its own. So with several ranges nothing is handed out until every one
that has a backlog has delivered it, or SETTLE seconds have passed (most have nothing to deliver, and etcd does not say so; it looks every
0.1 s). A range that is later still is delivered all the same, in its own order.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_runtime.etcd import wire
from elasticjob_runtime.etcd.answers import cancel_error
from elasticjob_runtime.etcd.port import Event, KeyRange, KeyValue, StoreError, WatchUpdate

SETTLE = 0.15
"""Seconds that news may wait for older news of another range, after a connection."""
BATCH_REVISIONS = 1000
"""etcd sends a backlog in batches of as many revisions; a smaller one is the last."""


class HistoryGone(StoreError):
    """The changes from here on cannot be had any more: read everything again."""


class Behind(StoreError):
    """The member has not yet seen what this watch has. It is late, or the store has lost its data: ask it."""


class Cursor:
    """`begin` at every connection, then `feed` its messages and `flush` when `hold_until` has passed."""

    def __init__(self, ranges: Sequence[KeyRange], start_revision: int) -> None:
        self.ranges = merge(ranges)
        self.next = [start_revision] * len(self.ranges)
        """For each range, the first revision not yet handed out."""
        self.hold_until: float | None = None
        self._late: set[int] = set()
        self._created = 0
        self._held: list[Event] = []
        self._fragments: dict[int, list[Event]] = {}
        self._store = ""
        self._term = 0

    def begin(self) -> None:
        """A new connection. What the last one held back comes again."""
        self.hold_until = None
        self._late = set(range(len(self.ranges))) if len(self.ranges) > 1 else set()
        self._created = 0
        self._held = []
        self._fragments = {}

    @property
    def ready(self) -> bool:
        """All watchers stand."""
        return self._created == len(self.ranges)

    def feed(self, message: wire.Json, now: float) -> list[WatchUpdate]:
        """Raises HistoryGone, Behind, TokenRefused, Denied or Unavailable: this connection is over."""
        header = message.get("header", {})
        if message.get("canceled"):
            if message.get("compact_revision"):
                raise HistoryGone(f"compacted up to revision {message['compact_revision']}")
            raise cancel_error(message.get("cancel_reason", ""))
        index = int(message.get("watch_id", 0)) - 1
        if not 0 <= index < len(self.ranges):
            return []
        if message.get("created"):
            return self._on_created(index, header, now)
        events = self._fragments.pop(index, []) + [wire.event(item) for item in message.get("events", ())]
        if message.get("fragment"):
            self._fragments[index] = events
            return []
        return self._on_events(index, [e for e in events if e.mod_revision >= self.next[index]], now)

    def _on_created(self, index: int, header: wire.Json, now: float) -> list[WatchUpdate]:
        if self.is_rewound(header):
            raise Behind("the member does not know what this watch has seen")
        revision = int(header.get("revision", 0))
        self._store = header.get("cluster_id", "")
        self._term = int(header.get("raft_term", 0))
        self._created += 1
        if revision < self.next[index]:
            self._late.discard(index)  # no backlog
        if self.ready and self._late:
            self.hold_until = now + SETTLE
        return [] if self._late else self.flush()

    def is_rewound(self, header: wire.Json) -> bool:
        """Whether a member with this header is at an earlier point than the watch, or in another cluster.

        A member may just be late; but if it says so in answer to a linearizable read, the store has lost its data. (A new store that has
        overtaken the old one's revision and raft term cannot be told from it.)
        """
        return (
            int(header.get("revision", 0)) < max(self.next) - 1
            or int(header.get("raft_term", 0)) < self._term
            or bool(self._store and header.get("cluster_id", "") != self._store)
        )

    def _on_events(self, index: int, events: list[Event], now: float) -> list[WatchUpdate]:
        if not self._late:
            return self._hand_out(index, events)
        self._held += events
        if index in self._late:
            if len({e.mod_revision for e in events}) < BATCH_REVISIONS:
                self._late.discard(index)
            elif self.ready:
                self.hold_until = now + SETTLE
        return [] if self._late else self.flush()

    def flush(self) -> list[WatchUpdate]:
        """Hands out what was held back, in order."""
        held, self._held = self._held, []
        self._late = set()
        self.hold_until = None
        held.sort(key=lambda e: e.mod_revision)
        for event in held:
            index = self._index_of(event.key)
            self.next[index] = max(self.next[index], event.mod_revision + 1)
        return [WatchUpdate(held[-1].mod_revision, tuple(held))] if held else []

    def _hand_out(self, index: int, events: list[Event]) -> list[WatchUpdate]:
        if not events:
            return []
        self.next[index] = events[-1].mod_revision + 1
        return [WatchUpdate(events[-1].mod_revision, tuple(events))]

    def _index_of(self, key: str) -> int:
        return next(index for index, span in enumerate(self.ranges) if key in span)

    def restart(self, revision: int, kvs: Sequence[KeyValue]) -> WatchUpdate:
        """Everything was read again at `revision`."""
        self.next = [revision + 1] * len(self.ranges)
        self._store, self._term = "", 0
        self.begin()
        return WatchUpdate(revision, snapshot=tuple(sorted(kvs, key=lambda kv: kv.key)))


def merge(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Ranges that do not overlap, sorted: a key in two of them would be reported twice."""
    if not ranges:
        raise ValueError("a watch needs at least one range")
    merged: list[KeyRange] = []
    for span in sorted(ranges, key=lambda r: (r.key, r.end)):
        wire.check_key(span.key)
        if not merged or _end(merged[-1]) <= span.key:
            merged.append(span)
        elif _end(merged[-1]) < _end(span):
            merged[-1] = KeyRange(merged[-1].key, _end(span))
    return merged


def _end(span: KeyRange) -> str:
    return span.end or span.key + "\0"
