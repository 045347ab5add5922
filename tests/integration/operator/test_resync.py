"""The safety net under kopf's watch, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from elasticjob_operator.controller import JobCache, Resync, WorkQueue
from elasticjob_operator.kube import Credentials, KubeClient
from elasticjob_operator.names import NamespacedName

from tests.integration.operator.kube import Namespace
from tests.unit.operator.waiting import until


class Bench:
    """A resync without a watch: it must find every change itself."""

    def __init__(self, api: KubeClient, ns: Namespace, seconds: float = 0.2) -> None:
        self.jobs = JobCache()
        self.queue: WorkQueue[NamespacedName] = WorkQueue()
        self.woken: list[NamespacedName] = []
        self.deaths = 0
        self.resync = Resync(api, self.jobs, self.queue, namespaces=(ns.name,), seconds=seconds, on_dead=self._on_dead)
        self._tasks = [asyncio.create_task(self.resync.run()), asyncio.create_task(self.queue.work(self._handle, 1))]

    async def _handle(self, key: NamespacedName) -> None:
        self.woken.append(key)

    def _on_dead(self) -> None:
        self.deaths += 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def api(control_plane: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(control_plane))
    credentials = await Credentials.open()
    api = KubeClient(credentials.client())
    yield api
    await api.close()
    await credentials.close()


@pytest.fixture
async def bench(api: KubeClient, ns: Namespace) -> AsyncIterator[Bench]:
    bench = Bench(api, ns)
    yield bench
    await bench.close()


async def change(bench: Bench, ns: Namespace, replicas: int) -> None:
    """A change that no watch reports, until the resync finds it."""
    await asyncio.to_thread(ns.scale, "digits", replicas)
    version = int((await asyncio.to_thread(ns.job, "digits"))["metadata"]["resourceVersion"])
    await until(lambda: bench.jobs.version((ns.name, "digits")) >= version, "the change is found")


async def test_missed_changes_are_found_and_a_silent_watch_is_reported_dead(
    bench: Bench, ns: Namespace, submit: Callable[..., str]
) -> None:
    """What the watch never told of is found; a watch that misses again and again, and tells nothing, is called dead."""
    key = (ns.name, "digits")
    await asyncio.to_thread(submit)
    await until(lambda: key in bench.woken, "the job is found")
    assert bench.jobs.get(key) is not None
    await change(bench, ns, 3)
    assert bench.deaths == 0, "twice is bad luck"
    bench.resync.on_watch_event(key)
    for replicas in (4, 5):
        await change(bench, ns, replicas)
    assert bench.deaths == 0, "it lives: it told of something meanwhile"
    await change(bench, ns, 6)
    assert bench.deaths == 1


async def test_a_job_deleted_unseen_is_forgotten(bench: Bench, ns: Namespace, submit: Callable[..., str]) -> None:
    key = (ns.name, "digits")
    await asyncio.to_thread(submit)
    await until(lambda: bench.jobs.body(key) is not None)
    await asyncio.to_thread(ns.delete, "elasticjobs", "digits")
    await until(lambda: bench.jobs.body(key) is None, "the job is forgotten")


async def test_every_job_is_requeued_periodically(bench: Bench, ns: Namespace, submit: Callable[..., str]) -> None:
    await asyncio.to_thread(submit)
    await until(lambda: bench.woken.count((ns.name, "digits")) >= 2, "it differed the first time only", seconds=60)


async def test_a_restarted_watch_is_followed_by_a_resync_at_once(
    api: KubeClient, ns: Namespace, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells of what is there, not of what vanished while there was none."""
    monkeypatch.setattr("elasticjob_operator.controller.resync.RESTART_SECONDS", 0.1)
    bench = Bench(api, ns, seconds=3600)
    await asyncio.to_thread(submit)
    bench.jobs.put(await asyncio.to_thread(ns.job, "digits"))
    await asyncio.to_thread(ns.delete, "elasticjobs", "digits")
    bench.resync.on_watch_restarted()
    await until(lambda: bench.jobs.body((ns.name, "digits")) is None, "the job is forgotten")
    await bench.close()
