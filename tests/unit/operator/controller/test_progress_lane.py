from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from elasticjob_operator.controller import progress_lane as module
from elasticjob_operator.controller.progress_lane import ProgressLane, TokenBucket
from elasticjob_operator.names import NamespacedName

from tests.unit.operator.waiting import until


@pytest.mark.parametrize(
    ("rate", "times", "granted"),
    [
        (2.0, [0, 0, 0, 0], 3),
        (2.0, [0, 0, 0, 0.4], 3),
        (2.0, [0, 0, 0, 0.5, 0.5], 4),
        (2.0, [0, 0, 0, 100, 100, 100, 100], 6),
    ],
    ids=["what was saved", "too early", "one more", "no more than that is saved"],
)
def test_a_bucket_grants_its_rate(rate: float, times: list[float], granted: int) -> None:
    bucket = TokenBucket(rate, burst=3)
    assert sum(bucket.take(time) == 0 for time in times) == granted


def test_a_bucket_says_when_the_next_token_is_there() -> None:
    bucket = TokenBucket(2.0, burst=1)
    assert bucket.take(10.0) == 0
    assert bucket.take(10.1) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "rates",
    [[4.0, 4.0], [1.0, 4.0], [0.0, 4.0], [8.0]],
    ids=["the same", "less and more", "none for a while", "more"],
)
def test_a_changed_rate_gives_no_new_tokens(rates: list[float]) -> None:
    bucket = TokenBucket(4.0, burst=4.0)
    assert sum(bucket.take(10.0) == 0 for _ in range(9)) == 4
    for rate in rates:
        bucket.set_rate(rate, burst=rate, now=10.0)
    assert bucket.take(10.0) > 0
    rate = rates[-1]
    assert bucket.take(10.0 + 1 / rate) == 0


def test_a_changed_rate_keeps_what_was_saved_before_up_to_the_new_burst() -> None:
    bucket = TokenBucket(4.0, burst=4.0)
    bucket.take(10.0)
    bucket.set_rate(2.0, burst=2.0, now=10.0)
    assert sum(bucket.take(10.0) == 0 for _ in range(9)) == 2


def key(name: str) -> NamespacedName:
    return "ml", name


class Bench:
    def __init__(self) -> None:
        self.written: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.fail = 0

    async def write(self, key: NamespacedName) -> None:
        self.fail -= 1
        if self.fail >= 0:
            raise ConnectionError("not now")
        self.written.append(key[1])
        await self.hold.wait()

    @contextlib.asynccontextmanager
    async def lane(self, rate: float, pause: float = 0.0) -> AsyncIterator[ProgressLane]:
        lane = ProgressLane(rate, self.write, pause=pause)
        task = asyncio.create_task(lane.run())
        yield lane
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_progress_is_written_oldest_first_and_once_however_often_it_is_reported() -> None:
    bench = Bench()
    async with bench.lane(rate=1000.0) as lane:
        for name in ("a", "b", "a", "c", "a"):
            lane.add(key(name))
        await until(lambda: bench.written == ["a", "b", "c"])
        assert (len(lane), lane.age) == (0, 0.0)
        lane.add(key("a"))
        await until(lambda: bench.written == ["a", "b", "c", "a"])


async def test_jobs_beyond_the_budget_wait_and_are_counted() -> None:
    bench = Bench()
    async with bench.lane(rate=1e-3) as lane:
        for name in ("a", "b", "c"):
            lane.add(key(name))
        await until(lambda: bench.written == ["a"], "one token is there at first")
        assert len(lane) == 2
        await until(lambda: lane.age > 0)
        lane.on_written(key("b"), time.monotonic())
        lane.forget(key("c"))
        assert len(lane) == 0


async def test_what_is_reported_while_something_is_written_waits_for_the_next_write() -> None:
    bench = Bench()
    async with bench.lane(rate=1e-3) as lane:
        lane.add(key("first"))
        await until(lambda: bench.written == ["first"], "one token is there at first")
        lane.add(key("a"))
        decided_at = time.monotonic()
        await until(lambda: time.monotonic() > decided_at)
        lane.add(key("a"))
        lane.on_written(key("a"), decided_at)
        assert len(lane) == 1
        lane.on_written(key("a"), time.monotonic())
        assert len(lane) == 0


async def test_a_frozen_api_server_holds_no_more_than_the_writes_under_way() -> None:
    bench = Bench()
    bench.hold.clear()
    async with bench.lane(rate=1000.0) as lane:
        for number in range(100):
            lane.add(key(f"job-{number:02}"))
        await until(lambda: len(bench.written) == module.MOST_AT_ONCE)
        assert len(lane) == 100 - module.MOST_AT_ONCE
        bench.hold.set()
        await until(lambda: len(bench.written) == 100)


async def test_a_job_that_was_just_written_waits_its_pause_and_others_do_not() -> None:
    bench = Bench()
    async with bench.lane(rate=1000.0, pause=1000.0) as lane:
        lane.on_written(key("a"), time.monotonic())
        lane.add(key("a"))
        lane.add(key("b"))
        await until(lambda: bench.written == ["b"])
        assert len(lane) == 1


async def test_a_failed_write_is_tried_again_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.1)
    bench = Bench()
    bench.fail = 1
    async with bench.lane(rate=1000.0) as lane:
        lane.add(key("a"))
        lane.add(key("b"))
        await until(lambda: bench.written == ["b", "a"])


async def test_without_a_budget_nothing_waits_and_nothing_is_written() -> None:
    bench = Bench()
    async with bench.lane(rate=0.0) as lane:
        lane.add(key("a"))
        assert (len(lane), lane.age) == (0, 0.0)


async def test_a_lane_whose_share_is_nothing_waits_until_it_has_one_again() -> None:
    bench = Bench()
    async with bench.lane(rate=1e-3) as lane:
        for name in ("a", "b"):
            lane.add(key(name))
        await until(lambda: bench.written == ["a"])
        lane.set_rate(0.0)
        await asyncio.sleep(0.01)
        assert bench.written == ["a"]
        lane.set_rate(1000.0)
        await until(lambda: bench.written == ["a", "b"])
