"""The operator's port, which anyone may reach where no NetworkPolicy says otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from elasticjob_operator import health
from elasticjob_operator.health import MOST_CONNECTIONS, Health

from hack.cluster.ports import free_ports


@pytest.fixture
async def port() -> AsyncIterator[int]:
    found = Health(free_ports(1)[0], list, lambda: (True, "ok"))
    await found.start()
    yield found.port
    await found.stop()


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("localhost", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_idle_connections_keep_no_probe_out(port: int) -> None:
    idle = [await asyncio.open_connection("localhost", port) for _ in range(3 * MOST_CONNECTIONS)]
    assert b" 200 " in await get(port, "/readyz")
    closed = 0
    for reader, _ in idle:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.01 if closed else 10):
                await reader.read()
            closed += 1
            continue
        closed += reader.at_eof() or reader.exception() is not None
    assert closed >= 2 * MOST_CONNECTIONS
    for _, writer in idle:
        writer.close()


async def test_metrics_are_rendered_once_for_many_requests_and_not_on_the_event_loop(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderings: list[bool] = []

    def render() -> bytes:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            renderings.append(True)
        return b"page"

    monkeypatch.setattr(health, "generate_latest", render)
    answers = await asyncio.gather(*(get(port, "/metrics") for _ in range(8)))
    assert all(answer.endswith(b"page") for answer in answers)
    assert renderings == [True]
