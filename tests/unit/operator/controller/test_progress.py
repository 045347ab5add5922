"""ElasticJobProgresses: which jobs get one, and what a refusal costs. tests/integration has a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from elasticjob_operator.controller import JobCache, ProgressWriter, WorkQueue
from elasticjob_operator.controller import progress as module
from elasticjob_operator.kube import ApiError, RejectedError
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import RendezvousView
from elasticjob_runtime.contract import ProgressValue

from tests.unit.operator.builders import NOW, TEMPLATE, make_view
from tests.unit.operator.waiting import until

ONE, TWO = ("ml", "one"), ("other", "two")


class Cluster:
    def __init__(self) -> None:
        self.asked = 0
        self.written: list[dict[str, Any]] = []
        self.errors: dict[str, ApiError] = {}
        """By namespace."""

    async def write_progress(self, body: dict[str, Any]) -> None:
        self.asked += 1
        if error := self.errors.get(body["metadata"]["namespace"]):
            raise error
        self.written.append(body)


def view(_: NamespacedName) -> RendezvousView:
    return make_view(progress=ProgressValue(step=7, round=1), progress_seen_at=NOW)


@contextlib.asynccontextmanager
async def writer(cluster: Cluster) -> AsyncIterator[ProgressWriter]:
    jobs = JobCache()
    for namespace, name in (ONE, TWO):
        metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
        jobs.put({"metadata": metadata, "spec": {"workers": {"template": TEMPLATE}}})
    settings = Settings(progress_status_writes=0, progress_writes=1000)
    written = ProgressWriter(settings, jobs, WorkQueue(), cluster, view)  # type: ignore[arg-type]
    task = asyncio.create_task(written.objects.run())
    yield written
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OBJECT_WAIT", 0.0)
    monkeypatch.setattr(module, "OBJECT_PAUSE", 0.0)


async def test_a_job_whose_status_falls_behind_gets_an_object_of_its_own() -> None:
    cluster = Cluster()
    async with writer(cluster) as progress:
        progress.on_report(ONE)
        await until(lambda: cluster.written)
    (body,) = cluster.written
    assert body["progress"] == {"step": 7, "stepsPerSecond": 0.0, "metrics": {}, "observedAt": "2026-01-01T12:00:00Z"}
    assert body["optimizerSteps"] is None, "what was there before is removed"
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("ElasticJob", "one", "uid-one", True)


async def test_no_object_is_written_for_what_the_status_has() -> None:
    cluster = Cluster()
    async with writer(cluster) as progress:
        progress.on_report(ONE)
        progress.on_status_written(ONE, decided_at=time.monotonic())
        progress.on_report(TWO)
        await until(lambda: cluster.written)
    assert [body["metadata"]["name"] for body in cluster.written] == ["two"]


async def test_what_no_status_may_be_written_for_is_written_beside_the_job() -> None:
    """As a step that goes back: it is planned for, and no report of progress alone."""
    cluster = Cluster()
    async with writer(cluster) as progress:
        assert not progress.may_write_status(ONE)
        await until(lambda: cluster.written)


async def test_a_namespace_that_refuses_is_not_asked_again_at_once_and_others_are_written() -> None:
    """Without the right to write them, or without their CRD."""
    cluster = Cluster()
    cluster.errors = {"ml": RejectedError(403, "Forbidden", "no")}
    async with writer(cluster) as progress:
        for asked in (1, 1):
            progress.on_report(ONE)
            await until(lambda: len(progress.objects) == 0)
            assert cluster.asked == asked
        progress.on_report(TWO)
        await until(lambda: [body["metadata"]["name"] for body in cluster.written] == ["two"])


async def test_only_a_job_whose_training_is_silent_is_reconciled_for_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    now = datetime.datetime.now(datetime.timezone.utc)
    seen = {ONE: now, TWO: now - datetime.timedelta(minutes=2)}
    queue: WorkQueue[NamespacedName] = WorkQueue()
    reports = lambda key: make_view(progress_seen_at=seen[key])  # noqa: E731
    progress = ProgressWriter(Settings(), JobCache(), queue, Cluster(), reports)  # type: ignore[arg-type]
    reconciled: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> None:
        reconciled.append(key)

    tasks = [asyncio.create_task(progress.watch_stalls()), asyncio.create_task(queue.work(reconcile, 1))]
    for key in (ONE, TWO):
        progress.expect(key, now)
    await until(lambda: TWO in reconciled)
    assert reconciled == [TWO], "the other one has reported"
    seen[ONE] = seen[TWO]
    progress.expect(ONE, now)
    await until(lambda: ONE in reconciled)
    progress.expect(TWO, now)
    progress.expect(TWO, None)
    await asyncio.sleep(0.01)
    assert reconciled == [TWO, ONE], "each once, and not after it has ended"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
