"""What a session needs of etcd, and the asyncio client that gives it. No thread and, at rest, one socket for each etcd.

The requests, answers and errors are those of the runtime's client (`elasticjob_runtime.etcd`); only the I/O differs: an operator
follows a thousand etcds at once, an agent one. Why not a thread for each: docs/design/operator-scale.md.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

import aiohttp
from elasticjob_runtime.etcd import (
    Endpoint,
    Event,
    Get,
    KeyRange,
    NotEtcd,
    Operation,
    StoreError,
    TlsConfig,
    TxnResult,
    Unavailable,
    answers,
    parse_endpoints,
    wire,
)
from elasticjob_runtime.etcd.endpoints import Rotation

CALL_SECONDS = 3.0
"""A call may take so long, and opening a watch."""
STALL_SECONDS = 1.0

Json = dict[str, Any]


class HistoryGone(Unavailable):
    """Changes from the asked revision on cannot be had any more: read everything again."""


class Store(Protocol):
    """One etcd. All raise StoreError."""

    async def revision(self, key: str) -> int:
        """Of the store, now; `key`: any that may be read."""

    async def txn(self, operations: Sequence[Operation]) -> TxnResult: ...

    def watch(self, keys: KeyRange, start: int, patience: Callable[[], float]) -> AsyncGenerator[tuple[Event, ...], None]:
        """Changes from revision `start` on. Items without events: the first says that the watch stands, later ones that the server still
        answers, which it is asked after `patience()` seconds of silence. Ends only by StoreError."""


def new_client() -> aiohttp.ClientSession:
    """For all etcds together. An idle connection of calls is closed soon: at rest each etcd costs the watch's socket alone."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0, socket_factory=_socket)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=4096)


class Etcd:
    """Implements Store, over the JSON gateway. Several endpoints: the next one after a failure."""

    def __init__(self, endpoint: str, client: aiohttp.ClientSession) -> None:
        """Raises ValueError where `endpoint` is no address."""
        endpoints = parse_endpoints(endpoint)
        self._rotation = Rotation(endpoints)
        self._client = client
        self._tls = TlsConfig().context() if any(each.tls for each in endpoints) else None
        self._checked: set[Endpoint] = set()

    async def revision(self, key: str) -> int:
        endpoint = self._rotation.current
        if endpoint not in self._checked:
            await self._check(endpoint)
        get = Get(KeyRange(key), keys_only=True)
        return wire.revision_of(await self._call(endpoint, "/v3/kv/range", wire.range_request(get)))

    async def txn(self, operations: Sequence[Operation]) -> TxnResult:
        wire.check_txn(operations)
        return wire.txn_result(await self._call(self._rotation.current, "/v3/kv/txn", wire.txn_request((), operations, ())))

    async def watch(self, keys: KeyRange, start: int, patience: Callable[[], float]) -> AsyncGenerator[tuple[Event, ...], None]:
        endpoint = self._rotation.current
        try:
            response = await self._open(endpoint, wire.watch_request([keys], [start]))
            try:
                stream = _Stream(self, endpoint, response, keys, start, patience)
                while True:
                    for events in await stream.next():
                        yield events
            finally:
                response.close()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failed(endpoint, error) from error
        except StoreError:
            self._rotation.failed(endpoint)
            raise

    async def ask_for_news(self, endpoint: Endpoint, keys: KeyRange, since: int) -> bool:
        """Whether that member knows of changes since that revision: a linearizable read, so a frozen or lonely one does not answer."""
        answer = await self._call(endpoint, "/v3/kv/txn", wire.news_request([keys], [since]))
        return any(wire.txn_result(answer).reads)

    async def _open(self, endpoint: Endpoint, body: bytes) -> aiohttp.ClientResponse:
        # has-leader: a member that lost its cluster ends the stream instead of falling silent.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        timeout = aiohttp.ClientTimeout(total=None)
        opening = self._client.post(f"{endpoint}/v3/watch", data=body, headers=headers, ssl=self._tls or True, timeout=timeout)
        async with asyncio.timeout(CALL_SECONDS):  # here and elsewhere not wait_for, which in Python 3.11 may forget a cancellation
            response = await opening
        if response.status == 200:
            return response
        try:
            async with asyncio.timeout(CALL_SECONDS):
                words = await response.read()
        finally:
            response.close()
        raise answers.http_error(response.status, _lower(response.headers), words)

    async def _check(self, endpoint: Endpoint) -> None:
        status, headers, body = await self._exchange(endpoint, "GET", "/version", b"")
        answers.check_version(status, headers, body)
        self._checked.add(endpoint)

    async def _call(self, endpoint: Endpoint, path: str, request: Json) -> Json:
        status, headers, body = await self._exchange(endpoint, "POST", path, wire.dump(request))
        try:
            return answers.parse_answer(status, headers, body)
        except (Unavailable, NotEtcd):
            self._rotation.failed(endpoint)
            raise

    async def _exchange(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers, timeout = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=CALL_SECONDS)
        sending = self._client.request(method, f"{endpoint}{path}", data=body, headers=headers, ssl=self._tls or True, timeout=timeout)
        try:
            async with sending as response:
                return response.status, _lower(response.headers), await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failed(endpoint, error) from error

    def _failed(self, endpoint: Endpoint, error: BaseException) -> StoreError:
        self._rotation.failed(endpoint)
        return _explained(endpoint, error)


class _Stream:
    """The messages of one watch, and a probe whenever it is silent."""

    def __init__(
        self,
        etcd: Etcd,
        endpoint: Endpoint,
        response: aiohttp.ClientResponse,
        keys: KeyRange,
        start: int,
        patience: Callable[[], float],
    ) -> None:
        self._etcd = etcd
        self._endpoint = endpoint
        self._content = response.content
        self._keys = keys
        self._next = start
        self._patience = patience
        self._rest = b""
        self._stands = False
        self._opened = time.monotonic()

    async def next(self) -> list[tuple[Event, ...]]:
        """Raises StoreError where the stream has ended, or is dead."""
        limit = self._patience() * random.uniform(0.8, 1.2) if self._stands else CALL_SECONDS  # noqa: S311 spreads load
        messages = await self._read(limit)
        if messages is None and self._stands:
            messages = await self._probe()
            if not messages:
                return [()]  # it answers, and there is nothing to tell
        events = [self._events(message) for message in messages or ()]
        if not self._stands and time.monotonic() - self._opened > CALL_SECONDS:
            raise Unavailable(f"{self._endpoint}: no watch within {CALL_SECONDS:g} s")
        return events

    async def _read(self, seconds: float) -> list[Json] | None:
        """What comes next; None: nothing within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                part = await self._content.readany()
        except TimeoutError:
            return None
        if not part:
            raise Unavailable(f"{self._endpoint}: the watch stream ended")
        *lines, self._rest = (self._rest + part).split(b"\n")
        return [answers.parse_answer(200, {}, line) for line in lines if line.strip()]

    async def _probe(self) -> list[Json]:
        """Raises Unavailable where the server does not answer, or knows of changes that the stream does not bring."""
        if not await self._etcd.ask_for_news(self._endpoint, self._keys, self._next):
            return []
        messages = await self._read(STALL_SECONDS)
        if not messages:
            raise Unavailable(f"{self._endpoint}: the watch does not bring what was written")
        return messages

    def _events(self, message: Json) -> tuple[Event, ...]:
        if message.get("canceled"):
            if message.get("compact_revision"):
                raise HistoryGone(f"{self._endpoint}: compacted up to revision {message['compact_revision']}")
            raise answers.cancel_error(message.get("cancel_reason", ""))
        self._stands = self._stands or bool(message.get("created"))
        events = tuple(wire.event(item) for item in message.get("events", ()))
        if events:
            self._next = events[-1].mod_revision + 1
        return events


def _socket(info: tuple[Any, ...]) -> socket.socket:
    """With keep-alive: a dead machine is noticed in about half a minute, without traffic of ours."""
    family, kind, protocol = info[0], info[1], info[2]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _explained(endpoint: Endpoint, error: BaseException) -> StoreError:
    """In words for people; aiohttp's own name no cause where a connection is refused."""
    match error:
        case TimeoutError():
            return Unavailable(f"{endpoint}: no answer within {CALL_SECONDS:g} s")
        case aiohttp.ClientConnectorCertificateError():
            return NotEtcd(f"{endpoint}: its certificate is not accepted: {error.certificate_error}")
        case aiohttp.ClientResponseError():
            return NotEtcd(f"{endpoint}: answers what is not HTTP: {error.message}")
        case aiohttp.ClientConnectorError() if error.os_error.errno and error.os_error.errno > 0:
            return Unavailable(f"{endpoint}: {os.strerror(error.os_error.errno)}")
        case aiohttp.ClientConnectorError():
            return Unavailable(f"{endpoint}: {error.os_error.strerror or error}")
        case _:
            return Unavailable(f"{endpoint}: {error or type(error).__name__}")
