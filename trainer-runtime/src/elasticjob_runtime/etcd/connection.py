"""One HTTP/1.1 connection: only what etcd's gateway needs, with a deadline for everything.

Why not http.client: it always imports ssl and email (4.6 MB and 24 ms for every agent), costs 110 us more CPU per call,
limits each read but not the call, and cannot resume a read that timed out, which a watch needs. Deadlines (`end`) are
values of time.monotonic().
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from elasticjob_runtime.etcd import sockets
from elasticjob_runtime.etcd.endpoints import Endpoint
from elasticjob_runtime.etcd.faults import AnswerLost, NotHttp, NotSent, TooLate, explain

if TYPE_CHECKING:
    import ssl

_HEAD_LIMIT = 65536
_BODY_LIMIT = 1 << 28
"""Bytes: a body or chunk that claims to be longer is invalid; etcd's own limit for messages is far lower."""
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_USER_AGENT = "elasticjob"


@dataclasses.dataclass(slots=True)
class Head:
    status: int
    headers: dict[str, str]
    length: int | None
    """Length of the body in bytes; None: chunked, or until the server closes the connection."""

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def keep_alive(self) -> bool:
        return "close" not in self.headers.get("connection", "").lower()


class Connection:
    """A connection that is opened once and then used by one thread at a time; other threads may only call `wake`."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self._context = context
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._chunk_left = 0
        self._chunk_open = False
        self._lock = threading.Lock()
        self._closed = False
        self._socket_timeout = 0.0
        """The socket's timeout in seconds; 0: not known."""
        self.reusable = False

    def open(self, end: float) -> None:
        """Raises NotSent, TlsRefused or NotHttp."""
        try:
            sockets.connect(self.endpoint.host, self.endpoint.port, end, self._use)
            if self._context is not None:
                self._handshake(self._context, end)
        except TimeoutError as error:
            self.close()
            raise TooLate("no connection within the deadline") from error
        except OSError as error:
            self.close()
            raise explain(error, NotSent) from error

    def _handshake(self, context: ssl.SSLContext, end: float) -> None:
        assert self._socket is not None
        wrapped = context.wrap_socket(self._socket, server_hostname=self.endpoint.host, do_handshake_on_connect=False)
        self._use(wrapped)
        wrapped.settimeout(max(0.001, end - time.monotonic()))
        try:
            wrapped.do_handshake()
        except TimeoutError:
            raise
        except OSError as error:
            explained = explain(error, NotSent)
            if isinstance(explained, NotSent):
                raise NotSent(
                    f"the TLS handshake broke off: {explained} (if it speaks no TLS: protocol=http)"
                ) from error
            raise explained from error

    def _use(self, sock: socket.socket) -> None:
        with self._lock:
            if self._closed:
                sock.close()
                raise ConnectionAbortedError("the client was closed")
            self._socket = sock

    def close(self) -> None:
        """Closes the connection. Called by the thread that uses it."""
        self.wake()
        if self._socket is not None:
            self._socket.close()

    def wake(self) -> None:
        """Makes the thread that connects or reads fail at once; that thread then closes the connection. Called by any
        thread."""
        with self._lock:
            self._closed = True
            sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown, which drops the TLS state that the reading thread still uses.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def is_stale(self) -> bool:
        """Whether the server has closed the idle connection, or has sent data without a request."""
        if self._socket is None or self._closed or self._buffer:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, method: str, path: str, body: bytes, headers: str, end: float) -> None:
        """Sends a request. `headers`: further header lines, each ending in CRLF. Raises NotSent: etcd never acts on
        part of a request."""
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.endpoint.authority}\r\nUser-Agent: {_USER_AGENT}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        ).encode("latin-1") + body
        self.reusable = False
        try:
            while request:
                sock = self._ready(end)
                with contextlib.suppress(TimeoutError):  # `_ready` raises it once `end` has passed
                    request = request[sock.send(request) :]
        except TimeoutError as error:
            raise TooLate("the request could not be sent within the deadline") from error
        except OSError as error:
            raise explain(self._tls_alert() or error, NotSent) from error

    def _tls_alert(self) -> OSError | None:
        """The TLS alert with which the server closed the connection, if there is one. In TLS 1.3, the server rejects a
        certificate only after the handshake, and may close before the client writes."""
        if self._context is None or self._socket is None:
            return None
        try:
            self._socket.settimeout(0.1)
            self._socket.recv(1)
        except OSError as error:
            return error if "ALERT" in (getattr(error, "reason", None) or "") else None
        return None

    def read_head(self, end: float) -> Head:
        """Raises AnswerLost, NotHttp or TlsRefused."""
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at < 0:
                if len(self._buffer) > _HEAD_LIMIT or not b"HTTP/1."[: len(self._buffer)] == bytes(self._buffer[:7]):
                    raise NotHttp(f"answers {_quote(self._buffer)}, which is not HTTP")
                self._fill(end)
                continue
            head = _parse_head(bytes(self._buffer[:at]))
            del self._buffer[: at + 4]
            if head.status >= 200:
                self._chunk_left, self._chunk_open = 0, head.chunked
                return head

    def read_body(self, head: Head, end: float) -> bytes:
        """Reads the whole body; afterwards, `reusable` says whether the connection may be used again. Raises
        AnswerLost."""
        if head.chunked:
            body = self._read_chunks(end)
        elif head.length is not None:
            while len(self._buffer) < head.length:
                self._fill(end)
            body = bytes(self._buffer[: head.length])
            del self._buffer[: head.length]
        else:
            return self._read_to_end(end)
        self.reusable = head.keep_alive and not self._closed
        return body

    def _read_chunks(self, end: float) -> bytes:
        parts = []
        try:
            while part := self.read_part(end):
                parts.append(part)
        except TimeoutError as error:  # no caller resumes reading this body
            raise AnswerLost("no whole answer within the deadline") from error
        return b"".join(parts)

    def _read_to_end(self, end: float) -> bytes:
        try:
            while True:
                self._fill(end)
        except AnswerLost:
            return bytes(self._buffer)

    def read_part(self, end: float) -> bytes:
        """Returns the part of a chunked body that is available; empty when the body has ended.

        Raises TimeoutError if nothing comes until `end`; the next call continues where this one stopped. Raises
        AnswerLost.
        """
        while self._chunk_open:
            if self._chunk_left:
                if not self._buffer:
                    self._fill(end, resumable=True)
                part = bytes(self._buffer[: self._chunk_left])
                del self._buffer[: len(part)]
                self._chunk_left -= len(part)
                return part
            self._next_chunk(end)
        return b""

    def _next_chunk(self, end: float) -> None:
        """Reads a chunk's size, and after the last chunk the trailers. The CRLF that ends a chunk's data is read with
        the next size."""
        start = 2 if self._buffer.startswith(b"\r\n") else 0
        at = self._buffer.find(b"\r\n", start)
        if at < 0 or self._buffer == b"\r\n":
            self._fill_head(end)
            return
        match = _CHUNK_SIZE.fullmatch(self._buffer[start:at].split(b";")[0].strip(b" \t"))
        size = int(match[0], 16) if match else _BODY_LIMIT
        if size >= _BODY_LIMIT:
            raise AnswerLost(f"the answer is garbled: {_quote(self._buffer)} where a chunk should start")
        if size:
            del self._buffer[: at + 2]
            self._chunk_left = size
            return
        stop = self._buffer.find(b"\r\n\r\n", at)
        if stop < 0:
            self._fill_head(end)
            return
        del self._buffer[: stop + 4]
        self._chunk_open = False

    def _fill_head(self, end: float) -> None:
        """Reads more of a chunk's size or of the trailers, which are short. Raises the errors of `read_part`."""
        if len(self._buffer) > _HEAD_LIMIT:
            raise AnswerLost(f"the answer is garbled: {_quote(self._buffer)} is too long")
        self._fill(end, resumable=True)

    def _ready(self, end: float) -> socket.socket:
        """The socket, with a timeout of at most the time left until `end`. Callers retry if the socket times out before
        `end`: setting its timeout costs a system call and a switch of threads, so one timeout serves several reads.
        Raises TimeoutError when `end` has passed."""
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._socket is None or self._closed:
            raise ConnectionAbortedError("the connection was closed")
        if not left / 2 <= self._socket_timeout <= left:
            self._socket_timeout = left * 0.75
            self._socket.settimeout(self._socket_timeout)
        return self._socket

    def _receive(self, end: float) -> bytes:
        """Raises TimeoutError, OSError."""
        while True:
            sock = self._ready(end)
            with contextlib.suppress(TimeoutError):  # `_ready` raises it once `end` has passed
                return sock.recv(65536)

    def _fill(self, end: float, *, resumable: bool = False) -> None:
        try:
            data = self._receive(end)
        except TimeoutError as error:
            if resumable:
                raise
            raise AnswerLost("no answer within the deadline") from error
        except OSError as error:
            raise explain(error, AnswerLost) from error
        if not data:
            raise AnswerLost("the connection was closed before the answer was complete")
        self._buffer += data


def _parse_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    numbers = length or "0", rest[:3]
    if not (
        version.startswith("HTTP/1.") and all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers)
    ):
        raise NotHttp(f"answers {_quote(raw)}, which is not HTTP")
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Head(int(rest[:3]), headers, int(length) if length else None)


def _quote(data: bytes | bytearray) -> str:
    return repr(bytes(data[:60]))[1:]
