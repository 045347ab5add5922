from __future__ import annotations

import asyncio
import math
import time

import pytest
from elasticjob_operator.controller import work_queue as module
from elasticjob_operator.controller.work_queue import FIRST_WAIT, WorkQueue

from tests.unit.operator.waiting import until


class Bench:
    """A queue with workers, and what they did."""

    def __init__(self, workers: int = 2) -> None:
        self.queue: WorkQueue[str] = WorkQueue()
        self.done: list[str] = []
        self.running: set[str] = set()
        self.hold: dict[str, asyncio.Event] = {}
        self.fail: dict[str, int] = {}
        self._task = asyncio.create_task(self.queue.work(self._handle, workers))

    async def _handle(self, key: str) -> None:
        assert key not in self.running, "two workers on one key"
        self.running.add(key)
        try:
            if key in self.hold:
                await self.hold[key].wait()
            if self.fail.get(key, 0) > 0:
                self.fail[key] -= 1
                raise ConnectionError("not now")
        finally:
            self.running.discard(key)
            self.done.append(key)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def bench() -> object:
    bench = Bench()
    yield bench
    await bench.close()


async def test_a_key_added_often_is_processed_once(bench: Bench) -> None:
    for _ in range(100):
        bench.queue.add("a")
    await until(lambda: bench.done == ["a"])
    assert len(bench.queue) == 0


async def test_a_key_added_while_processed_is_processed_again(bench: Bench) -> None:
    bench.hold["a"] = asyncio.Event()
    bench.queue.add("a")
    await until(lambda: "a" in bench.running)
    bench.queue.add("a")
    bench.queue.add("a")
    bench.queue.add("b")
    await until(lambda: bench.done == ["b"])
    bench.hold["a"].set()
    await until(lambda: bench.done == ["b", "a", "a"])


async def test_a_failing_key_is_retried_with_backoff_and_delays_no_other(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    bench.fail["bad"] = 2
    bench.queue.add("bad")
    bench.queue.add("good")
    await until(lambda: "good" in bench.done)
    await until(lambda: bench.done.count("bad") == 3)
    assert loop.time() - started >= 0.75 * (FIRST_WAIT + 2 * FIRST_WAIT)


async def test_the_earliest_of_several_timers_wins(bench: Bench) -> None:
    now = asyncio.get_running_loop().time()
    bench.queue.add_at("a", now + 60)
    bench.queue.add_at("a", now + 0.05)
    bench.queue.add_at("a", now + 30)
    await until(lambda: bench.done == ["a"])


async def test_an_add_cancels_the_timer(bench: Bench) -> None:
    bench.queue.add_at("a", asyncio.get_running_loop().time() + 0.1)
    bench.queue.add("a")
    await until(lambda: bench.done == ["a"])
    bench.queue.add_at("b", asyncio.get_running_loop().time() + 0.15)
    await until(lambda: "b" in bench.done)
    assert bench.done == ["a", "b"]


async def test_a_bug_in_one_job_does_not_stop_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    original = bench._handle

    async def handle(key: str) -> None:
        if key == "bug":
            raise ZeroDivisionError("a bug")
        await original(key)

    queue: WorkQueue[str] = WorkQueue()
    task = asyncio.create_task(queue.work(handle, 1))
    queue.add("bug")
    queue.add("good")
    await until(lambda: bench.done == ["good"])
    assert "a bug" in caplog.text
    assert any(record.exc_info for record in caplog.records), "with its traceback"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_additions_during_the_cooldown_are_processed_once_and_soon() -> None:
    worked: list[float] = []
    loop = asyncio.get_running_loop()
    queue: WorkQueue[str] = WorkQueue(cooldown=lambda _: 0.1)

    async def handle(_: str) -> None:
        worked.append(loop.time())

    task = asyncio.create_task(queue.work(handle, 2))
    queue.add("a")
    await until(lambda: worked)
    for _ in range(20):  # without a pause: all while it rests
        queue.add("a")
    queue.add_at("a", loop.time() + 60)
    await until(lambda: len(worked) == 2)
    assert worked[1] - worked[0] >= 0.1
    await asyncio.sleep(0.15)
    assert len(worked) == 2
    queue.add("a")
    await until(lambda: len(worked) == 3)
    task.cancel()


async def test_depth_and_age_count_waiting_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert (len(queue), queue.age) == (0, 0.0)
    queue.add("a")
    await asyncio.sleep(0.02)
    queue.add("b")
    assert len(queue) == 2
    assert queue.age >= 0.02


async def test_hanging_reconciliations_occupy_no_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs whose webhook or etcd is silent, more than there are workers."""
    monkeypatch.setattr(module, "WORKER_SECONDS", 0.05)
    hanging = [f"hangs-{number}" for number in range(10)]
    for key in hanging:
        bench.hold[key] = asyncio.Event()
        bench.queue.add(key)
    await until(lambda: len(bench.running) == 10)
    bench.queue.add("good")
    await until(lambda: bench.done == ["good"])
    for key in hanging:
        bench.queue.add(key)  # never twice at once: _handle asserts it
        bench.hold[key].set()
    await until(lambda: len(bench.done) == 21)


async def test_slow_keys_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORKER_SECONDS", 0.02)
    monkeypatch.setattr(module, "MAX_SLOW", 3)
    monkeypatch.setattr(module, "SLOW_WAIT", 0.02)
    slow = [f"slow-{number}" for number in range(10)]
    for key in slow:
        bench.hold[key] = asyncio.Event()
        bench.queue.add(key)
    await until(lambda: len(bench.running) == 10)
    await asyncio.sleep(0.03)  # each is beyond its budget
    for key in slow:
        bench.hold[key].set()
    await until(lambda: len(bench.done) == 10)
    for key in slow:
        bench.hold[key] = asyncio.Event()
        bench.queue.add(key)
    await until(lambda: len(bench.running) == 3)
    bench.queue.add("good")
    await until(lambda: bench.done[-1] == "good")
    assert len(bench.running) == 3
    for key in slow:
        bench.hold[key].set()
    await until(lambda: len(bench.done) == 21)


async def test_a_key_that_was_added_aside_holds_no_worker() -> None:
    bench = Bench(workers=1)
    bench.hold["slow"] = asyncio.Event()
    end = bench.queue.add_aside("slow")
    await until(lambda: "slow" in bench.running)
    bench.queue.add("a")
    await until(lambda: bench.done == ["a"])
    assert not end.done()
    bench.hold["slow"].set()
    await asyncio.wait_for(end, 10)
    await bench.close()


async def test_what_is_added_aside_while_it_is_processed_ends_after_the_next_time(bench: Bench) -> None:
    bench.hold["a"] = asyncio.Event()
    bench.queue.add("a")
    await until(lambda: "a" in bench.running)
    end = bench.queue.add_aside("a")
    bench.hold["a"].set()
    await asyncio.wait_for(end, 10)
    assert bench.done == ["a", "a"]


async def test_a_key_that_is_not_accepted_is_dropped_when_its_turn_would_begin() -> None:
    led, processed = {"a"}, asyncio.Queue[str]()
    queue: WorkQueue[str] = WorkQueue(accepts=lambda key: key in led)
    work = asyncio.create_task(queue.work(processed.put, 1))
    queue.add("b")
    await queue.add_aside("b")
    queue.add("a")
    assert await processed.get() == "a"
    led.add("b")
    queue.add("b")
    assert await processed.get() == "b"
    assert processed.empty()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_what_is_added_later_comes_after_what_is_added_now() -> None:
    bench = Bench(workers=1)
    bench.queue.add_later("at rest")
    bench.queue.add_later("changes")
    bench.queue.add("new")
    bench.queue.add("changes")
    await until(lambda: len(bench.done) == 3)
    assert bench.done == ["new", "changes", "at rest"]
    await bench.close()


async def test_what_is_added_later_gets_its_turn_where_something_happens_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    bench = Bench(workers=1)
    bench.queue.add_later("at rest")
    number = 0
    while "at rest" not in bench.done:
        bench.queue.add(f"busy-{number}")
        bench.queue.add(f"busy-{number + 1}")
        number += 2
        await asyncio.sleep(0)
    assert len(bench.queue) > 0, "others were waiting all the time"
    await bench.close()


async def test_a_key_that_was_refused_is_known_until_it_is_processed() -> None:
    accepts = False
    queue: WorkQueue[str] = WorkQueue(accepts=lambda _: accepts)
    queue.add("changed")
    assert time.monotonic() - 60 < queue.refused_at("changed") <= time.monotonic()
    assert queue.refused_at("at rest") == -math.inf
    accepts, done = True, list[str]()

    async def handle(key: str) -> None:
        done.append(key)

    work = asyncio.create_task(queue.work(handle, 1))
    queue.add("changed")
    await until(lambda: bool(done))
    assert queue.refused_at("changed") == -math.inf
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_what_is_added_later_delays_no_change() -> None:
    """Neither one that waits for the end of a cooldown, nor a timer."""
    queue: WorkQueue[str] = WorkQueue(cooldown=lambda _: 0.05)
    done: list[str] = []

    async def handle(key: str) -> None:
        done.append(key)
        await asyncio.sleep(0.001)

    work = asyncio.create_task(queue.work(handle, 1))
    queue.add("a")
    await until(lambda: done == ["a"])
    queue.add("a")
    queue.add_later("a")
    queue.add_later("a")
    queue.add_at("b", asyncio.get_running_loop().time() + 0.05)
    busy = 0
    while not {"a", "b"} <= {*done[1:]}:
        queue.add(f"busy-{busy}")
        busy += 1
        queue.add_later("b")
        await asyncio.sleep(0.001)
    assert done.count("a") == 2, "not before the cooldown, and once"
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_refusals_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is deleted is never processed by an operator that does not lead it."""
    queue: WorkQueue[str] = WorkQueue(accepts=lambda _: False)
    queue.add("deleted")
    queue.add_later("at rest")
    monkeypatch.setattr(module, "REFUSED_SECONDS", -1.0)
    queue.add("changed")
    assert [queue.refused_at(key) for key in ("deleted", "at rest")] == [-math.inf, -math.inf]
    assert queue.refused_at("changed") > 0
