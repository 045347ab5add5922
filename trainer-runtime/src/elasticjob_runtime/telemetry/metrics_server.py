"""Serves GET /metrics on its own port and thread."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Server(http.server.ThreadingHTTPServer):
    """Listens on IPv4 and IPv6."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

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
