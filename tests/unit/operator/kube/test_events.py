"""Whose Events are posted when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from elasticjob_api import Reason
from elasticjob_operator.kube import events as module
from elasticjob_operator.kube.events import EventRecorder
from elasticjob_operator.planning import JobEvent

from tests.unit.operator.waiting import until


class Bench:
    """The API server: a list, and namespaces in which nothing is answered."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []
        self.under_way: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.recorder = EventRecorder(self)  # type: ignore[arg-type]
        self._task = asyncio.create_task(self.recorder.run())

    async def request(self, _method: str, path: str, *, body: dict[str, Any]) -> None:
        namespace = path.split("/")[4]
        assert namespace not in self.under_way, "of one namespace one after the other"
        self.under_way.append(namespace)
        if namespace in self.gates:
            await self.gates[namespace].wait()
        await asyncio.sleep(0)
        self.under_way.remove(namespace)
        self.posted.append((namespace, body["message"]))

    def record(self, namespace: str, message: str) -> None:
        self.recorder.record(namespace, "digits", "u", "1", JobEvent(reason=Reason.TRAINING, message=message))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


async def test_events_of_a_namespace_are_posted_in_order_and_then_released(bench: Bench) -> None:
    for number in range(10):
        bench.record("ml", str(number))
    await until(lambda: len(bench.posted) == 10)
    assert [message for _, message in bench.posted] == [str(number) for number in range(10)]
    bench.record("ml", "later")
    await until(lambda: len(bench.posted) == 11)
    await until(lambda: (bench.recorder._waiting, bench.recorder._count) == ({}, 0))


async def test_an_event_never_waits_for_a_backlog_of_another_namespace(bench: Bench) -> None:
    for number in range(900):
        bench.record("noisy", str(number))
    bench.record("quiet", "mine")
    await until(lambda: ("quiet", "mine") in bench.posted)
    assert bench.posted.index(("quiet", "mine")) < 10


async def test_a_hanging_webhook_in_one_namespace_drops_no_event_of_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_PER_NAMESPACE", 20)
    bench.gates["broken"] = asyncio.Event()
    for number in range(100):
        bench.record("broken", str(number))
    for number in range(15):
        bench.record("ml", str(number))
    await until(lambda: len(bench.posted) == 15)
    bench.gates["broken"].set()
    await until(lambda: len(bench.posted) == 15 + 20)
