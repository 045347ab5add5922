"""An etcd in this process, for a quick start without a real one: serves a MemoryStore through the calls of etcd's JSON
gateway that our client uses.

One process, nothing on disk, no users, no TLS: for one machine and for tests. When it ends, the store is gone, and
clients notice (leases are lost, watches start over). A later server on the same address is a new, empty store.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import logging
import random
import select
import socket
import threading
from http import HTTPStatus
from typing import Any

from elasticjob_runtime.etcd import protocol
from elasticjob_runtime.etcd.interface import StoreError, Unavailable

from hack.embedded_etcd import gateway
from hack.embedded_etcd.memory import MemoryStore
from hack.embedded_etcd.memory_state import Compacted

log = logging.getLogger(__name__)

_BODY_LIMIT = 4 << 20
_GONE_CHECK = 5.0
"""Seconds without changes after which a watch checks that its client is still connected."""


class EmbeddedServer:
    """Serves from `start` to `close`; a `with` statement calls both."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, store: MemoryStore | None = None) -> None:
        """Port 0: any free port. Raises OSError if the address cannot be used."""
        self.store = store or MemoryStore()
        self._gateway = gateway.Gateway(self.store, str(random.getrandbits(62)))
        self._server = _Server((host, port), self._gateway, self.store)
        self._thread = threading.Thread(target=self._server.serve_forever, name="embedded-etcd", daemon=True)

    @property
    def endpoint(self) -> str:
        """host:port."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> EmbeddedServer:
        self._thread.start()
        return self

    def close(self) -> None:
        """Closes all connections and the store."""
        self._server.shutdown()
        self._server.server_close()
        self.store.close()
        self._server.end_connections()
        self._thread.join()

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], served: gateway.Gateway, store: MemoryStore) -> None:
        self.gateway = served
        self.store = store
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's version, which looks up the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("connection of %s failed", client_address, exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered, so that an answer is sent in one packet
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/version":
            self._answer(HTTPStatus.OK, gateway.VERSION)
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"code": 5, "message": "Not Found"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_LIMIT:
            self.close_connection = True
            self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"code": 3, "message": "etcdserver: request is too large"}
            )
            return
        body = self.rfile.read(int(length))
        try:
            if self.path == "/v3/watch":
                self._watch(body)
            else:
                self._answer(HTTPStatus.OK, self.server.gateway.answer(self.path, protocol.load(body)))
        except Unavailable:
            self.close_connection = True  # the store is closed, and so is the server
        except StoreError as problem:
            self._answer(*gateway.error(problem))
        except (KeyError, ValueError, TypeError, AttributeError) as problem:
            self._answer(HTTPStatus.BAD_REQUEST, {"code": 3, "message": f"malformed request: {problem!r}"})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = protocol.dump(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, body: bytes) -> None:
        """Streams changes until the client disconnects."""
        watchers = gateway.watch_requests(body)
        ranges = [span for span, _ in watchers.values()]
        position = min(start for _, start in watchers.values())
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        revision = self.server.store.revision
        self._send(
            *({"header": self.server.gateway.header(revision), "watch_id": str(n), "created": True} for n in watchers)
        )
        position = min(position, revision + 1)
        while not self._client_gone():
            try:
                events, revision = self.server.store.wait_changes(ranges, position, lambda: False, _GONE_CHECK)
            except Compacted:
                first = next(iter(watchers))
                cancelled = {
                    "watch_id": str(first),
                    "canceled": True,
                    "compact_revision": str(self.server.store.compacted),
                }
                self._send({"header": self.server.gateway.header(0), **cancelled})
                return
            messages = gateway.watch_events(watchers, events)
            self._send(
                *({"header": self.server.gateway.header(r), "watch_id": str(n), "events": e} for r, n, e in messages)
            )
            position = revision + 1

    def _send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            line = protocol.dump({"result": message}) + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def _client_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))  # a client sends nothing after its watch request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        log.debug(format, *args)


def main() -> None:
    """`python -m hack.embedded_etcd.server`: serves until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.embedded_etcd.server",
        description="An etcd for trying things out: in memory, without users or TLS. Anyone who can reach it can read "
        "and write.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=2379, help="0: any free one (default: 2379)")
    arguments = parser.parse_args()
    try:
        server = EmbeddedServer(arguments.host, arguments.port)
    except (OSError, OverflowError) as error:
        parser.exit(1, f"cannot listen on {arguments.host}:{arguments.port}: {error}\n")
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"serving etcd's v3 gateway on {server.endpoint}, in memory only", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
