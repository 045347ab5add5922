"""One HTTP/1.1 connection to an untrusted endpoint: the part of HTTP that etcd's gateway uses, with a bound on
everything.

Not aiohttp's client: by default it decompresses and follows redirects, accepts any number of interim responses, and
keeps reading, unbounded, from idle connections. Here nothing is decompressed, followed or guessed; anything but a plain
response is an error.

    head      `MAX_HEAD`, including interim responses; beyond that the connection is closed
    body      `MAX_MESSAGE`, of which the part beyond `SMALL_MESSAGE` comes from the shared `MemoryPool`
    unread    twice `_LIMIT` plus what the kernel returns at once; beyond that the socket is not read
    time      set by the caller, around every call
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import dataclasses
import socket
import ssl

from elasticjob_runtime.etcd import Endpoint

from elasticjob_operator.etcd.limits import MAX_HEAD, MAX_MESSAGE, LimitExceeded, MemoryPool
from elasticjob_operator.etcd.name_resolution import Resolver

_LIMIT = MAX_HEAD
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024
"""Buffer of each TLS connection, bytes: one TLS record. asyncio's own 256 KiB, for each of a thousand etcds, would take
most of the operator's memory limit: 298 KiB per connection instead of 58."""
_RECEIVED_AT_ONCE = 64 * 1024
"""The kernel's buffer, bytes: asyncio reads all of it at once."""
_PIECE = 64 * 1024
_TURN = 100
"""Number of pieces after which other tasks run."""
_NEXT_ADDRESS_SECONDS = 0.75
"""With several addresses: how long to wait for one before trying the next, s."""


class NotHttp(Exception):
    """The peer does not speak HTTP/1.1 as etcd does. The message is one clause."""


class ConnectionClosed(Exception):
    """The connection was closed before the response was complete."""


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    status: int
    length: int | None
    """Of the body, bytes; None: chunked, or until the connection ends."""
    chunked: bool
    keeps: bool
    """The connection may be reused."""


class HttpConnection:
    """Used by one task at a time. Raises NotHttp, ConnectionClosed, LimitExceeded, OSError and ssl.SSLError, and is
    closed then."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoint: Endpoint, pool: MemoryPool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._endpoint = endpoint
        self._pool = pool
        self._chunk_left = 0
        self._ended = True
        self._cut = False

    @classmethod
    async def open(
        cls, endpoint: Endpoint, tls: ssl.SSLContext | None, pool: MemoryPool, resolver: Resolver
    ) -> HttpConnection:
        """Tries the host's addresses in order."""
        failure: OSError = OSError("the name has no address")
        addresses = await resolver.addresses(endpoint.host, endpoint.port)
        for family, address in addresses:
            seconds = None if (family, address) == addresses[-1] else _NEXT_ADDRESS_SECONDS
            try:
                async with asyncio.timeout(seconds):
                    return await cls._open_at(family, address, endpoint, tls, pool)
            except ssl.SSLError:
                raise
            except OSError as error:  # a TimeoutError is one
                failure = error
        raise failure

    @classmethod
    async def _open_at(
        cls, family: int, address: tuple[str, int], endpoint: Endpoint, tls: ssl.SSLContext | None, pool: MemoryPool
    ) -> HttpConnection:
        made = new_socket(family)
        try:
            await asyncio.get_running_loop().sock_connect(made, address)
            name = endpoint.host if tls else None
            reader, writer = await asyncio.open_connection(sock=made, ssl=tls, server_hostname=name, limit=_LIMIT)
        except BaseException:
            made.close()
            raise
        return cls(reader, writer, endpoint, pool)

    @property
    def usable(self) -> bool:
        """Whether it can be reused: the server has not closed it and has sent nothing unrequested."""
        return self._ended and not self._writer.is_closing() and not self._reader.at_eof() and not self._reader._buffer  # type: ignore[attr-defined]

    def close(self) -> None:
        self._pool.release(self)
        with contextlib.suppress(Exception):
            self._writer.transport.abort()  # not close(): a peer that does not read must not keep it open

    def cut(self) -> None:
        """Called by the pool when this connection has held memory for too long."""
        self._cut = True
        self.close()

    def hold(self, amount: int) -> None:
        """Accounts for `amount` bytes held by this connection's user. Raises LimitExceeded."""
        if self._cut:
            raise LimitExceeded("takes too long over a large message")
        if amount > MAX_MESSAGE:
            raise LimitExceeded(f"sends a message of more than {MAX_MESSAGE >> 20} MiB")
        self._pool.hold(self, amount)

    async def send(self, method: str, path: str, body: bytes, more: str = "") -> None:
        """`more`: further header lines, each ending in CRLF."""
        self._ended = False
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._endpoint.authority}\r\nUser-Agent: elasticjob-operator\r\n"
            f"Accept-Encoding: identity\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        self._writer.write(head.encode("latin-1") + body)
        try:
            await self._writer.drain()
        except ssl.SSLError:
            raise
        except OSError as error:
            raise ConnectionClosed(error.strerror or "the connection was closed") from error

    async def tls_alert(self) -> None:
        """Reads until the server closes the connection, on which nothing was sent. Raises its alert as ssl.SSLError."""
        with contextlib.suppress(ConnectionError):
            await self._reader.read(1)

    async def read_head(self) -> Head:
        """Interim responses (1xx) are skipped, within the bound of one head."""
        left = MAX_HEAD
        while True:
            raw = await self._until(b"\r\n\r\n", head=True)
            left -= len(raw)
            if left < 0:
                raise LimitExceeded(f"sends headers of more than {MAX_HEAD >> 10} KiB")
            head = parse_head(raw[:-4])
            if head.status >= 200:
                self._chunk_left = 0
                return head

    async def read_body(self, head: Head) -> bytearray:
        """All of it."""
        body = bytearray()
        if head.length is not None:
            if head.length > MAX_MESSAGE:
                raise LimitExceeded(f"sends a response of more than {MAX_MESSAGE >> 20} MiB")
            while len(body) < head.length:
                body += await self._read(min(_PIECE, head.length - len(body)))
                self.hold(len(body))
        elif head.chunked:
            pieces = 0
            while piece := await self.read_piece():
                body += piece
                self.hold(len(body))
                pieces += 1
                if not pieces % _TURN:
                    await asyncio.sleep(0)  # buffered data is read without yielding, even in pieces of one byte
        else:
            while piece := await self._reader.read(_PIECE):
                body += piece
                self.hold(len(body))
            self.close()
        self._ended = head.keeps
        return body

    async def read_piece(self) -> bytes:
        """The next piece of a chunked body; empty at its end. May be cancelled and called again."""
        if not self._chunk_left:
            line = await self._until(b"\r\n")
            if line == b"\r\n":  # the end of the chunk before
                line = await self._until(b"\r\n")
            size = line.split(b";")[0].strip()
            try:
                self._chunk_left = int(size, 16) if len(size) <= 8 else -1
            except ValueError:
                self._chunk_left = -1
            if self._chunk_left < 0:
                raise NotHttp("sends an invalid chunk")
            if not self._chunk_left:
                await self._read_trailers()
                return b""
        piece = await self._read(min(_PIECE, self._chunk_left))
        self._chunk_left -= len(piece)
        return piece

    async def _read_trailers(self) -> None:
        """None are expected: with any, the connection is not reused."""
        if await self._until(b"\r\n") != b"\r\n":
            self.close()

    async def _until(self, mark: bytes, *, head: bool = False) -> bytes:
        try:
            return await self._reader.readuntil(mark)
        except asyncio.LimitOverrunError as error:
            self.close()
            raise LimitExceeded(f"sends headers of more than {MAX_HEAD >> 10} KiB") from error
        except asyncio.IncompleteReadError as error:
            self.close()
            if head and b"HTTP/1."[: len(error.partial)] != error.partial[:7]:
                raise NotHttp("does not speak HTTP") from error
            raise ConnectionClosed("the connection was closed before the response was complete") from error

    async def _read(self, most: int) -> bytes:
        piece = await self._reader.read(most)
        if not piece:
            self.close()
            raise ConnectionClosed("the connection was closed before the response was complete")
        return piece


def parse_head(raw: bytes) -> Head:
    """Raises NotHttp."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    status, length = rest[:3], headers.get("content-length", "")
    numbers = (
        status.isascii()
        and status.isdigit()
        and len(status) == 3
        and length.isascii()
        and (length.isdigit() or not length)
    )
    if version not in ("HTTP/1.0", "HTTP/1.1") or not numbers or len(length) > 15 or int(status) == 101:
        raise NotHttp("does not speak HTTP")
    if headers.get("content-encoding", "identity") != "identity":
        raise NotHttp("sends a compressed response, which was not requested")
    coding = headers.get("transfer-encoding", "")
    if coding not in ("", "identity", "chunked"):
        raise NotHttp("uses a transfer coding that was not requested")
    chunked = coding == "chunked"
    bodiless = int(status) in (204, 304)
    size = 0 if bodiless else int(length) if length and not chunked else None
    keeps = version == "HTTP/1.1" and "close" not in headers.get("connection", "") and (chunked or size is not None)
    return Head(int(status), size, chunked and not bodiless, keeps)


def new_socket(family: int) -> socket.socket:
    """With keep-alive: a dead machine is noticed within about half a minute, without traffic of ours."""
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_AT_ONCE)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
