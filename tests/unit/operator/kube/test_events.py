"""Whose Events are posted when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from elasticjob_api import Reason
from elasticjob_operator.kube import events as module
from elasticjob_operator.kube.client import NotFoundError
from elasticjob_operator.kube.events import SIMILAR, EventRecorder
from elasticjob_operator.planning import JobEvent

from tests.unit.operator.waiting import until


class Bench:
    """The API server: a list, and namespaces in which nothing is answered."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []
        self.counts: dict[str, int] = {}
        self.under_way: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.recorder = EventRecorder(self)  # type: ignore[arg-type]
        self._task = asyncio.create_task(self.recorder.run())

    async def request(self, method: str, path: str, *, body: dict[str, Any], **_: object) -> None:
        namespace = path.split("/")[4]
        if method == "PATCH":
            name = path.split("/")[6]
            if name not in self.counts:
                raise NotFoundError(404, "NotFound", name)
            self.counts[name] = body["count"]
            self.posted.append((namespace, body["message"]))
            return
        self.counts[body["metadata"]["name"]] = body["count"]
        assert namespace not in self.under_way, "of one namespace one after the other"
        self.under_way.append(namespace)
        if namespace in self.gates:
            await self.gates[namespace].wait()
        await asyncio.sleep(0)
        self.under_way.remove(namespace)
        self.posted.append((namespace, body["message"]))

    def record(self, namespace: str, message: str, *, version: str = "1", uid: str = "") -> None:
        event = JobEvent(reason=Reason.TRAINING, message=message)
        self.recorder.record(namespace, "digits", uid or message, version, event)

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


async def test_no_event_moves_the_cursor_of_a_reader(bench: Bench) -> None:
    bench.record("ml", "failed: \x1b[2J\u202e")
    await until(lambda: bench.posted == [("ml", "failed: \ufffd[2J\ufffd")])


async def test_an_event_that_happens_again_is_counted(bench: Bench) -> None:
    for version in range(5):
        bench.record("ml", "Created digits-worker-1.", version=str(version))
    await until(lambda: len(bench.posted) == 5)
    assert list(bench.counts.values()) == [5]


async def test_an_event_is_posted_again_once_the_first_has_expired(bench: Bench) -> None:
    bench.record("ml", "again")
    await until(lambda: len(bench.counts) == 1)
    bench.counts.clear()
    bench.record("ml", "again", version="2")
    await until(lambda: list(bench.counts.values()) == [1])


async def test_many_events_for_one_reason_become_one(bench: Bench) -> None:
    """A job whose pods fail for days does not fill the namespace with Events."""
    for number in range(100):
        bench.record("ml", f"Deleted digits-worker-1-{number}.", uid="u")
    await until(lambda: len(bench.posted) == 100)
    assert sorted(bench.counts.values()) == [1] * SIMILAR + [100 - SIMILAR]
    assert bench.posted[-1] == ("ml", "(combined from similar events): Deleted digits-worker-1-99.")
