"""What a session needs of etcd, and the asyncio client that gives it. No thread and, at rest, one socket for each etcd.

Requests and the meaning of answers are those of the runtime's client (`elasticjob_runtime.etcd`); the I/O differs: an
operator follows a thousand etcds at once, an agent one. Why not a thread for each, and what bounds each:
docs/design/0009-operator-scale.md.
"""

from __future__ import annotations

import asyncio
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
from elasticjob_operator.etcd.connection import Broken, Connection, NotHttp
from elasticjob_operator.etcd.limits import Pool, TimeBudget, TooMuch
from elasticjob_operator.etcd.name_resolution import Lookup
from elasticjob_operator.etcd.watch_stream import OPEN_SECONDS, Stream

CALL_SECONDS = 3.0
"""A call may take so long, from looking up the name to the last byte."""
IDLE_SECONDS = 5.0
"""A connection of calls is kept for the next one for so long: at rest each etcd costs the watch's socket alone."""
CALLS = 8
"""At once, to one etcd; each has a connection."""

Json = dict[str, Any]
T = TypeVar("T")


class Store(Protocol):
    """One etcd. All raise StoreError."""

    async def revision(self, key: str) -> int:
        """Of the store, now; `key`: any that may be read."""

    async def txn(self, operations: Sequence[Operation]) -> TxnResult: ...

    def watch(
        self, keys: KeyRange, start: int, patience: Callable[[], float]
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Changes from revision `start` on. Items without events: the first says that the watch stands, later ones that
        the server still answers, which it is asked after `patience()` seconds of silence. Ends only by StoreError."""

    def close(self) -> None: ...


class Shared:
    """What the clients of all etcds have in common."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.lookup = Lookup()


class Etcd:
    """Implements Store, over the JSON gateway. Several endpoints: the next one after a failure."""

    def __init__(self, endpoint: str, shared: Shared, budget: TimeBudget | None = None) -> None:
        """`budget`: outlives this client, so that a server gains nothing by closing. Raises ValueError where `endpoint`
        is no address."""
        endpoints = parse_endpoints(endpoint)
        self._rotation = Rotation(endpoints)
        self._shared = shared
        self._budget = budget or TimeBudget()
        self._tls = TlsConfig().context() if any(each.tls for each in endpoints) else None
        self._checked: set[Endpoint] = set()
        self._turns = asyncio.Semaphore(CALLS)
        self._idle: dict[Connection, tuple[Endpoint, asyncio.TimerHandle]] = {}
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
        self, keys: KeyRange, start: int, patience: Callable[[], float]
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        endpoint = self._rotation.current

        async def ask(since: int) -> bool:
            """A linearizable read, so a frozen member, or one cut off from its cluster, does not answer."""
            result = await self._call(
                endpoint, "/v3/kv/txn", protocol.news_request([keys], [since]), protocol.txn_result
            )
            return any(result.reads)

        try:
            connection = await self._open_watch(endpoint, protocol.watch_request([keys], [start]))
            try:
                stream = Stream(connection, start, patience, ask, self._budget)
                while True:
                    for events in await stream.next():
                        yield events
            finally:
                connection.close()
        except (StoreError, TooMuch, NotHttp, Broken, OSError) as error:
            self._rotation.failed(endpoint)
            raise _explained(endpoint, error) from error

    def close(self) -> None:
        self._closed = True
        for connection, (_, timer) in self._idle.items():
            timer.cancel()
            connection.close()
        self._idle.clear()

    async def _open_watch(self, endpoint: Endpoint, body: bytes) -> Connection:
        # has-leader: a member that lost its cluster ends the stream instead of falling silent.
        async with asyncio.timeout(
            OPEN_SECONDS
        ):  # here and elsewhere not wait_for, which in Python 3.11 may forget a cancellation
            connection = await Connection.open(
                endpoint, self._tls if endpoint.tls else None, self._shared.pool, self._shared.lookup
            )
            try:
                await connection.send("POST", "/v3/watch", body, "Grpc-Metadata-hasleader: true\r\n")
                head = await connection.read_head()
                if head.status == 200 and head.chunked:
                    return connection
                responses.answer_of(head.status, await connection.read_body(head))
                raise responses.garbled(ValueError("a watch that is no stream"))
            except BaseException:
                connection.close()
                raise

    async def _check(self, endpoint: Endpoint) -> None:
        try:
            status, body = await self._exchange(endpoint, "GET", "/version", b"")
            responses.check_version(status, body)
        except (StoreError, TooMuch, NotHttp, Broken, OSError) as error:
            self._rotation.failed(endpoint)
            raise _explained(endpoint, error) from error
        self._checked.add(endpoint)

    async def _call(self, endpoint: Endpoint, path: str, request: Json, read: Callable[[Json], T]) -> T:
        try:
            status, body = await self._exchange(endpoint, "POST", path, protocol.dump(request))
            answer = responses.answer_of(status, body)
            try:
                return read(answer)
            except Exception as error:
                raise responses.garbled(error) from error
        except (StoreError, TooMuch, NotHttp, Broken, OSError) as error:
            if not isinstance(error, StoreError) or isinstance(error, Unavailable | NotEtcd):
                self._rotation.failed(endpoint)
            raise _explained(endpoint, error) from error

    async def _exchange(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> tuple[int, bytearray]:
        async with self._turns, asyncio.timeout(CALL_SECONDS):
            connection = self._take(endpoint)
            if connection is None:
                connection = await Connection.open(
                    endpoint, self._tls if endpoint.tls else None, self._shared.pool, self._shared.lookup
                )
            try:
                await connection.send(method, path, body)
                head = await connection.read_head()
                answer = await connection.read_body(head)
            except BaseException:
                connection.close()
                raise
        self._keep(endpoint, connection)
        wait = self._budget.spend(len(answer) * 1e-8, time.monotonic())
        if wait is not None:
            await asyncio.sleep(min(wait, CALL_SECONDS))
        return head.status, answer

    def _take(self, endpoint: Endpoint) -> Connection | None:
        """One that is idle. The server may close it in the very moment in which it is used: then the call fails, and is
        asked again as after any failure."""
        for connection, (known, timer) in list(self._idle.items()):
            if known == endpoint:
                timer.cancel()
                del self._idle[connection]
                if connection.usable:
                    return connection
                connection.close()
        return None

    def _keep(self, endpoint: Endpoint, connection: Connection) -> None:
        connection.hold(0)
        if self._closed or self._idle or not connection.usable:
            connection.close()
            return
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop, connection)
        self._idle[connection] = (endpoint, timer)

    def _drop(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        connection.close()


def _explained(endpoint: Endpoint, error: BaseException) -> StoreError:
    """In words for people, with the address; nothing that was answered is in them."""
    match error:
        case StoreError() if str(error).startswith(f"{endpoint}: "):
            return error
        case StoreError():
            told = type(error)(f"{endpoint}: {error}")
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            return told
        case TimeoutError():
            return Unavailable(f"{endpoint}: no answer within {CALL_SECONDS:g} s")
        case TooMuch() | NotHttp():
            return NotEtcd(f"{endpoint}: it {error}")
        case OSError():
            return _explained_fault(endpoint, error)
        case _:
            return Unavailable(f"{endpoint}: {error or type(error).__name__}")


def _explained_fault(endpoint: Endpoint, error: OSError) -> StoreError:
    match error:
        case ssl.SSLCertVerificationError():
            return NotEtcd(f"{endpoint}: its certificate is not accepted: {error.verify_message}")
        case ssl.SSLError():
            return Unavailable(f"{endpoint}: TLS failed: {error.reason or 'no reason given'}")
        case _ if error.errno and error.errno > 0:
            return Unavailable(f"{endpoint}: {os.strerror(error.errno)}")
        case _:
            return Unavailable(f"{endpoint}: {error.strerror or error}")
