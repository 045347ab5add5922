"""A watch on etcd: one thread with one stream at a time, resumed after any failure."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from elasticjob_runtime.etcd import protocol, responses
from elasticjob_runtime.etcd.callbacks import Delivery
from elasticjob_runtime.etcd.connection import Connection
from elasticjob_runtime.etcd.cursor import BehindError, HistoryGone, WatchCursor
from elasticjob_runtime.etcd.endpoints import Endpoint
from elasticjob_runtime.etcd.faults import TransportError, Untrusted, store_error
from elasticjob_runtime.etcd.interface import (
    Denied,
    Get,
    KeyRange,
    NotEtcd,
    StoreError,
    Unavailable,
    WatchCallback,
    WatchFailure,
)
from elasticjob_runtime.etcd.transport import Transport, pause_before, summary

log = logging.getLogger(__name__)

_OPEN_TIMEOUT = 3.0
_PROBE_TIMEOUT = 3.0
_STALL_GRACE = 1.0
_LONGEST_MESSAGE = 1 << 26
# Asks the etcd member to end the stream, instead of falling silent, when it has lost its cluster's leader.
_HEADERS = "Grpc-Metadata-hasleader: true\r\nConnection: close\r\n"
# Without `close`, etcd's HTTP server may discard the part of the body that it has not read when it starts to answer. On
# a busy server, about one watch in a hundred loses some of its ranges.


class EtcdWatch:
    """Implements interface.Watch.

    A stream without news for about `probe_interval` seconds is probed: the same member must answer a linearizable read
    within 3 s, and the stream must deliver every change that this read shows. This detects what TCP cannot: a frozen
    server, a member cut off from its cluster, a stream lost in a proxy. `transport` must not be used by anything else;
    the watch's thread calls `on_end` when it ends.
    """

    def __init__(
        self,
        transport: Transport,
        ranges: Sequence[KeyRange],
        start_revision: int,
        callback: WatchCallback,
        *,
        probe_interval: float,
        on_end: Callable[[EtcdWatch], None],
    ) -> None:
        self._transport = transport
        self._cursor = WatchCursor(ranges, start_revision)
        self._deliver = Delivery(callback)
        self._probe_interval = probe_interval
        self._on_end = on_end
        self._stopped = threading.Event()
        self._established = False
        self._alive_since = 0.0
        self._announced = False
        self._faults: dict[Endpoint, StoreError] = {}
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._stopped.set()
        self._deliver.stop()
        self._transport.close()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._once()
        except Exception as error:
            log.exception("watch ended by a bug")
            self._deliver(WatchFailure(StoreError(f"watch ended: {error!r}")))
        finally:
            self._on_end(self)

    def _once(self) -> None:
        """Follows one stream until it fails."""
        endpoint = self._transport.rotation.current
        try:
            self._follow(endpoint)
        except (HistoryGone, BehindError) as error:
            self._start_over(endpoint, error)
        except (Unavailable, NotEtcd, Untrusted) as error:
            self._retry_later(endpoint, error)
        except StoreError as error:
            self._end(error)

    def _follow(self, endpoint: Endpoint) -> None:
        end = time.monotonic() + _OPEN_TIMEOUT
        body = protocol.watch_request(self._cursor.ranges, self._cursor.next)
        self._cursor.begin()

        def attempt(token: str) -> None:
            stream = self._transport.open_stream(endpoint, end)
            try:
                login = f"Authorization: {token}\r\n" if token else ""
                stream.send("POST", "/v3/watch", body, _HEADERS + login, end)
                head = stream.read_head(end)
                if head.status != 200:
                    raise responses.http_error(head.status, head.headers, stream.read_body(head, end))
                self._read(endpoint, stream, end)
            except TransportError as error:
                raise store_error(error) from error
            except responses.TokenRefused as error:
                if not self._cursor.ready:
                    raise
                self._transport.forget_token(token)
                raise Unavailable(str(error)) from error
            finally:
                stream.reusable = False
                self._transport.release(stream)

        self._transport.with_token(endpoint, end, attempt)

    def _read(self, endpoint: Endpoint, stream: Connection, end: float) -> None:
        """Delivers the changes of the stream. Returns only when the watch is cancelled."""
        cursor = self._cursor
        lines = _Lines(stream)
        probe = _Probe(end, None)
        while not self._stopped.is_set():
            try:
                messages = lines.read(probe.due)
            except TimeoutError:
                messages = []
                if not cursor.ready:
                    raise Unavailable(f"no watch within {_OPEN_TIMEOUT:g} s") from None
            now = time.monotonic()
            for message in messages:
                update = cursor.feed(message)
                if update is not None:
                    self._deliver(update)
            if cursor.ready:
                probe = self._update_probe(endpoint, probe, now, received=bool(messages))

    def _update_probe(self, endpoint: Endpoint, probe: _Probe, now: float, *, received: bool) -> _Probe:
        """Probes the stream if due, and returns the next probe. Raises Unavailable if the stream is dead."""
        if received:
            self._on_life(now)
        if probe.stall is not None and now >= probe.stall.at:
            if not probe.stall.is_over(self._cursor):
                self._cursor.recount()
                raise Unavailable("the watch does not bring what was written")
            probe = _Probe(probe.at, None)
        if received:
            return _Probe(self._next_probe(), probe.stall)
        if now >= probe.at:
            stall = probe.stall or self._probe(endpoint)  # another probe does not extend its deadline
            return _Probe(self._next_probe(), stall)
        return probe

    def _next_probe(self) -> float:
        return time.monotonic() + self._probe_interval * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load

    def _probe(self, endpoint: Endpoint) -> _Stall | None:
        """Returns the changes that the stream has yet to deliver, if any. Raises Unavailable if the member does not
        answer."""
        since = list(self._cursor.next)
        request = protocol.dump(protocol.news_request(self._cursor.ranges, since))
        answer = self._transport.call_at(endpoint, "/v3/kv/txn", request, time.monotonic() + _PROBE_TIMEOUT)
        # In this order, because a count is meaningless while changes are still on the way.
        news = [
            written or self._cursor.misses(index, count) for index, (written, count) in enumerate(protocol.news(answer))
        ]
        return _Stall(since, news, time.monotonic() + _STALL_GRACE) if any(news) else None

    def _start_over(self, endpoint: Endpoint, reason: StoreError) -> None:
        """Reads everything again, unless the member only lagged behind (the linearizable read has made it catch up)."""
        gets = [Get(span) for span in self._cursor.ranges]
        body = protocol.dump(protocol.txn_request((), gets, ()))
        try:
            answer = self._transport.call_at(endpoint, "/v3/kv/txn", body, time.monotonic() + _OPEN_TIMEOUT)
            late, result = (
                isinstance(reason, BehindError) and not self._cursor.is_rewound(protocol.header_of(answer)),
                protocol.txn_result(answer),
            )
        except (Unavailable, NotEtcd, Untrusted) as error:
            self._retry_later(endpoint, error)
            return
        except StoreError as error:
            self._end(error)
            return
        if late:
            self._stopped.wait(0.05)
            return
        log.warning("watch starts over: %s", reason)
        self._deliver(self._cursor.restart(result.revision, [kv for kvs in result.reads for kv in kvs]))

    def _on_life(self, now: float) -> None:
        """Records that the stream works."""
        self._faults.clear()
        self._announced = False
        self._alive_since = self._alive_since or now

    def _retry_later(self, endpoint: Endpoint, error: StoreError) -> None:
        """Moves to the next endpoint; notifies the receiver when all endpoints have failed."""
        if self._stopped.is_set():
            return
        rotation = self._transport.rotation
        rotation.failed(endpoint)
        now = time.monotonic()
        if self._alive_since and now - self._alive_since > 1.0:
            self._failures = 0
        if self._alive_since:
            log.info("watch on %s lost: %s", endpoint, error)
        else:
            self._faults[endpoint] = error
        self._established = self._established or bool(self._alive_since)
        self._alive_since = 0.0
        self._failures += 1
        if len(self._faults) == len(rotation) and not self._announced:
            if not self._established and not any(isinstance(fault, Unavailable) for fault in self._faults.values()):
                kind = NotEtcd if any(isinstance(fault, NotEtcd) for fault in self._faults.values()) else Denied
                self._end(kind(summary(self._faults)))
                return
            self._announced = True
            self._deliver(WatchFailure(Unavailable(summary(self._faults))))
        self._stopped.wait(pause_before(self._failures, len(rotation)))

    def _end(self, error: StoreError) -> None:
        """Ends the watch because of a permanent error."""
        self._stopped.set()
        if isinstance(error, Denied):
            keys = ", ".join(span.key for span in self._cursor.ranges)
            error = Denied(f"etcd refuses to watch {keys}: {error}")
        self._deliver(WatchFailure(error))


@dataclasses.dataclass(frozen=True, slots=True)
class _Stall:
    """Changes that the member knows, and that the stream must deliver by `at`."""

    since: list[int]
    news: list[bool]
    at: float

    def is_over(self, cursor: WatchCursor) -> bool:
        return all(after > before for before, after, new in zip(self.since, cursor.next, self.news, strict=True) if new)


@dataclasses.dataclass(frozen=True, slots=True)
class _Probe:
    """The next probe of a silent stream, and what the last one found."""

    at: float
    stall: _Stall | None

    @property
    def due(self) -> float:
        return self.at if self.stall is None else min(self.at, self.stall.at)


class _Lines:
    """The messages of a stream: one JSON object per line."""

    def __init__(self, stream: Connection) -> None:
        self._stream = stream
        self._rest = bytearray()

    def read(self, end: float) -> list[protocol.Json]:
        """Returns the messages that are available. Raises TimeoutError if none comes by `end`, and StoreError if the
        stream ends or reports an error."""
        part = self._stream.read_part(end)
        if not part:
            raise Unavailable("the watch stream ended")
        searched = len(self._rest)
        self._rest += part
        if len(self._rest) > _LONGEST_MESSAGE:
            raise NotEtcd(f"a message of the watch is longer than {_LONGEST_MESSAGE} bytes")
        cut = self._rest.rfind(b"\n", searched) + 1
        if not cut:
            return []
        lines = bytes(self._rest[:cut]).splitlines()
        del self._rest[:cut]
        return [responses.parse_answer(200, {}, line) for line in lines if line.strip()]
