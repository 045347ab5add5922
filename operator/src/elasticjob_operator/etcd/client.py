"""An asyncio client of etcd: no threads and, when idle, one socket for each etcd.

Requests and responses are encoded and decoded by the runtime's client (`elasticjob_runtime.etcd`); only the I/O
differs, because the operator watches a thousand etcds at once and an agent only one. docs/design/0009-operator-scale.md
explains why there are no threads, and lists the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
from elasticjob_operator.etcd.connection import ConnectionClosed, Head, HttpConnection, NotHttp
from elasticjob_operator.etcd.faults import described
from elasticjob_operator.etcd.limits import LimitExceeded, MemoryPool, TimeBudget
from elasticjob_operator.etcd.login import Login, check_secure
from elasticjob_operator.etcd.name_resolution import Resolver
from elasticjob_operator.etcd.responses import TokenRejected
from elasticjob_operator.etcd.watch_stream import OPEN_SECONDS, WatchStream

CALL_SECONDS = 3.0
"""Timeout of a call, from name resolution to the last byte, s."""
USER_CALL_SECONDS = 10.0
"""The same of a call about users, s: etcd hashes passwords with bcrypt, which by default takes 75 ms of its CPU."""
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

    async def call(self, path: str, request: Json) -> Json:
        """A call about users and roles."""

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
        login: Login | None = None,
        run_users: bool = False,
    ) -> None:
        """`budget` outlives this client, so that a server gains nothing by closing the connection. `tls`: for each
        connection to an https endpoint, as certificates of ours expire sooner than a watch ends; by default with the
        system's CAs and no certificate. `login`: instead of `tls`. `run_users`: each run has a user there, so
        versions that do not keep users apart are refused. Raises ValueError where `endpoint` is not an address."""
        endpoints = parse_endpoints(endpoint)
        self._rotation = Rotation(endpoints)
        self._shared = shared
        self._budget = budget or TimeBudget()
        self._tls = tls or functools.cache(TlsConfig().context)
        self._login = login
        self._run_users = run_users
        self._checked: set[Endpoint] = set()
        self._call_slots = asyncio.Semaphore(MAX_CALLS)
        self._idle: dict[HttpConnection, tuple[Endpoint, asyncio.TimerHandle]] = {}
        self._closed = False

    async def revision(self, key: str) -> int:
        endpoint = self._rotation.current
        if self._login is not None:
            await self._login.open()
        if endpoint not in self._checked:
            await self._check(endpoint)
        get = Get(KeyRange(key), keys_only=True)
        return await self._call(endpoint, "/v3/kv/range", protocol.range_request(get), protocol.revision_of)

    async def txn(self, operations: Sequence[Operation]) -> TxnResult:
        protocol.check_txn(operations)
        request = protocol.txn_request((), operations, ())
        return await self._call(self._rotation.current, "/v3/kv/txn", request, protocol.txn_result)

    async def call(self, path: str, request: Json) -> Json:
        return await self._call(self._rotation.current, path, request, lambda answer: answer, USER_CALL_SECONDS)

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
            raise described(endpoint, error) from error

    def close(self) -> None:
        self._closed = True
        for connection, (_, timer) in self._idle.items():
            timer.cancel()
            connection.close()
        self._idle.clear()

    async def _open_watch(self, endpoint: Endpoint, body: bytes) -> HttpConnection:
        # has-leader: a member that lost its cluster ends the stream instead of going silent.
        headers = f"Grpc-Metadata-hasleader: true\r\n{_authorization(await self._token(endpoint))}"
        async with asyncio.timeout(OPEN_SECONDS):  # not wait_for, which in Python 3.11 may swallow a cancellation
            connection = await self._open(endpoint)
            try:
                await connection.send("POST", "/v3/watch", body, headers)
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
            if self._run_users:
                responses.check_keeps_users_apart(body)
        except (StoreError, LimitExceeded, NotHttp, ConnectionClosed, OSError) as error:
            self._rotation.failed(endpoint)
            raise described(endpoint, error) from error
        self._checked.add(endpoint)

    async def _call(
        self,
        endpoint: Endpoint,
        path: str,
        request: Json,
        read: Callable[[Json], T],
        seconds: float = CALL_SECONDS,
    ) -> T:
        try:
            try:
                answer = await self._answer(endpoint, path, request, seconds)
            except TokenRejected:  # expired, or the server was restarted
                answer = await self._answer(endpoint, path, request, seconds)
            try:
                return read(answer)
            except Exception as error:
                raise responses.malformed(error) from error
        except (StoreError, LimitExceeded, NotHttp, ConnectionClosed, OSError) as error:
            if not isinstance(error, StoreError) or isinstance(error, Unavailable | NotEtcd):
                self._rotation.failed(endpoint)
            raise described(endpoint, error) from error

    async def _answer(self, endpoint: Endpoint, path: str, request: Json, seconds: float) -> Json:
        """Of one attempt. After TokenRejected, the next attempt logs in again."""
        token = await self._token(endpoint)
        body = protocol.dump(request)
        status, answer = await self._exchange(endpoint, "POST", path, body, _authorization(token), seconds)
        try:
            return responses.answer_of(status, answer)
        except TokenRejected:
            if self._login is not None:
                self._login.forget(token)
            raise

    async def _token(self, endpoint: Endpoint) -> str:
        """Empty: no user. Called once the endpoint is known to be an etcd."""
        if self._login is None:
            return ""

        async def authenticate(user: str, password: str) -> str:
            check_secure(user, tls=endpoint.tls)
            request = protocol.dump({"name": user, "password": password})
            path = "/v3/auth/authenticate"
            status, body = await self._exchange(endpoint, "POST", path, request, seconds=USER_CALL_SECONDS)
            return protocol.token_of(responses.answer_of(status, body))

        return await self._login.token(authenticate)

    async def _exchange(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: bytes,
        headers: str = "",
        seconds: float = CALL_SECONDS,
    ) -> tuple[int, bytearray]:
        try:
            async with self._call_slots, asyncio.timeout(seconds):
                connection, head, answer = await self._exchanged(endpoint, method, path, body, headers)
        except TimeoutError as error:
            raise Unavailable(f"no response within {seconds:g} s") from error
        self._keep_idle(endpoint, connection)
        wait = self._budget.spend(len(answer) * 1e-8, time.monotonic())
        if wait is not None:
            await asyncio.sleep(min(wait, CALL_SECONDS))
        return head.status, answer

    async def _exchanged(
        self, endpoint: Endpoint, method: str, path: str, body: bytes, headers: str
    ) -> tuple[HttpConnection, Head, bytearray]:
        connection = self._take_idle(endpoint) or await self._open(endpoint)
        try:
            await connection.send(method, path, body, headers)
            head = await connection.read_head()
            return connection, head, await connection.read_body(head)
        except (ConnectionClosed, ConnectionError):
            connection.close()
            await self._raise_tls_alert(endpoint)
            raise
        except BaseException:
            connection.close()
            raise

    async def _open(self, endpoint: Endpoint) -> HttpConnection:
        tls = (self._login.tls if self._login is not None else self._tls)() if endpoint.tls else None
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


def _authorization(token: str) -> str:
    return f"Authorization: {token}\r\n" if token else ""
