"""An asyncio client of etcd: no threads and, when idle, one socket for each etcd.

Requests and responses are encoded and decoded by the runtime's client (`elasticjob_runtime.etcd`); only the I/O
differs, because the operator watches a thousand etcds at once and an agent only one. docs/design/0009-operator-scale.md
explains why there are no threads, and lists the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol, TypeVar

from elasticjob_runtime.etcd import (
    Endpoint,
    Event,
    Get,
    KeyRange,
    NotEtcd,
    Operation,
    Rotation,
    StoreError,
    TlsConfig,
    TxnResult,
    Unavailable,
    parse_endpoints,
    protocol,
)

from elasticjob_operator.etcd import responses
from elasticjob_operator.etcd.connection import ConnectionClosed, HttpConnection, NotHttp
from elasticjob_operator.etcd.limits import LimitExceeded, MemoryPool, TimeBudget
from elasticjob_operator.etcd.name_resolution import Resolver
from elasticjob_operator.etcd.responses import Untrusted
from elasticjob_operator.etcd.watch_stream import OPEN_SECONDS, WatchStream

CALL_SECONDS = 3.0
"""Timeout of a call, from name resolution to the last byte, s."""
ALERT_SECONDS = 0.5
"""How long to wait for a TLS alert after the server closed a connection, s."""
IDLE_SECONDS = 5.0
"""How long an idle connection is kept, s. An idle etcd then costs only the socket of its watch."""
MAX_CALLS = 8
"""Concurrent calls to one etcd; each has a connection."""

Json = dict[str, Any]
T = TypeVar("T")


class AsyncStore(Protocol):
    """One etcd. All methods raise StoreError."""

    async def revision(self, key: str) -> int:
        """The current revision of the store. `key`: any key that may be read."""

    async def txn(self, operations: Sequence[Operation]) -> TxnResult: ...

    def watch(
        self, keys: KeyRange, start: int, probe_after: Callable[[], float]
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Changes from revision `start` on. Items without events: the first means that the watch is established, later
        ones that the server still responds, which is probed after `probe_after()` seconds of silence. Ends only by
        StoreError."""

    def close(self) -> None: ...


class SharedResources:
    """What the clients of all etcds share."""

    def __init__(self) -> None:
        self.pool = MemoryPool()
        self.resolver = Resolver()


class AsyncEtcdClient:
    """Implements AsyncStore over the JSON gateway. With several endpoints, a failure moves on to the next."""

    def __init__(
        self,
        endpoint: str,
        shared: SharedResources,
        budget: TimeBudget | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`budget` outlives this client, so that a server gains nothing by closing the connection. `tls`: for each
        connection to an https endpoint, as certificates of ours expire sooner than a watch ends; by default with the
        system's CAs and no certificate. Raises ValueError where `endpoint` is not an address."""
        endpoints = parse_endpoints(endpoint)
        self._rotation = Rotation(endpoints)
        self._shared = shared
        self._budget = budget or TimeBudget()
        self._tls = tls or functools.cache(TlsConfig().context)
        self._checked: set[Endpoint] = set()
        self._call_slots = asyncio.Semaphore(MAX_CALLS)
        self._idle: dict[HttpConnection, tuple[Endpoint, asyncio.TimerHandle]] = {}
        self._closed = False

    async def revision(self, key: str) -> int:
        endpoint = self._rotation.current
        if endpoint not in self._checked:
            await self._check(endpoint)
        get = Get(KeyRange(key), keys_only=True)
        return await self._call(endpoint, "/v3/kv/range", protocol.range_request(get), protocol.revision_of)

    async def txn(self, operations: Sequence[Operation]) -> TxnResult:
        protocol.check_txn(operations)
        request = protocol.txn_request((), operations, ())
        return await self._call(self._rotation.current, "/v3/kv/txn", request, protocol.txn_result)

    async def watch(
        self, keys: KeyRange, start: int, probe_after: Callable[[], float]
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        endpoint = self._rotation.current

        async def has_changes(since: int) -> bool:
            """A linearizable read: a frozen member, or one cut off from its cluster, does not respond."""
            result = await self._call(
                endpoint, "/v3/kv/txn", protocol.news_request([keys], [since]), protocol.txn_result
            )
            return any(result.reads)

        try:
            connection = await self._open_watch(endpoint, protocol.watch_request([keys], [start]))
            try:
                stream = WatchStream(connection, start, probe_after, has_changes, self._budget)
                while True:
                    for events in await stream.next():
                        yield events
            finally:
                connection.close()
        except (StoreError, LimitExceeded, NotHttp, ConnectionClosed, OSError) as error:
            self._rotation.failed(endpoint)
            raise _described(endpoint, error) from error

    def close(self) -> None:
        self._closed = True
        for connection, (_, timer) in self._idle.items():
            timer.cancel()
            connection.close()
        self._idle.clear()

    async def _open_watch(self, endpoint: Endpoint, body: bytes) -> HttpConnection:
        # has-leader: a member that lost its cluster ends the stream instead of going silent.
        async with asyncio.timeout(OPEN_SECONDS):  # not wait_for, which in Python 3.11 may swallow a cancellation
            connection = await self._open(endpoint)
            try:
                await connection.send("POST", "/v3/watch", body, "Grpc-Metadata-hasleader: true\r\n")
                head = await connection.read_head()
                if head.status == 200 and head.chunked:
                    return connection
                responses.answer_of(head.status, await connection.read_body(head))
                raise responses.malformed(ValueError("the watch is not a stream"))
            except BaseException:
                connection.close()
                raise

    async def _check(self, endpoint: Endpoint) -> None:
        try:
            status, body = await self._exchange(endpoint, "GET", "/version", b"")
            responses.check_version(status, body)
        except (StoreError, LimitExceeded, NotHttp, ConnectionClosed, OSError) as error:
            self._rotation.failed(endpoint)
            raise _described(endpoint, error) from error
        self._checked.add(endpoint)

    async def _call(self, endpoint: Endpoint, path: str, request: Json, read: Callable[[Json], T]) -> T:
        try:
            status, body = await self._exchange(endpoint, "POST", path, protocol.dump(request))
            answer = responses.answer_of(status, body)
            try:
                return read(answer)
            except Exception as error:
                raise responses.malformed(error) from error
        except (StoreError, LimitExceeded, NotHttp, ConnectionClosed, OSError) as error:
            if not isinstance(error, StoreError) or isinstance(error, Unavailable | NotEtcd):
                self._rotation.failed(endpoint)
            raise _described(endpoint, error) from error

    async def _exchange(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> tuple[int, bytearray]:
        async with self._call_slots, asyncio.timeout(CALL_SECONDS):
            connection = self._take_idle(endpoint) or await self._open(endpoint)
            try:
                await connection.send(method, path, body)
                head = await connection.read_head()
                answer = await connection.read_body(head)
            except (ConnectionClosed, ConnectionError):
                connection.close()
                await self._raise_tls_alert(endpoint)
                raise
            except BaseException:
                connection.close()
                raise
        self._keep_idle(endpoint, connection)
        wait = self._budget.spend(len(answer) * 1e-8, time.monotonic())
        if wait is not None:
            await asyncio.sleep(min(wait, CALL_SECONDS))
        return head.status, answer

    async def _open(self, endpoint: Endpoint) -> HttpConnection:
        tls = self._tls() if endpoint.tls else None
        return await HttpConnection.open(endpoint, tls, self._shared.pool, self._shared.resolver)

    async def _raise_tls_alert(self, endpoint: Endpoint) -> None:
        """Raises ssl.SSLError if the server does not accept our certificate, which in TLS 1.3 it says only after the
        handshake: if we write just then, the kernel reports a reset connection instead. So nothing is written here."""
        if not endpoint.tls:
            return
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(ALERT_SECONDS):
                connection = await self._open(endpoint)
                try:
                    await connection.tls_alert()
                finally:
                    connection.close()

    def _take_idle(self, endpoint: Endpoint) -> HttpConnection | None:
        """The server may close an idle connection just as it is reused: then the call fails and is retried as after any
        failure."""
        for connection, (known, timer) in list(self._idle.items()):
            if known == endpoint:
                timer.cancel()
                del self._idle[connection]
                if connection.usable:
                    return connection
                connection.close()
        return None

    def _keep_idle(self, endpoint: Endpoint, connection: HttpConnection) -> None:
        connection.hold(0)
        if self._closed or self._idle or not connection.usable:
            connection.close()
            return
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop, connection)
        self._idle[connection] = (endpoint, timer)

    def _drop(self, connection: HttpConnection) -> None:
        self._idle.pop(connection, None)
        connection.close()


def _described(endpoint: Endpoint, error: BaseException) -> StoreError:
    """A message for users, with the address and without anything the server sent."""
    match error:
        case StoreError() if str(error).startswith(f"{endpoint}: "):
            return error
        case StoreError():
            described = type(error)(f"{endpoint}: {error}")
            for note in getattr(error, "__notes__", ()):
                described.add_note(note)
            return described
        case TimeoutError():
            return Unavailable(f"{endpoint}: no response within {CALL_SECONDS:g} s")
        case LimitExceeded() | NotHttp():
            return NotEtcd(f"{endpoint}: it {error}")
        case OSError():
            return _described_os_error(endpoint, error)
        case _:
            return Unavailable(f"{endpoint}: {error or type(error).__name__}")


def _is_refusal(reason: str) -> bool:
    """Whether a TLS alert of the server is about our certificate."""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _described_os_error(endpoint: Endpoint, error: OSError) -> StoreError:
    match error:
        case ssl.SSLCertVerificationError():
            return Untrusted(f"{endpoint}: its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError() if _is_refusal(error.reason or ""):
            return Untrusted(f"{endpoint}: it does not accept the operator's certificate: {error.reason}")
        case ssl.SSLError():
            return Unavailable(f"{endpoint}: TLS failed: {error.reason or 'no reason given'}")
        case _ if error.errno and error.errno > 0:
            return Unavailable(f"{endpoint}: {os.strerror(error.errno)}")
        case _:
            return Unavailable(f"{endpoint}: {error.strerror or error}")
