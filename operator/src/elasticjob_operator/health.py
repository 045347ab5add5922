"""/healthz and /readyz for the kubelet's probes, /metrics for Prometheus.

Live: the event loop responds, every informer makes progress (a failing request counts: restarting the operator does not
fix the API server), kopf's watch delivers what the resync finds, and an operator that lost its lease has stopped.
Ready: everything was listed once, or another operator leads and this one sees its lease.
Metrics: open to all, or with `Settings.metrics_authentication` to users that the API server lets read them; on the port
of the probes, or with a certificate on one of their own.
Anyone may connect where no NetworkPolicy says otherwise: connections are limited, and the metrics are rendered in a
thread, since the event loop renews the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from elasticjob_operator.kube import MetricsAccess

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
"""On each port, from before their handshake. A further one replaces the oldest."""
HANDSHAKE_SECONDS = 5.0
PAGE_SECONDS = 1.0
"""How long a rendered page of metrics is served, s."""
RENEWAL_SECONDS = 30.0
"""How often to check the files of a certificate for changes, s. The kubelet takes up to a minute to renew them."""


class ServerCertificate:
    """The certificate of a TLS Secret that is mounted at `folder`: tls.crt, tls.key. Raises OSError."""

    def __init__(self, folder: Path, renewal_seconds: float = RENEWAL_SECONDS) -> None:
        self._files = folder / "tls.crt", folder / "tls.key"
        self._renewal_seconds = renewal_seconds
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = self._load()

    async def follow(self) -> None:
        """Runs until cancelled: new connections get a renewed certificate."""
        while True:
            await asyncio.sleep(self._renewal_seconds)
            try:
                if self._content() != self._loaded:
                    self._loaded = self._load()
                    log.info("%s has changed: serving the new certificate", self._files[0])
            except OSError as error:
                log.warning("Cannot read the changed %s, retrying: %s", self._files[0], error)

    def _load(self) -> tuple[bytes, ...]:
        content = self._content()
        self.context.load_cert_chain(*self._files)
        return content

    def _content(self) -> tuple[bytes, ...]:
        return tuple(file.read_bytes() for file in self._files)


class Health:
    """`faults()`: what is wrong, one message each. `ready()`: whether the operator is ready, and a status text.
    `metrics_access`: who may read the metrics; None: all. `certificate`: of the metrics, which are then served on
    `metrics_port`; None: without TLS, on `port`."""

    def __init__(
        self,
        port: int,
        faults: Callable[[], list[str]],
        ready: Callable[[], tuple[bool, str]],
        metrics_access: MetricsAccess | None = None,
        certificate: ServerCertificate | None = None,
        metrics_port: int = 0,
    ) -> None:
        self._wanted_port = port
        self._faults = faults
        self._ready = ready
        self._metrics_access = metrics_access
        self._certificate = certificate
        self._runners: list[web.AppRunner] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._page, self._rendered_at = b"", -math.inf
        self._rendering = asyncio.Lock()
        self.port = port
        self.metrics_port = metrics_port

    async def start(self) -> None:
        """Raises OSError if a port is in use."""
        probes = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        metrics = [web.get("/metrics", self._metrics)]
        if self._certificate is None:
            self.port = self.metrics_port = await self._serve([*probes, *metrics], self._wanted_port)
            return
        self.port = await self._serve(probes, self._wanted_port)
        self.metrics_port = await self._serve(metrics, self.metrics_port, self._certificate.context)

    async def _serve(self, routes: Iterable[web.RouteDef], port: int, context: ssl.SSLContext | None = None) -> int:
        """Returns the port."""
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        self._runners.append(runner)
        await runner.setup()
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        listener = socket.create_server(("", port), family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=dual)
        listener.setblocking(False)
        self._accepting.append(asyncio.create_task(_accept(listener, runner, context)))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        faults = self._faults()
        return web.Response(text="\n".join(faults) or "ok", status=500 if faults else 200)

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready, word = self._ready()
        return web.Response(text=word, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._metrics_access is not None:
            access = await self._metrics_access.check(request.headers.get("Authorization", ""))
            if not access.allowed:
                challenge = {"WWW-Authenticate": "Bearer"} if access.status is HTTPStatus.UNAUTHORIZED else {}
                return web.Response(text=f"{access.message}\n", status=access.status, headers=challenge)
        return web.Response(body=await self._rendered(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _rendered(self) -> bytes:
        async with self._rendering:
            if time.monotonic() - self._rendered_at > PAGE_SECONDS:
                self._page = await asyncio.to_thread(generate_latest)
                self._rendered_at = time.monotonic()
            return self._page


async def _accept(listener: socket.socket, runner: web.AppRunner, context: ssl.SSLContext | None) -> None:
    """Serves connections until cancelled."""
    loop, server = asyncio.get_running_loop(), runner.server
    assert server is not None
    seconds = HANDSHAKE_SECONDS if context is not None else None
    connections: list[socket.socket] = []

    async def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a handshake that fails
            await loop.connect_accepted_socket(server, connection, ssl=context, ssl_handshake_timeout=seconds)

    with listener:
        async with asyncio.TaskGroup() as handshakes:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    log.warning("Cannot accept a connection: %s", error)
                    await asyncio.sleep(1)
                    continue
                connections = [connection for connection in connections if connection.fileno() >= 0]
                for oldest in connections[: 1 - MOST_CONNECTIONS]:
                    connections.remove(oldest)
                    with contextlib.suppress(OSError):  # its peer has closed it
                        oldest.shutdown(socket.SHUT_RDWR)
                connections.append(connection)
                handshakes.create_task(serve(connection))
