"""One HTTP/1.1 connection: just what etcd's gateway needs, with a deadline on everything.

Why not http.client: it always imports ssl and email (4.6 MB and 24 ms that every agent would pay), costs 110 us more
CPU a call, bounds each read but not the call, and a read that timed out cannot be taken up again, which a watch needs.
Deadlines (`end`): time.monotonic().
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

if TYPE_CHECKING:
    import ssl

_HEAD_LIMIT = 65536
_BODY_LIMIT = 1 << 28
"""Bytes of a body, or of a chunk, that are believed: etcd's own limit for what it sends is far below."""
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_USER_AGENT = "elasticjob"


class TransportError(Exception):
    """What went wrong on the way; the message is one clause without the endpoint."""


class NotSent(TransportError):
    """The request did not leave whole, so nothing has happened: it may be sent again, even if it writes."""


class TooLate(NotSent):
    """The deadline passed before the request could be sent."""


class AnswerLost(TransportError):
    """The request was sent, and no whole answer came."""


class NotHttp(TransportError):
    """What answered does not speak HTTP/1.1."""


class TlsRefused(TransportError):
    """One side does not accept the other's certificate."""


@dataclasses.dataclass(slots=True)
class Head:
    status: int
    headers: dict[str, str]
    length: int | None
    """Of the body in bytes; None: chunked, or until the end of the connection."""

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def keep_alive(self) -> bool:
        return "close" not in self.headers.get("connection", "").lower()


class Connection:
    """Opened, then used by one thread at a time; others may only `wake` it."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self._context = context
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._chunk_left = 0
        self._chunk_open = False
        self._lock = threading.Lock()
        self._closed = False
        self._patience = 0.0
        """The socket's timeout, s; 0: not known."""
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
            raise _explain(error, NotSent) from error

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
            explained = _explain(error, NotSent)
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
        """Called by the thread that uses the connection."""
        self.wake()
        if self._socket is not None:
            self._socket.close()

    def wake(self) -> None:
        """Called by any thread: makes the one that connects or reads here fail at once, and it closes the connection
        then."""
        with self._lock:
            self._closed = True
            sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown: that would drop the TLS state under the reading thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def is_stale(self) -> bool:
        """Whether the server has closed the idle connection (or sent what nobody asked for)."""
        if self._socket is None or self._closed or self._buffer:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, method: str, path: str, body: bytes, headers: str, end: float) -> None:
        """`headers`: further header lines, each ending in CRLF. Raises NotSent: etcd never acts on a part of a
        request."""
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.endpoint.authority}\r\nUser-Agent: {_USER_AGENT}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        ).encode("latin-1") + body
        self.reusable = False
        try:
            while request:
                sock = self._ready(end)
                with contextlib.suppress(TimeoutError):  # the deadline's is raised by `_ready`
                    request = request[sock.send(request) :]
        except TimeoutError as error:
            raise TooLate("the request could not be sent within the deadline") from error
        except OSError as error:
            raise _explain(self._last_word() or error, NotSent) from error

    def _last_word(self) -> OSError | None:
        """Why the server has closed. In TLS 1.3 it refuses a certificate only after the handshake, and may be gone
        before we write."""
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
        """The whole body; afterwards `reusable` says whether the connection may be used again. Raises AnswerLost."""
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
        except TimeoutError as error:  # nobody takes this body up again
            raise AnswerLost("no whole answer within the deadline") from error
        return b"".join(parts)

    def _read_to_end(self, end: float) -> bytes:
        try:
            while True:
                self._fill(end)
        except AnswerLost:
            return bytes(self._buffer)

    def read_part(self, end: float) -> bytes:
        """What there is of a chunked body; empty when it has ended.

        Raises TimeoutError when nothing came until `end`; the next call goes on where this one stopped. Raises
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
        """Reads a chunk's size; the last one is followed by trailers. The CRLF that ends a chunk's data is read with
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
        """More of a chunk's size or of the trailers, which are short. Raises as `read_part` does."""
        if len(self._buffer) > _HEAD_LIMIT:
            raise AnswerLost(f"the answer is garbled: {_quote(self._buffer)} goes on for too long")
        self._fill(end, resumable=True)

    def _ready(self, end: float) -> socket.socket:
        """The socket, to be used until `end` at the latest: its own timeout may end before, and is no reason to give up
        then. (To set it costs a call of the system each time, and a thread's turn: one does for several.) Raises
        TimeoutError."""
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._socket is None or self._closed:
            raise ConnectionAbortedError("the connection was closed")
        if not left / 2 <= self._patience <= left:
            self._patience = left * 0.75
            self._socket.settimeout(self._patience)
        return self._socket

    def _receive(self, end: float) -> bytes:
        """Raises TimeoutError, OSError."""
        while True:
            sock = self._ready(end)
            with contextlib.suppress(TimeoutError):  # the deadline's is raised by `_ready`
                return sock.recv(65536)

    def _fill(self, end: float, *, resumable: bool = False) -> None:
        try:
            data = self._receive(end)
        except TimeoutError as error:
            if resumable:
                raise
            raise AnswerLost("no answer within the deadline") from error
        except OSError as error:
            raise _explain(error, AnswerLost) from error
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


def _explain(error: OSError, usual: type[TransportError]) -> TransportError:
    """Tells a refused certificate and a server without TLS from a broken connection, without importing ssl."""
    if message := getattr(error, "verify_message", ""):
        return TlsRefused(f"its certificate is not accepted: {message}")
    reason = getattr(error, "reason", None) or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return TlsRefused(f"it does not accept our client certificate, or wants one (cert, key): {reason}")
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}:
        return NotHttp("does not speak TLS; is protocol=https right?")
    return usual(error.strerror or str(error) or type(error).__name__)
