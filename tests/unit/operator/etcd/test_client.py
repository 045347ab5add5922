"""The operator's client against the embedded etcd of the runtime, over real sockets; tests/integration/operator has the
real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from elasticjob_operator.etcd import watch_stream as module
from elasticjob_operator.etcd.client import AsyncEtcdClient, SharedResources
from elasticjob_runtime.etcd import Get, KeyRange, NotEtcd, Put, Unavailable

from hack.embedded_etcd.server import EmbeddedServer
from tests.contract.proxy import Proxy

RUNS = KeyRange.prefix("/elasticjob/")


def patient() -> float:
    return 60.0


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    proxy = Proxy(int(server.endpoint.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.fixture
def shared() -> SharedResources:
    return SharedResources()


async def test_reads_writes_and_watches(proxy: Proxy, shared: SharedResources) -> None:
    etcd = AsyncEtcdClient(f"127.0.0.1:{proxy.port}", shared)
    start = await etcd.revision("/elasticjob/")
    async with contextlib.aclosing(etcd.watch(RUNS, start + 1, patient)) as stream:
        assert await anext(stream) == ()
        written = await etcd.txn([Put("/elasticjob/r/plan", "π")])
        await etcd.txn([Put("/elsewhere", "x")])
        (event,) = await anext(stream)
        assert (event.key, event.value, event.mod_revision) == ("/elasticjob/r/plan", "π", written.revision)
    found = await etcd.txn([Get(KeyRange("/elasticjob/r/plan")), Get(KeyRange("/none"))])
    assert [[kv.value for kv in kvs] for kvs in found.reads] == [["π"], []]


async def test_a_silent_server_is_detected_by_the_probe(
    proxy: Proxy, shared: SharedResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.2)
    etcd = AsyncEtcdClient(f"127.0.0.1:{proxy.port}", shared)
    async with contextlib.aclosing(etcd.watch(RUNS, await etcd.revision("/elasticjob/") + 1, lambda: 0.2)) as stream:
        assert await anext(stream) == ()
        proxy.silence()  # what stands carries nothing; new connections do
        await AsyncEtcdClient(f"127.0.0.1:{proxy.port}", shared).txn([Put("/elasticjob/r/plan", "x")])
        with pytest.raises(Unavailable, match=r"does not deliver changes|no response"):
            await anext(stream)


async def test_a_server_that_responds_to_the_probe_is_alive(proxy: Proxy, shared: SharedResources) -> None:
    etcd = AsyncEtcdClient(f"127.0.0.1:{proxy.port}", shared)
    async with contextlib.aclosing(etcd.watch(RUNS, await etcd.revision("/elasticjob/") + 1, lambda: 0.05)) as stream:
        for _ in range(3):
            assert await anext(stream) == ()


async def test_a_broken_stream_ends_the_watch(proxy: Proxy, shared: SharedResources) -> None:
    etcd = AsyncEtcdClient(f"127.0.0.1:{proxy.port}", shared)
    async with contextlib.aclosing(etcd.watch(RUNS, 1, patient)) as stream:
        assert await anext(stream) == ()
        proxy.cut()
        with pytest.raises(Unavailable):
            await anext(stream)


async def test_a_failure_moves_on_to_the_next_endpoint(server: EmbeddedServer, shared: SharedResources) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unused = taken.getsockname()[1]
    etcd = AsyncEtcdClient(f"127.0.0.1:{unused},{server.endpoint}", shared)
    for _ in range(2):
        with contextlib.suppress(Unavailable):
            assert await etcd.revision("/elasticjob/") >= 1
            return
    raise AssertionError("neither endpoint was good")


async def test_a_refused_connection_is_reported_with_its_address_and_cause(shared: SharedResources) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unused = taken.getsockname()[1]
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{unused}: Connection refused"):
        await AsyncEtcdClient(f"127.0.0.1:{unused}", shared).revision("/elasticjob/")


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"])
async def test_a_server_that_is_not_etcd_is_reported(answer: bytes, shared: SharedResources) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotEtcd):
            await AsyncEtcdClient(f"127.0.0.1:{port}", shared).revision("/elasticjob/")


@pytest.mark.parametrize("endpoint", ["", "http://", "etcd:port", "user:pw@etcd:2379"])
def test_an_invalid_endpoint_is_a_value_error(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        AsyncEtcdClient(endpoint, SharedResources())
