"""Serves GET /metrics on its own port and thread."""

from __future__ import annotations

import collections
import contextlib
import http.server
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


MAX_CONNECTIONS = 16
"""Connections at a time, with a thread each. If there are more, the oldest is closed: anything may connect to the port,
and a slow client must neither use up threads nor keep Prometheus out."""


class _Server(http.server.ThreadingHTTPServer):
    """Listens on IPv4 and IPv6."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._open: collections.deque[socket.socket] = collections.deque()
        """The oldest first. Used by the server's own thread, and by a connection's to remove itself."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        while len(self._open) > MAX_CONNECTIONS:
            with contextlib.suppress(OSError, IndexError):
                self._open.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that breaks off is no news
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)  # HTTPServer's looks up this host's name, which may be slow
        self.server_name, self.server_port = "", self.server_address[1]


class MetricsServer:
    """Serves until `close`. Raises OSError or OverflowError if it cannot listen on the port."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        """`port` 0: any free port."""

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10  # a silent client must not occupy a thread forever

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, explain="see /metrics")
                    return
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Scrapes are not logged."""

        self._server = _Server(("", port), Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
