"""A leader that loses the election while a request waits for its connection does not send it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from elasticjob_operator.kube.client import KubeClient, NotLeaderError
from elasticjob_operator.kube.credentials import Credentials
from kubernetes.aio.client import Configuration


@asynccontextmanager
async def server(may_write: Callable[[], bool]) -> AsyncIterator[tuple[KubeClient, list[str]]]:
    """A client, and the requests that arrive."""
    arrived: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        arrived.append(f"{request.method} {await request.text()}".strip())
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = KubeClient(Credentials(configuration, None).client(), may_write)
    try:
        yield api, arrived
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_write_is_not_sent_if_the_election_is_lost_before_it_has_a_connection(method: str) -> None:
    answers = [True, False]
    async with server(lambda: answers.pop(0)) as (api, arrived):
        with pytest.raises(NotLeaderError, match=f"{method} /api: not sent: this operator is no longer the leader"):
            await api.request(method, "/api", body={"a": 1})
        await api.request("GET", "/api")
        assert arrived == ["GET"]


async def test_a_leader_writes() -> None:
    async with server(lambda: True) as (api, arrived):
        await api.request("POST", "/api", body={"a": 1})
        assert arrived == ['POST {"a":1}']
