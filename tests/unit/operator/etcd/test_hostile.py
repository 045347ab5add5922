"""Whatever answers at a job's endpoint costs that job a condition, and others nothing: neither memory nor time. Over
real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from elasticjob_operator.etcd import RunWatches, watch_stream
from elasticjob_operator.etcd.client import AsyncEtcdClient, SharedResources
from elasticjob_operator.planning import PublishSpec, Target
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import SpecValue
from elasticjob_runtime.etcd import KeyRange, StoreError

from hack.embedded_etcd.server import EmbeddedServer
from tests.hostile import KINDS, hostile
from tests.unit.operator.waiting import until

RUNS = KeyRange.prefix("/elasticjob/")
MOST_MEMORY = 40 << 20
"""Bytes by which this process may grow, in addition to what its allocator keeps."""
HONEST = ("ml", "honest")
EVIL = ("ml", "evil")


def memory() -> int:
    """Resident, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Watch:
    """How large this process grew."""

    def __init__(self) -> None:
        self.before = self.highest = memory()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.highest = max(self.highest, memory())


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    watch = Watch()
    task = asyncio.create_task(watch.run())
    yield watch
    task.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_endpoint_causes_an_error_within_bounds(
    kind: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "LINE_SECONDS", 1.0)

    async def follow(etcd: AsyncEtcdClient) -> None:
        start = await etcd.revision("/elasticjob/")
        async with contextlib.aclosing(etcd.watch(RUNS, start + 1, lambda: 0.2)) as news:
            async for _ in news:
                pass

    with hostile(kind) as endpoint:
        etcd = AsyncEtcdClient(endpoint, SharedResources())
        error = ""
        try:
            async with asyncio.timeout(2 if kind in ("watch-flood", "watch-empty-lines") else 20):
                await follow(etcd)
        except StoreError as rejected:
            error = str(rejected)
        except TimeoutError:
            assert kind in ("watch-flood", "watch-empty-lines"), (
                "what is no error must be one of these, which are slowed down"
            )
        etcd.close()
    assert watch.highest - watch.before < MOST_MEMORY
    for secret in ("hunter2", "vault", "password"):
        assert secret not in error


async def test_a_flood_of_events_does_not_block_the_event_loop(watch: Watch) -> None:
    """Both floods at once, and an honest job's writes among them."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        floods = [stack.enter_context(hostile(kind)) for kind in ("watch-flood", "watch-empty-lines", "tiny-chunks")]
        run_watches = RunWatches(lambda _: None)
        for number, endpoint in enumerate(floods):
            await run_watches.follow(("ml", f"evil-{number}"), Target(endpoint=endpoint, run_id=f"e-{number}"))
        await run_watches.follow(HONEST, Target(endpoint=server.endpoint, run_id="u-1"))
        await until(lambda: run_watches.view(HONEST).connectivity is Connectivity.REACHABLE)
        for wanted in range(1, 20):  # a write that runs into its deadline raises
            await run_watches.execute(HONEST, PublishSpec(spec=SpecValue(min=1, max=20, wanted=wanted), reason="test"))
            await asyncio.sleep(0.05)
        await run_watches.close()
    assert watch.highest - watch.before < MOST_MEMORY


async def test_connections_to_one_endpoint_are_limited() -> None:
    """Calls to one endpoint that does not answer: so many connections as may be, whatever is asked."""
    accepted = 0
    release = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await release.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    etcd = AsyncEtcdClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", SharedResources())
    calls = [asyncio.create_task(etcd.txn([])) for _ in range(100)]
    await until(lambda: accepted >= 8)
    await asyncio.sleep(0.1)
    assert accepted == 8
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    release.set()
    server.close()


async def test_responses_are_not_disclosed_in_errors(caplog: pytest.LogCaptureFixture) -> None:
    with hostile("secret") as endpoint:
        run_watches = RunWatches(lambda _: None)
        await run_watches.follow(EVIL, Target(endpoint=endpoint, run_id="u-1"))
        await until(lambda: run_watches.view(EVIL).connectivity is Connectivity.DENIED)
        error = run_watches.view(EVIL).error
        await run_watches.close()
    assert endpoint in error
    assert "HTTP 403" in error
    assert "hunter2" not in error
    assert "vault" not in error
    assert "hunter2" in caplog.text, "who runs the operator can find out"
