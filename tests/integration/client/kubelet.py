"""A kubelet as far as logs go: it serves lines that the test writes, as a real one does."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.integration.operator.kube import Kube

NODE = "node-of-logs"
Entry = tuple[datetime.datetime, str]


class Logs:
    """Logs by pod. `end` marks one as complete."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lines: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self.ended: set[tuple[str, str]] = set()
        self.broken: set[tuple[str, str]] = set()
        """Pods whose log it cannot read."""
        self.requests: list[str] = []
        self.cut = 0
        """Incremented to cut every open connection."""

    def write(self, namespace: str, pod: str, text: str, at: datetime.datetime | None = None) -> None:
        with self.changed:
            self.lines[namespace, pod].append((at or datetime.datetime.now(datetime.timezone.utc), text))
            self.changed.notify_all()

    def end(self, namespace: str, pod: str) -> None:
        with self.changed:
            self.ended.add((namespace, pod))
            self.changed.notify_all()

    def cut_connections(self) -> None:
        with self.changed:
            self.cut += 1
            self.changed.notify_all()


class Kubelet:
    """Listens on a free port with the API server's own certificate, and is the node `NODE`."""

    def __init__(self, pki: Path, kube: Kube) -> None:
        self.logs = Logs()
        handler = type("Handler", (_Handler,), {"logs": self.logs})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        kube.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        kube.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, "application/merge-patch+json")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    logs: Logs
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Not on stderr."""

    def do_GET(self) -> None:
        parts, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        self.logs.requests.append(self.path)
        _, kind, namespace, pod, *_ = parts.path.split("/")
        if kind != "containerLogs" or (namespace, pod) in self.logs.broken:
            self.send_error(404 if kind != "containerLogs" else 500)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        key, follow = (namespace, pod), query.get("follow") == ["true"]
        lines, cut, sent = self._wanted(key, query), self.logs.cut, 0
        while True:
            with self.logs.changed:
                new, over = lines()[sent:], not follow or key in self.logs.ended
                if not new and not over and cut == self.logs.cut:
                    self.logs.changed.wait(1)
                    continue
            for at, text in new:
                stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ") if query.get("timestamps") == ["true"] else ""
                self._chunk(f"{stamp}{text}\n".encode())
            sent += len(new)
            if cut != self.logs.cut:
                self.close_connection = True
                return
            if over:
                self._chunk(b"")
                return

    def _wanted(self, key: tuple[str, str], query: dict[str, list[str]]) -> Any:
        now = datetime.datetime.now(datetime.timezone.utc)
        oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        if "sinceSeconds" in query:
            oldest = now - datetime.timedelta(seconds=int(query["sinceSeconds"][0]))
        if "sinceTime" in query:
            oldest = datetime.datetime.fromisoformat(query["sinceTime"][0])
        skip = max(0, len(self.logs.lines[key]) - int(query["tailLines"][0])) if "tailLines" in query else 0
        return lambda: [line for line in self.logs.lines[key][skip:] if line[0] >= oldest]

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()
