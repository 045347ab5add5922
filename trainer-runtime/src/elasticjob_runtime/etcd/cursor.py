"""Where a watch stands: turns the messages of one stream after another into updates, each change once and in revision order. Pure.

etcd orders the changes of one watcher (one range). Watchers on a stream go in step as well, once the server has taken them all up; that
takes 0.1 s or so, and it says nothing about a watcher that has nothing to catch up with. So with several ranges, after a connection,
changes are held back until every range has sent something; or for TAKE_UP, and then until a read has told that no range owes older ones
(wire.backlog_request). What remains, on a slow server: keys that came and went within that time do not show in the read. And the server may
set one range back when this client reads more slowly than things change. Such changes come after newer ones of another range, but still
once and in their range's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticjob_runtime.etcd import wire
from elasticjob_runtime.etcd.answers import cancel_error
from elasticjob_runtime.etcd.port import Event, KeyRange, KeyValue, StoreError, WatchUpdate

TAKE_UP = 0.2
"""Seconds after a connection within which the server usually has taken up every watcher."""
IN_STEP = 2.0
"""Seconds after a connection within which it surely has."""
BATCH_REVISIONS = 1000
"""etcd sends a backlog in batches of as many revisions; a smaller one is the last."""


class HistoryGone(StoreError):
    """The changes from here on cannot be had any more: read everything again."""


class Behind(StoreError):
    """The member does not know what this watch has seen. It is late, or the store has lost its data: ask it."""


class Cursor:
    """`begin` at every connection, then `feed` its messages; `pass_time` at `wake_at`; when `unsettled`, ask the server and `settle`."""

    def __init__(self, ranges: Sequence[KeyRange], start_revision: int) -> None:
        wire.check_revision(start_revision)
        self.ranges = merge(ranges)
        self.next = [start_revision] * len(self.ranges)
        """For each range, the first revision not yet handed out."""
        self.wake_at = math.inf
        self._trust_at = math.inf
        """From when on an answer of the server is worth something."""
        self._late: dict[int, bool] = {}
        """Ranges that may not be in step yet; True: older changes are known to be on their way."""
        self._held: list[tuple[Event, int]] = []
        self._asked = 0
        """How many of those held back the last answer covers."""
        self._created = 0
        self._fragments: dict[int, list[Event]] = {}
        self._store = ""
        self._term = 0

    def begin(self) -> None:
        """A new connection. What the last one held back comes again."""
        self.wake_at = self._trust_at = math.inf
        self._late = dict.fromkeys(range(len(self.ranges)), False) if len(self.ranges) > 1 else {}
        self._held = []
        self._asked = 0
        self._created = 0
        self._fragments = {}

    @property
    def ready(self) -> bool:
        """All watchers stand."""
        return self._created == len(self.ranges)

    def unsettled(self, now: float) -> dict[int, int]:
        """Ranges that may owe older changes than those held back, and from which revision on."""
        if now < self._trust_at or len(self._held) == self._asked:
            return {}
        since = dict(enumerate(self.next))
        for event, index in self._held:
            since[index] = max(since[index], event.mod_revision + 1)
        return {index: since[index] for index, owes in self._late.items() if not owes}

    def feed(self, message: wire.Json, now: float) -> list[WatchUpdate]:
        """Raises HistoryGone, Behind, TokenRefused, Denied or Unavailable: this connection is over."""
        if message.get("canceled"):
            if message.get("compact_revision"):
                raise HistoryGone(f"compacted up to revision {message['compact_revision']}")
            raise cancel_error(message.get("cancel_reason", ""))
        index = int(message.get("watch_id", 0)) - 1
        if not 0 <= index < len(self.ranges):
            return []
        if message.get("created"):
            return self._on_created(message.get("header", {}), now)
        events = self._fragments.pop(index, []) + [wire.event(item) for item in message.get("events", ())]
        if message.get("fragment"):
            self._fragments[index] = events
            return []
        return self._on_events(index, [e for e in events if e.mod_revision >= self.next[index]])

    def _on_created(self, header: wire.Json, now: float) -> list[WatchUpdate]:
        if self.is_rewound(header):
            raise Behind("the member does not know what this watch has seen")
        self._store = header.get("cluster_id", "")
        self._term = int(header.get("raft_term", 0))
        self._created += 1
        if self.ready and self._late:
            self.wake_at = self._trust_at = now + TAKE_UP
        return self._flush_if_complete()

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

    def settle(self, owes: dict[int, bool]) -> list[WatchUpdate]:
        """`owes`: for each range of `unsettled`, whether there are such changes. Read after what is held back had arrived."""
        self._asked = len(self._held)
        self._late.update(owes)
        return [] if any(self._late.values()) else self._flush()

    def cannot_ask(self) -> list[WatchUpdate]:
        """The server cannot tell any more (compacted)."""
        return self._flush()

    def pass_time(self, now: float) -> list[WatchUpdate]:
        if now < self.wake_at:
            return []
        if now < self._trust_at + IN_STEP - TAKE_UP:
            self.wake_at = self._trust_at + IN_STEP - TAKE_UP
            return []
        self.wake_at = math.inf
        self._late = {index: owes for index, owes in self._late.items() if owes}
        return self._flush_if_complete()

    def _on_events(self, index: int, events: list[Event]) -> list[WatchUpdate]:
        if not events:
            return []
        self._held += [(event, index) for event in events]
        if index in self._late:
            if len({e.mod_revision for e in events}) < BATCH_REVISIONS:
                del self._late[index]
            else:
                self._late[index] = False  # there may be more
        return self._flush_if_complete()

    def _flush_if_complete(self) -> list[WatchUpdate]:
        return self._flush() if self.ready and not self._late else []

    def _flush(self) -> list[WatchUpdate]:
        """Hands out what was held back, in order."""
        held, self._held = self._held, []
        self._asked = 0
        if not held:
            return []
        held.sort(key=lambda item: item[0].mod_revision)
        for event, index in held:
            self.next[index] = max(self.next[index], event.mod_revision + 1)
        return [WatchUpdate(held[-1][0].mod_revision, tuple(event for event, _ in held))]

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
