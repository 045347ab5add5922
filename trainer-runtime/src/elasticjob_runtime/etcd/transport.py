"""Calls over several endpoints: rotation, deadlines, login, version check, and a pool of connections kept alive."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from elasticjob_runtime.etcd import protocol, responses
from elasticjob_runtime.etcd.auth import TokenCache
from elasticjob_runtime.etcd.connection import Connection
from elasticjob_runtime.etcd.endpoints import Endpoint, Rotation
from elasticjob_runtime.etcd.faults import AnswerLost, NoTime, TransportError, Unsent, Untrusted, store_error
from elasticjob_runtime.etcd.interface import Denied, NotEtcd, StoreError, Unavailable

if TYPE_CHECKING:
    import ssl

_IDLE_CONNECTIONS = 4
_SHORTEST_ATTEMPT = 0.5
T = TypeVar("T")
_LOGIN_PATH = "/v3/auth/authenticate"


class Transport:
    """Thread-safe. `sibling()` returns a transport with separate connections that shares everything else."""

    def __init__(self, endpoints: Rotation, context: ssl.SSLContext | None, tokens: TokenCache) -> None:
        self.rotation = endpoints
        self._context = context
        self._tokens = tokens
        self._checked: set[Endpoint] = set()
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._used: set[Connection] = set()
        self._closed = False

    def sibling(self) -> Transport:
        other = Transport(self.rotation, self._context, self._tokens)
        other._checked = self._checked
        return other

    def call(
        self, path: str, request: protocol.Json, timeout: float, *, idempotent: bool, attempt: float = float("inf")
    ) -> protocol.Json:
        """Makes one call to whichever endpoint answers within `timeout` seconds; `attempt` limits the seconds for each
        endpoint.

        A call that is not idempotent is sent again only if it certainly had no effect. Raises StoreError.
        """
        body = protocol.dump(request)
        end = time.monotonic() + timeout
        faults: dict[Endpoint, StoreError] = {}
        failures = 0
        while True:
            endpoint = self.rotation.current
            untried = max(1, len(self.rotation) - len(faults))
            share = max((end - time.monotonic()) / untried, _SHORTEST_ATTEMPT)
            attempt_end = min(end, time.monotonic() + min(share, attempt))
            try:
                return self.call_at(
                    endpoint, path, body, attempt_end, None if idempotent else end, idempotent=idempotent
                )
            except (Unavailable, NotEtcd, Untrusted) as error:
                self.rotation.failed(endpoint)
                if endpoint not in faults or not isinstance(error, NoTime):
                    faults[endpoint] = error
                if not idempotent and not isinstance(error, Unsent | Untrusted) and endpoint in self._checked:
                    raise type(error)(f"{endpoint}: {error}; the write may have happened") from error
            failures += 1
            final = self._final_error(faults)
            pause = pause_before(failures, len(self.rotation))
            if final is not None:
                raise final
            if time.monotonic() + pause >= end:
                raise Unavailable(f"no etcd answered within {timeout:g} s: {summary(faults)}")
            time.sleep(pause)

    def _final_error(self, faults: dict[Endpoint, StoreError]) -> StoreError | None:
        """The error if retrying is useless: the client is closed, or no endpoint can ever serve it."""
        if self._closed:
            return Unavailable("the etcd client was closed")
        if len(faults) < len(self.rotation) or any(isinstance(error, Unavailable) for error in faults.values()):
            return None
        kind = NotEtcd if any(isinstance(error, NotEtcd) for error in faults.values()) else Denied
        return kind(summary(faults))

    def call_at(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        end: float,
        answer_end: float | None = None,
        *,
        idempotent: bool = False,
    ) -> protocol.Json:
        """Makes one attempt at one endpoint: the request must be sent by `end`, and the answer must arrive by
        `answer_end`. Raises StoreError.

        No write and no password is sent to an endpoint that is not known to be a supported etcd. Before an idempotent
        call, no check is needed: its answer is the check.
        """
        answer_end = end if answer_end is None else answer_end

        def attempt(token: str) -> protocol.Json:
            with _Borrowed(self, endpoint, end, check=not idempotent) as connection:
                return _exchange(connection, path, body, token, end, answer_end)

        if endpoint in self._checked or not idempotent:
            return self.with_token(endpoint, end, attempt)
        try:
            answer = self.with_token(endpoint, end, attempt)
            responses.check_header(answer)
        except NotEtcd:
            self.release(self.open_stream(endpoint, end))  # its check reports what it is instead, or the etcd version
            raise
        except Unavailable as error:
            if not isinstance(error.__cause__, AnswerLost):
                raise
            raise Unavailable(f"{error}{_hint(endpoint)}") from error
        self._checked.add(endpoint)
        return answer

    def forget_token(self, token: str) -> None:
        self._tokens.forget(token)

    def with_token(self, endpoint: Endpoint, end: float, attempt: Callable[[str], T]) -> T:
        """Logs in if needed, and again (at most twice) if the server no longer knows the token."""

        def login(user: str, password: str) -> str:
            with _Borrowed(self, endpoint, end) as connection:
                body = protocol.dump({"name": user, "password": password})
                try:
                    return protocol.token_of(_exchange(connection, _LOGIN_PATH, body, "", end, end))
                except AnswerLost as error:
                    raise Unsent(str(error)) from error
                except Unavailable as error:
                    raise Unsent(str(error)) from error
                except Denied as error:
                    raise Denied(f"user {user!r}: {error}") from error

        for last in (False, False, True):
            token = self._tokens.token(login, end - time.monotonic())
            try:
                return attempt(token)
            except responses.TokenRefused as error:
                if not self._tokens.has_credentials:
                    raise Denied(f"{endpoint}: etcd wants a user and a password ({error})") from error
                self._tokens.forget(token)
                if last:
                    raise Denied(f"{endpoint}: {error}") from error
        raise AssertionError

    def open_stream(self, endpoint: Endpoint, end: float, *, check: bool = True) -> Connection:
        """Opens a new connection, which the caller returns with `release`. With `check`, the endpoint is checked to be
        a supported etcd."""
        connection = Connection(endpoint, self._context if endpoint.tls else None)
        with self._lock:
            if self._closed:
                raise Unavailable("the etcd client was closed")
            self._used.add(connection)
        try:
            connection.open(end)
            if check and endpoint not in self._checked:
                self._check(connection, end)
                if not connection.reusable:  # a proxy closes after each answer
                    self.release(connection)
                    return self.open_stream(endpoint, end)
        except TransportError as error:
            self.release(connection)
            raise store_error(error) from error
        except StoreError:
            self.release(connection)
            raise
        return connection

    def _check(self, connection: Connection, end: float) -> None:
        """Checks that the endpoint is a supported etcd; done at most once per endpoint."""
        try:
            connection.send("GET", "/version", b"", "", end)
            head = connection.read_head(end)
            responses.check_version(head.status, head.headers, connection.read_body(head, end))
        except AnswerLost as error:
            raise Unsent(f"{error}{_hint(connection.endpoint)}") from error
        except Unavailable as error:
            raise Unsent(str(error)) from error
        self._checked.add(connection.endpoint)

    def borrow(self, endpoint: Endpoint, end: float, *, check: bool = True) -> Connection:
        with self._lock:
            idle = self._idle.get(endpoint, [])
            while idle:
                connection = idle.pop()
                if connection.is_stale():
                    connection.close()
                    continue
                self._used.add(connection)
                return connection
        return self.open_stream(endpoint, end, check=check)

    def release(self, connection: Connection) -> None:
        """Returns a connection to the pool if it may be used again, else closes it."""
        with self._lock:
            self._used.discard(connection)
            idle = self._idle.setdefault(connection.endpoint, [])
            if connection.reusable and not self._closed and len(idle) < _IDLE_CONNECTIONS:
                idle.append(connection)
                return
        connection.close()

    def drop_idle(self, endpoint: Endpoint) -> None:
        """Closes the idle connections of an endpoint that has failed."""
        with self._lock:
            dropped = self._idle.pop(endpoint, [])
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Closes idle connections, and wakes every thread that waits for an answer."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
            used = list(self._used)
        for connection in idle:
            connection.close()
        for connection in used:
            connection.wake()


class _Borrowed:
    """A pooled connection for one exchange; turns any TransportError into a StoreError."""

    def __init__(self, transport: Transport, endpoint: Endpoint, end: float, *, check: bool = True) -> None:
        self._transport = transport
        self._connection = transport.borrow(endpoint, end, check=check)

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transport.release(self._connection)
        if isinstance(error, TransportError):
            self._transport.drop_idle(self._connection.endpoint)
            raise store_error(error) from error


def _exchange(
    connection: Connection, path: str, body: bytes, token: str, end: float, answer_end: float
) -> protocol.Json:
    connection.send("POST", path, body, f"Authorization: {token}\r\n" if token else "", end)
    head = connection.read_head(answer_end)
    return responses.parse_answer(head.status, head.headers, connection.read_body(head, answer_end))


def _hint(endpoint: Endpoint) -> str:
    return "" if endpoint.tls else " (if it wants TLS: protocol=https)"


def summary(faults: dict[Endpoint, StoreError]) -> str:
    return "; ".join(f"{endpoint}: {error}" for endpoint, error in faults.items())


def pause_before(failures: int, endpoints: int) -> float:
    """Seconds before the next attempt: 0 until every endpoint has been tried, then 0.05 doubling up to 0.5, with
    jitter."""
    rounds, rest = divmod(failures, endpoints)
    if rest or not rounds:
        return 0.0
    return min(0.5, 0.05 * 2.0 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
