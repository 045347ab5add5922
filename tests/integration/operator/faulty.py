"""A faulty way to the API server: a proxy on loopback that the test owns. It speaks plain HTTP to the operator and sees
every request.

with FaultyServer(kubeconfig) as server:
    operator = start_operator(server.kubeconfig(folder))
    server.fault = lambda request: Answer(500) if request.is_write else None
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

Json = dict[str, Any]
_HOP = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "content-encoding",
    "accept-encoding",
    "date",
    "server",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    number: int
    """Of all requests, from 1."""
    method: str
    path: str
    query: dict[str, str]

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("true", "1")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Instead of the API server's."""

    code: int
    reason: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page of a proxy, with status 200."""


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """The connection ends without an answer: before the request reaches the API server, or after it has acted."""

    acted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Slow:
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Bend:
    """The events of this watch as they go by, changed: `bend(events)` gets and gives lines of JSON."""

    bend: Callable[[AsyncIterator[Json]], AsyncIterator[Json]]


Fault = Answer | Page | Drop | Slow | Bend


class FaultyServer:
    """`fault(request)` decides; None: the request goes through. `after(request)` is called when the API server has
    answered, before the operator hears of it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = self._config["clusters"][0]["cluster"], self._config["users"][0]["user"]
        self._upstream = cluster["server"]
        self._context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        with tempfile.NamedTemporaryFile() as pem:
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            self._context.load_cert_chain(pem.name)
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.after: Callable[[Request], None] = lambda _: None
        self.requests: list[Request] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._watches: set[asyncio.Task[Any]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def kubeconfig(self, folder: Path) -> Path:
        """For the operator."""
        config = json.loads(json.dumps(self._config))
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        config["users"][0]["user"] = {}
        path = folder / "faulty.conf"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def cut_watches(self) -> None:
        """Every watch that stands."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._watches])

    def writes(self) -> list[Request]:
        return [request for request in list(self.requests) if request.is_write]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())

    async def _open(self) -> None:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._context, limit=0), auto_decompress=False
        )
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._client.close()

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(len(self.requests) + 1, incoming.method, incoming.path, dict(incoming.query))
        self.requests.append(request)
        data = (
            await incoming.read() or None
        )  # now: of an operator that is killed meanwhile it could not be read any more
        fault = await asyncio.to_thread(self.fault, request)
        match fault:
            case Answer():
                status = {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "code": fault.code,
                    "reason": fault.reason,
                }
                return web.json_response(
                    {**status, "message": f"a fault: {fault.code}"}, status=fault.code, headers=fault.headers
                )
            case Page():
                return web.Response(text="<html>Please log in</html>", content_type="text/html")
            case Drop(acted=False):
                return self._dropped(incoming)
            case Slow():
                await asyncio.sleep(fault.seconds)
        headers = {name: value for name, value in incoming.headers.items() if name.lower() not in _HOP}
        url = self._upstream + incoming.path_qs
        async with self._client.request(
            incoming.method, url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            if request.is_watch and answer.status == 200:
                return await self._watch(incoming, answer, fault)
            body = await answer.read()
            await asyncio.to_thread(self.after, request)
            if isinstance(fault, Drop):
                return self._dropped(incoming)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            return web.Response(body=body, status=answer.status, headers=kept)

    async def _watch(
        self, incoming: web.Request, answer: aiohttp.ClientResponse, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        task = asyncio.current_task()
        assert task
        self._watches.add(task)
        try:
            await response.prepare(incoming)
            events = _events(answer)
            async for event in fault.bend(events) if isinstance(fault, Bend) else events:
                await response.write(json.dumps(event).encode() + b"\n")
        except ConnectionError:
            pass  # the operator is gone
        finally:
            self._watches.discard(task)
        return response

    def _dropped(self, incoming: web.Request) -> web.Response:
        assert incoming.transport
        incoming.transport.close()
        return web.Response()


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    rest = b""
    async for piece in answer.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)
