"""Requests to the API server: dicts in, dicts out, over aiohttp, with the credentials and TLS of `kubernetes.aio`.

The methods of the official client are not used: the same call costs five times the CPU.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from kubernetes.aio.client import ApiClient

from elasticjob_operator import metrics
from elasticjob_operator.kube.bounded import parse

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

REQUEST_SECONDS = 35.0
"""Longer than the longest timeout of a webhook, so that the API server's error arrives."""
KEEP_ALIVE_SECONDS = 60.0
"""A burst of requests must not start with one TLS handshake each. The API server closes idle connections after 90 s."""
BUSY_RETRIES = 6
LONGEST_RETRY_AFTER = 30.0
FAULT_RETRIES, FIRST_FAULT_WAIT = 2, 0.1
"""After a 5xx without Retry-After: a momentary fault of the server must not fail the reconciliation."""
SLOW_FAULT_SECONDS = 3.0
PAGE_BYTES, MOST_BYTES = 4 << 20, 32 << 20
"""The longest response to a list, unless it is one object, and to any request. A byte of JSON takes up to 20 parsed."""

Json = dict[str, Any]


class ApiError(Exception):
    """The API server returned an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"HTTP status {status}")
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """404"""


class ConflictError(ApiError):
    """409"""


class GoneError(ApiError):
    """410"""


class RejectedError(ApiError):
    """400, 401, 403, 405, 413, 422 ...: an immediate retry is of no use."""


class NamespaceTerminatingError(RejectedError):
    """The namespace is being terminated or deleted: nothing can be created in it."""


class RequestTimeoutError(ConnectionError):
    """The request was sent, and no response came in time."""


class TooLargeError(ConnectionError):
    """The response is longer than what is read."""


class NotLeaderError(ConnectionError):
    """This operator lost the leader election and must not write."""


NOT_LEADER = "not sent: this operator is no longer the leader"


def _checked_requests(may_write: Callable[[], bool]) -> type[aiohttp.ClientRequest]:
    """Requests with a body that check `may_write` when nothing but the write to the socket is left: a process may be
    frozen while it waits for a connection."""

    class Request(aiohttp.ClientRequest):
        async def write_bytes(
            self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
        ) -> None:
            if may_write() or conn.protocol is None:
                await super().write_bytes(writer, conn, content_length)
            else:  # the headers are sent together with the body
                conn.protocol.set_exception(NotLeaderError(NOT_LEADER))

    return Request


class KubeClient:
    """Concurrent requests, bounded by a connection pool. Watches are outside the pool: those of many namespaces would
    exhaust it. `may_write` is checked before every request but GET, and again when a connection is free for it."""

    def __init__(self, client: ApiClient, may_write: Callable[[], bool] = lambda: True) -> None:
        self._client = client
        self._configuration = client.configuration
        self._may_write = may_write
        self._session = self._new_session(self._configuration.connection_pool_maxsize)
        self._watches = self._new_session(0)

    def _new_session(self, limit: int) -> aiohttp.ClientSession:
        pool = aiohttp.TCPConnector(
            limit=limit, ssl=self._client.rest_client.ssl_context, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        return aiohttp.ClientSession(
            connector=pool, cookie_jar=aiohttp.DummyCookieJar(), request_class=_checked_requests(self._may_write)
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        most: int = MOST_BYTES,
    ) -> Json:
        """Returns the response's object. Retries while the server is overloaded (429, or 5xx with Retry-After) or
        fails. `most`: bytes that are read; a longer response is a TooLargeError.

        Raises ApiError or ConnectionError.
        """
        for attempt in range(BUSY_RETRIES + 1):
            began = time.monotonic()
            response = await self._send(
                method, path, query, body, content_type, accept, aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            )
            try:
                data = await _read(response, most)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _no_answer(method, path, error) from error
            if response.status < 300:
                return json_object(data) if data else {}
            delay = _retry_after(response, attempt, time.monotonic() - began)
            if delay is None or attempt == BUSY_RETRIES:
                raise _error(response.status, data)
            await asyncio.sleep(delay)
        raise AssertionError("unreachable")

    async def pages(
        self, path: str, query: Mapping[str, str], *, size: int, accept: str = "application/json"
    ) -> AsyncIterator[Json]:
        """All pages of a list at one resourceVersion. Raises ApiError (GoneError) or ConnectionError."""
        token: dict[str, str] = {}
        read = size
        while True:
            page, read = await self.page(path, {**query, **token}, size=min(size, 2 * read), accept=accept)
            token = {"continue": page.get("metadata", {}).get("continue")}
            yield page
            del page  # not two at once
            if not token["continue"]:
                return

    async def page(
        self, path: str, query: Mapping[str, str], *, size: int, accept: str = "application/json"
    ) -> tuple[Json, int]:
        """A page of a list, and how many objects it may have: `size`, or fewer where they are large."""
        while True:
            try:
                most = PAGE_BYTES if size > 1 else MOST_BYTES
                query = {**query, "limit": str(size)}
                return await self.request("GET", path, query=query, accept=accept, most=most), size
            except TooLargeError:
                if size == 1:
                    raise
                size = max(1, size // 4)

    async def stream(self, path: str, query: Mapping[str, str], *, silence: float) -> aiohttp.ClientResponse:
        """A watch's response, to be read line by line and closed. `silence`: seconds without a byte after which reading
        fails.

        Raises ApiError or ConnectionError.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=silence)
        response = await self.open(path, query, timeout)
        if response.status >= 300:
            try:
                raise _error(response.status, await response.read())
            finally:
                response.close()
        return response

    async def open(self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """A watch's response, also one with an error. Raises ConnectionError."""
        return await self._send(
            "GET", path, query, None, "application/json", "application/json", timeout, self._watches
        )

    async def close(self) -> None:
        await self._session.close()
        await self._watches.close()
        await self._client.close()  # type: ignore[no-untyped-call]

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
        session: aiohttp.ClientSession | None = None,
    ) -> aiohttp.ClientResponse:
        if method != "GET" and not self._may_write():
            raise NotLeaderError(f"{method} {path}: {NOT_LEADER}")
        configuration = self._configuration
        headers = {"Accept": accept, "Content-Type": content_type}
        if token := await configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        try:
            response = await (session or self._session).request(
                method,
                configuration.host + path + (f"?{urlencode(query)}" if query else ""),
                data=orjson.dumps(body) if body is not None else None,
                headers=headers,
                timeout=timeout,
                proxy=configuration.proxy,
                proxy_headers=configuration.proxy_headers,
                server_hostname=configuration.tls_server_name,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error.__cause__, NotLeaderError):
                raise NotLeaderError(f"{method} {path}: {error.__cause__}") from error
            metrics.count_request(method, path, query or {}, 0)
            raise _no_answer(method, path, error) from error
        metrics.count_request(method, path, query or {}, response.status)
        return response


def _no_answer(method: str, path: str, error: Exception) -> ConnectionError:
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
        hint = "" if method == "GET" else ": an admission webhook may hang"
        return RequestTimeoutError(f"{method} {path}: no answer within {REQUEST_SECONDS:.0f} s{hint}")
    return ConnectionError(f"{method} {path}: {error or type(error).__name__}")


def _retry_after(response: aiohttp.ClientResponse, attempt: int, took: float) -> float | None:
    """Seconds until the retry; None: do not retry. All our writes are idempotent: each has an object name or a UID.

    `took`: duration of the request, s. A slow failure, such as a hanging webhook, would take as long again.
    """
    header = response.headers.get("Retry-After", "")
    if response.status == 429 or (response.status >= 500 and header):
        seconds = float(header) if header.isdigit() else 1.0
        return min(seconds, LONGEST_RETRY_AFTER) * random.uniform(1.0, 1.25)  # noqa: S311 spreads load
    if response.status >= 500 and attempt < FAULT_RETRIES and took < SLOW_FAULT_SECONDS:
        return FIRST_FAULT_WAIT * 2.0**attempt * random.uniform(0.75, 1.25)  # noqa: S311 spreads load
    return None


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > most:
            response.close()
            raise TooLargeError(f"{response.method} {response.url.path}: more than {most:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def json_lines(content: aiohttp.StreamReader) -> AsyncIterator[Json]:
    """The events of a watch: one JSON object per line. Raises ConnectionError."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MOST_BYTES:
            raise TooLargeError(f"an event of more than {MOST_BYTES:,} bytes")
        for line in lines:
            if line.strip():
                yield json_object(line)


def json_object(data: bytes) -> Json:
    """Raises ConnectionError: a proxy may respond with a page of its own."""
    try:
        found = parse(data)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ConnectionError(f"not a response of the API server: {data[:100].decode(errors='replace')}")
    return found


def _error(status: int, data: bytes) -> ApiError:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        said = {"message": data[:500].decode(errors="replace")}
    return error_of(status, said if isinstance(said, dict) else {})


def error_of(status: int, said: Mapping[str, Any]) -> ApiError:
    """From a metav1.Status."""
    if _namespace_terminating(status, said.get("details") or {}):
        return NamespaceTerminatingError(status, str(said.get("reason", "")), str(said.get("message", "")))
    special: dict[int, type[ApiError]] = {404: NotFoundError, 409: ConflictError, 410: GoneError}
    kind = special.get(status, RejectedError if 400 <= status < 500 and status != 429 else ApiError)
    return kind(status, str(said.get("reason", "")), str(said.get("message", "")))


def _namespace_terminating(status: int, details: Mapping[str, Any]) -> bool:
    """403 with the cause NamespaceTerminating; 404 about the namespace itself once it is gone."""
    terminating = any(cause.get("reason") == "NamespaceTerminating" for cause in details.get("causes") or [])
    return (status == 403 and terminating) or (status == 404 and details.get("kind") == "namespaces")
