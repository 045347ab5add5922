"""HTTP/1.1 responses, whole or in pieces, early or late."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from elasticjob_runtime.etcd import Endpoint
from elasticjob_runtime.etcd.connection import Connection
from elasticjob_runtime.etcd.faults import AnswerLost, NotHttp, NotSent

from hack.support import eventually


class Peer:
    """The server's end, driven by the test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connection = Connection(Endpoint("127.0.0.1", self._listener.getsockname()[1]), None)
        self.connection.open(soon())
        self.socket, _ = self._listener.accept()

    def send(self, data: bytes, size: int = 0) -> None:
        """In pieces of `size` bytes; 0: at once."""
        for start in range(0, len(data), size or len(data)):
            self.socket.sendall(data[start : start + (size or len(data))])
            if size:
                time.sleep(0.0005)

    def close(self) -> None:
        self.connection.close()
        self.socket.close()
        self._listener.close()


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"answer":42}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{"answe\r\n6;note=1\r\nr":42}\r\n0\r\n\r\n'
TRAILERS = (
    b"HTTP/1.1 404 Not Found\r\nTrailer: Grpc-X\r\nTransfer-Encoding: "
    b'chunked\r\n\r\nd\r\n{"answer":42}\r\n0\r\nGrpc-X: y\r\nB: c\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
@pytest.mark.parametrize(
    "answer", [PLAIN, CHUNKED, TRAILERS, CONTINUED], ids=["length", "chunks", "trailers", "continue"]
)
def test_responses_may_arrive_in_pieces_of_any_size(peer: Peer, answer: bytes, size: int) -> None:
    for _ in range(2):
        peer.connection.send("POST", "/v3/kv/range", b"{}", "Authorization: t\r\n", soon())
        request = peer.socket.recv(65536)
        assert request.startswith(b"POST /v3/kv/range HTTP/1.1\r\nHost: 127.0.0.1:")
        assert request.endswith(b"Content-Length: 2\r\nAuthorization: t\r\n\r\n{}")
        writer = threading.Thread(target=peer.send, args=(answer, size))
        writer.start()
        head = peer.connection.read_head(soon())
        assert peer.connection.read_body(head, soon()) == b'{"answer":42}'
        writer.join()
        assert peer.connection.reusable
        assert not peer.connection.is_stale()


def test_a_stream_can_be_read_again_after_a_deadline(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    peer.connection.read_head(soon())
    for piece in (b"", b"5", b"\r\n"):
        peer.send(piece) if piece else None
        with pytest.raises(TimeoutError):
            peer.connection.read_part(soon(0.02))
    peer.send(b"ab")
    assert peer.connection.read_part(soon()) == b"ab"
    peer.send(b"cde\r\n3\r\nfgh\r\n0\r\n")
    assert peer.connection.read_part(soon()) == b"cde"
    assert peer.connection.read_part(soon()) == b"fgh"
    with pytest.raises(TimeoutError):
        peer.connection.read_part(soon(0.02))
    peer.send(b"\r\n")
    assert peer.connection.read_part(soon()) == b""
    assert peer.connection.read_part(soon()) == b""


def test_a_body_without_a_length_ends_with_the_connection(peer: Peer) -> None:
    peer.send(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
    peer.socket.shutdown(socket.SHUT_WR)
    head = peer.connection.read_head(soon())
    assert head.status == 400
    assert peer.connection.read_body(head, soon()).endswith(b"HTTPS server.\n")
    assert not peer.connection.reusable


def test_a_connection_with_connection_close_is_not_reused(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert peer.connection.read_body(peer.connection.read_head(soon()), soon()) == b""
    assert not peer.connection.reusable


NOT_HTTP = {
    "SSH": b"SSH-2.0-x\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "no status": b"HTTP/1.1 ok\r\n\r\n",
    "TLS": b"\x16\x03",
    "negative length": b"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n",
    "endless header": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 15_000,
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
def test_a_response_that_is_not_http_is_an_error(peer: Peer, data: bytes) -> None:
    peer.send(data)
    with pytest.raises(NotHttp, match="HTTP"):
        peer.connection.read_head(soon())


@pytest.mark.parametrize("received", [b"", b"HTT", PLAIN[:-1], CHUNKED[:-1], CHUNKED[:60]])
def test_a_cut_response_is_lost(peer: Peer, received: bytes) -> None:
    peer.send(received) if received else None
    peer.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(AnswerLost, match="closed before"):
        peer.connection.read_body(peer.connection.read_head(soon()), soon())
    assert not peer.connection.reusable


@pytest.mark.parametrize("received", [PLAIN[:-1], CHUNKED[:-1], CHUNKED[:60], CHUNKED[:50]])
def test_a_response_that_stalls_is_lost_at_the_deadline(peer: Peer, received: bytes) -> None:
    """A bare TimeoutError would end the thread that renews the lease."""
    peer.send(received)
    head = peer.connection.read_head(soon())
    with pytest.raises(AnswerLost, match="deadline"):
        peer.connection.read_body(head, soon(0.02))
    assert not peer.connection.reusable


def test_a_slow_response_does_not_extend_the_deadline(peer: Peer) -> None:
    """A deadline bounds the call, not each read."""
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    head = peer.connection.read_head(soon())
    dripping = threading.Event()

    def drip() -> None:
        while not dripping.wait(0.005):
            peer.socket.sendall(b"x")

    writer = threading.Thread(target=drip)
    writer.start()
    with pytest.raises(AnswerLost, match="deadline"):
        peer.connection.read_body(head, soon(0.1))
    dripping.set()
    writer.join()


def test_a_connection_that_the_server_closed_is_stale(peer: Peer) -> None:
    assert not peer.connection.is_stale()
    peer.socket.close()
    eventually(peer.connection.is_stale, 10.0)


def test_another_thread_can_wake_a_reader(peer: Peer) -> None:
    seen: list[Exception] = []

    def read() -> None:
        try:
            peer.connection.read_head(soon(60))
        except AnswerLost as error:
            seen.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    peer.connection.wake()
    thread.join(10)
    assert len(seen) == 1
    with pytest.raises(NotSent):
        peer.connection.send("GET", "/", b"", "", soon())


def test_a_request_that_cannot_be_sent_in_time_counts_as_not_sent(peer: Peer) -> None:
    """The peer reads nothing, so a request larger than the buffers cannot have been processed."""
    with pytest.raises(NotSent, match="deadline"):
        peer.connection.send("POST", "/", b"x" * 50_000_000, "", soon(0.2))
