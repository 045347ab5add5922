"""/healthz and /readyz for the kubelet's probes, /metrics for Prometheus.

Live: the event loop responds, every informer makes progress (a failing request counts: restarting the operator does not
fix the API server), kopf's watch delivers what the resync finds, and an operator that lost its lease has stopped.
Ready: everything was listed once, or another operator leads and this one sees its lease.
Metrics: open to all, or with `Settings.metrics_authentication` to users that the API server lets read them.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from elasticjob_operator.kube import MetricsAccess


class Health:
    """`faults()`: what is wrong, one message each. `ready()`: whether the operator is ready, and a status text.
    `metrics_access`: who may read the metrics; None: all."""

    def __init__(
        self,
        port: int,
        faults: Callable[[], list[str]],
        ready: Callable[[], tuple[bool, str]],
        metrics_access: MetricsAccess | None = None,
    ) -> None:
        self._wanted_port = port
        self._faults = faults
        self._ready = ready
        self._metrics_access = metrics_access
        self._runner: web.AppRunner | None = None
        self.port = port

    async def start(self) -> None:
        """Raises OSError if the port is in use."""
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, None, self._wanted_port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

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
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
