"""Counts the pods of a namespace as they are created and run, by a watch that is too cheap to distort figures."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable

import aiohttp
import orjson

from benchmarks.operator.fake_cluster import Client, Json

_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')


class PodCount:
    """`created` and `running`: uid -> since when (monotonic, s). An async context manager. `on_running` gets each pod
    that runs."""

    def __init__(self, client: Client, namespace: str, on_running: Callable[[Json], None] = lambda _: None) -> None:
        self._client = client
        self._on_running = on_running
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.created: dict[str, float] = {}
        self.running: dict[str, float] = {}

    async def __aenter__(self) -> PodCount:
        self._version = (await self._client.call("GET", self._path + "?limit=1"))["metadata"]["resourceVersion"]
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, *, created: int = 0, running: int = 0, seconds: float = 300.0) -> None:
        end = time.monotonic() + seconds
        while len(self.created) < created or len(self.running) < running:
            if self._task.done():
                self._task.result()
            if time.monotonic() > end or self._task.done():
                raise TimeoutError(
                    f"{len(self.created)} of {created} pods created, {len(self.running)} of {running} running"
                )
            await asyncio.sleep(0.02)

    async def _run(self) -> None:
        """Watches again whenever the API server ends the stream, as it does when a reader falls behind."""
        while True:
            url = f"{self._client.server}{self._path}?watch=true&resourceVersion={self._version}"
            async with self._client.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as response:
                await self._follow(response)

    async def _follow(self, response: aiohttp.ClientResponse) -> None:
        rest = b""
        async for piece in response.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        found = _VERSION.search(line)
        self._version = found[1].decode() if found else self._version
        added = line.startswith(b'{"type":"ADDED"')
        if line.startswith(b'{"type":"ERROR"'):
            raise RuntimeError(line.decode())
        if not added and b'"phase":"Running"' not in line:
            return
        pod = orjson.loads(line)["object"]
        uid, now = pod["metadata"]["uid"], time.monotonic()
        if added:
            self.created.setdefault(uid, now)
        if pod["status"].get("phase") == "Running" and uid not in self.running:
            self.running[uid] = now
            self._on_running(pod)
