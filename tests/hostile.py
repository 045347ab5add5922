"""A server that answers at an etcd's address with harmful responses, for as long as the client reads.

python -m tests.hostile KIND      prints its port and serves until its standard input ends
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
VERSION = OK + b'Content-Length: 24\r\n\r\n{"etcdserver": "3.5.12"}'
RANGE_BODY = b'{"header":{"cluster_id":"1","revision":"5"},"responses":[],"succeeded":true}'
RANGE = OK + b"Content-Length: %d\r\n\r\n" % len(RANGE_BODY) + RANGE_BODY
STREAM = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CREATED = b'{"result":{"header":{"revision":"5"},"created":true}}\n'
MEGABYTE = b"a" * (1 << 20)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answers(kind: str, path: str) -> Iterator[bytes]:  # noqa: C901, PLR0912, PLR0915 a table
    """What is sent in answer to a request for that path, piece by piece."""
    watches = path.endswith("/watch")
    if kind.startswith("watch-"):
        if not watches:
            yield VERSION if path == "/version" else RANGE
            return
        yield STREAM + chunk(CREATED)
    match kind:
        case "gzip-bomb":
            body = gzip.compress(b" " * (400 << 20), 9)
            yield OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        case "gigabyte":
            yield OK + b"Content-Length: 1073741824\r\n\r\n"
            yield from iter(lambda: MEGABYTE, b"")
        case "endless-body":
            yield OK + b"\r\n"
            yield from iter(lambda: MEGABYTE, b"")
        case "endless-chunks":
            yield STREAM
            yield from iter(lambda: chunk(MEGABYTE), b"")
        case "tiny-chunks":
            yield STREAM
            yield from iter(lambda: chunk(b"a") * 100_000, b"")
        case "endless-headers":
            yield OK
            yield from iter(lambda: b"X-More: header\r\n" * 10_000, b"")
        case "endless-header":
            yield OK + b"X-More: "
            yield from iter(lambda: MEGABYTE, b"")
        case "endless-interim":
            yield from iter(lambda: b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, b"")
        case "slow":
            for byte in VERSION:
                yield bytes([byte])
                time.sleep(0.2)
        case "redirect":
            yield b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/secret\r\nContent-Length: 0\r\n\r\n"
        case "nested":
            body = b"[" * 150_000
            yield OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
        case "many-parts":
            body = b"[" + b"{}," * 1_000_000 + b"{}]"
            yield OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
        case "after-the-answer":
            yield VERSION if path == "/version" else RANGE
            yield from iter(lambda: MEGABYTE, b"")
        case "secret":
            body = b'{"password": "hunter2"}'
            yield b"HTTP/1.1 403 No\r\nServer: vault\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        case "watch-endless-line":
            yield from iter(lambda: chunk(MEGABYTE), b"")
        case "watch-slow-line":
            while True:
                yield chunk(b"a")
                time.sleep(0.1)
        case "watch-flood":
            event = b'{"result":{"events":[{"kv":{"key":"L2VsYXN0aWNqb2IvdQ==","value":"e30=","mod_revision":"9"}}]}}\n'
            yield from iter(lambda: chunk(event * 1000), b"")
        case "watch-empty-lines":
            yield from iter(lambda: chunk(b'{"result":{}}\n' * 10_000), b"")
        case "watch-nested":
            yield chunk(b'{"result":' + b"[" * 150_000 + b"\n")
        case "watch-wrong-types":
            yield chunk(b'{"result":{"events":[{"kv":7}]}}\n')


KINDS = """
    gzip-bomb gigabyte endless-body endless-chunks tiny-chunks endless-headers endless-header endless-interim slow
    redirect nested many-parts after-the-answer secret watch-endless-line watch-slow-line watch-flood watch-empty-lines
    watch-nested watch-wrong-types
""".split()  # noqa: SIM905 a list of twenty literals is harder to read


def _serve(connection: socket.socket, kind: str) -> None:
    with contextlib.suppress(OSError), connection:
        while True:
            request = b""
            while b"\r\n\r\n" not in request:
                part = connection.recv(65536)
                if not part:
                    return
                request += part
            for piece in answers(kind, request.split(b" ")[1].decode()):
                connection.sendall(piece)


def _main(kind: str) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, kind), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


@contextlib.contextmanager
def hostile(kind: str) -> Iterator[str]:
    """host:port of a server of that kind, in a process of its own."""
    assert kind in KINDS
    command = [sys.executable, "-m", "tests.hostile", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.kill()


if __name__ == "__main__":
    _main(sys.argv[1])
