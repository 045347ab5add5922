"""The informer against a real API server: what a watch loses, a list finds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from elasticjob_operator.kube import informer as module
from elasticjob_operator.kube.api_resources import NODES, PODS, ApiResource
from elasticjob_operator.kube.cache import ObjectCache
from elasticjob_operator.kube.client import Json, KubeClient
from elasticjob_operator.kube.credentials import Credentials
from elasticjob_operator.kube.informer import Informer

from hack.cluster.loopback import ControlPlane
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Gate, changed_kubeconfig
from tests.unit.operator.waiting import until

CONFIG_MAPS = ApiResource(kind="ConfigMap", plural="configmaps")


class Bench:
    """An informer of ConfigMaps in the test's namespace, through a gate."""

    def __init__(self, api: KubeClient, ns: Namespace, gate: Gate) -> None:
        self.ns = ns
        self.gate = gate
        self.store: ObjectCache[str] = ObjectCache(
            lambda body: body.get("data", {}).get("value", ""),
            lambda body: ("", body["metadata"]["name"]),
            lambda _: None,
        )
        self.informer = Informer(api, CONFIG_MAPS, self.store, namespace=ns.name, selector="watched")
        self._task = asyncio.create_task(self.informer.run())

    async def create(self, name: str, value: str = "1") -> Json:
        body = {"metadata": {"name": name, "labels": {"watched": ""}}, "data": {"value": value}}
        return await asyncio.to_thread(self.ns.create, "configmaps", body)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self.ns.delete, "configmaps", name)

    async def change(self, name: str, value: str) -> None:
        await asyncio.to_thread(self.ns.patch, "configmaps", name, {"data": {"value": value}})

    def value(self, name: str) -> str | None:
        return self.store.get((self.ns.name, name))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def client(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    credentials = await Credentials.open()
    api = KubeClient(credentials.client())
    yield api
    await api.close()
    await credentials.close()


@pytest.fixture
async def bench(gated: Path, gate: Gate, ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with client(gated, monkeypatch) as api:
        bench = Bench(api, ns, gate)
        yield bench
        await bench.close()


async def test_changes_during_a_lost_connection_are_found(bench: Bench) -> None:
    for name in ("gone", "changed"):
        await bench.create(name)
    await until(lambda: bench.value("changed") == "1" and bench.value("gone") == "1")
    bench.gate.shut()
    await bench.delete("gone")
    await bench.change("changed", "2")
    await bench.create("new")
    assert bench.value("new") is None
    bench.gate.open()
    await until(lambda: (bench.value("gone"), bench.value("changed"), bench.value("new")) == (None, "2", "1"))
    bench.gate.cut()
    await bench.change("new", "3")
    await until(lambda: bench.value("new") == "3", "the watch goes on after a cut")


async def test_an_expired_version_is_listed_again(bench: Bench, control_plane_server: ControlPlane) -> None:
    """410: etcd was compacted while the informer was away."""
    for name in ("gone", "kept"):
        await bench.create(name)
    await until(lambda: bench.value("kept") == "1" and bench.value("gone") == "1")
    bench.gate.shut()
    await bench.delete("gone")
    await bench.create("new")
    bench.informer._version = 1  # as if it had been away for so long: the server keeps nothing of that age
    bench.gate.open()
    await until(lambda: bench.value("gone") is None and bench.value("new") == "1" and bench.value("kept") == "1")
    assert bench.informer._version > 1
    assert control_plane_server.server


async def test_long_lists_are_read_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    for number in range(10):
        await bench.create(f"number-{number}")
    again = Bench(bench.informer._client, bench.ns, bench.gate)
    await asyncio.wait_for(again.informer.synced.wait(), 10)
    assert len(again.store) == 10
    await again.close()


async def test_the_response_to_a_write_never_brings_back_a_deleted_object(bench: Bench) -> None:
    answer = await bench.create("short-lived")
    await bench.delete("short-lived")
    await bench.create("later")
    await until(lambda: bench.value("later") == "1")
    bench.informer.on_written(answer)
    assert bench.value("short-lived") is None


async def test_an_optional_informer_tolerates_being_forbidden(
    control_plane_server: ControlPlane, ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Namespaced mode without the right to see nodes."""
    control_plane_server.kubectl("create", "serviceaccount", "powerless", "--namespace", ns.name)
    token = control_plane_server.kubectl("create", "token", "powerless", "--namespace", ns.name).strip()
    path = changed_kubeconfig(control_plane_server.kubeconfig, tmp_path / "powerless.conf", token=token)
    store: ObjectCache[str] = ObjectCache(lambda body: body["metadata"]["name"], lambda _: None, lambda _: None)
    async with client(path, monkeypatch) as api:
        optional = Informer(api, NODES, store, optional=True)
        needed = Informer(api, PODS, store, namespace=ns.name)
        tasks = [asyncio.create_task(item.run()) for item in (optional, needed)]
        await asyncio.wait_for(optional.synced.wait(), 10)
        assert optional.forbidden
        assert not needed.synced.is_set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
