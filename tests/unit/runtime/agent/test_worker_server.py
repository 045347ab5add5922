"""What workers tell their agent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.agent.worker_server import READS_AT_ONCE, RateMeter, WorkerServer
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.event_loop import EventLoop

from hack.support import eventually


class Desk:
    """A report socket with its loop, and a worker."""

    def __init__(self) -> None:
        self.heard: list[ProgressValue] = []
        self.event_loop = EventLoop()
        self.reports = WorkerServer(self.event_loop, self.heard.append)

    def worker(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.reports.path)
        return connection

    def hears(self, count: int) -> list[ProgressValue]:
        def enough() -> bool:
            self.event_loop.wait(0.01)
            return len(self.heard) >= count

        eventually(enough, 10.0, what=f"{count} reports; {self.heard}")
        return self.heard


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.reports.close()
    desk.event_loop.close()


def report(**fields: Any) -> bytes:
    return json.dumps({"type": "progress", "rank": 0, "step": 1, "time": 100.0, **fields}).encode()


def test_progress(desk: Desk) -> None:
    desk.worker().send(report(step=7, last_checkpoint_step=5, metrics={"loss": 0.5}))
    (progress,) = desk.hears(1)
    assert progress == ProgressValue(step=7, round=0, last_checkpoint_step=5, metrics={"loss": 0.5}, updated_at=100.0)


def test_only_rank_0_counts(desk: Desk) -> None:
    worker = desk.worker()
    worker.send(report(rank=1, step=3))
    worker.send(report(rank=0, step=4))
    assert [progress.step for progress in desk.hears(1)] == [4]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"3",
        b'{"type": "progress"}',
        report(step="many"),
        report(step=1e999),
        report(metrics=[1]),
        report(metrics={"loss": "low"}),
        report(rank="first"),
        report(time=None),
        b'{"type": "gossip"}',
    ],
)
def test_a_worker_that_talks_nonsense_does_not_end_its_agent(desk: Desk, nonsense: bytes) -> None:
    desk.worker().send(nonsense)
    desk.worker().send(report(step=2))
    assert [progress.step for progress in desk.hears(1)] == [2]


def test_several_workers_and_the_next_after_the_first_has_gone(desk: Desk) -> None:
    for step in (1, 2, 3):
        worker = desk.worker()
        worker.send(report(step=step))
        worker.close()
    assert [progress.step for progress in desk.hears(3)] == [1, 2, 3]


def test_the_folder_of_the_socket_is_removed() -> None:
    desk = Desk()
    folder = os.path.dirname(desk.reports.path)
    assert os.path.isdir(folder)
    desk.reports.close()
    desk.event_loop.close()
    assert not os.path.exists(folder)


def test_what_nobody_read_yet_can_be_read_at_the_end(desk: Desk) -> None:
    worker = desk.worker()
    worker.send(report(step=1))
    desk.hears(1)
    worker.send(report(step=2))
    desk.reports.drain()
    assert [progress.step for progress in desk.heard] == [1, 2]


def rates(*reports: tuple[int, float]) -> list[float]:
    meter = RateMeter()
    return [meter.rate(step, at) for step, at in reports]


def test_the_rate_of_the_first_report_is_not_known() -> None:
    assert rates((5, 100.0)) == [0.0]


def test_the_rate_over_the_last_reports() -> None:
    assert rates((0, 0.0), (10, 1.0), (30, 2.0)) == [0.0, 10.0, 15.0]


def test_the_rate_forgets_what_was_long_ago() -> None:
    assert rates((0, 0.0), (1, 20.0), (101, 30.0), (201, 40.0))[-1] == 10.0


def test_the_rate_starts_over_after_a_restart() -> None:
    assert rates((0, 0.0), (100, 1.0), (50, 2.0), (60, 3.0)) == [0.0, 100.0, 0.0, 10.0]


def test_the_rate_starts_over_when_the_clock_is_set_back() -> None:
    assert rates((0, 5000.0), (10, 5001.0), (20, 100.0), (40, 101.0)) == [0.0, 10.0, 0.0, 20.0]


def test_two_reports_at_one_moment() -> None:
    assert rates((0, 1.0), (1, 1.0)) == [0.0, 0.0]


def test_a_worker_that_reports_without_end_does_not_keep_the_loop_from_anything_else(desk: Desk) -> None:
    worker, sent = desk.worker(), 0
    worker.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            worker.send(report(step=sent))
            sent += 1
    assert sent > READS_AT_ONCE, "the kernel holds too few for this test"
    desk.event_loop.wait(1.0)  # accepts
    desk.event_loop.wait(1.0)
    assert len(desk.heard) == READS_AT_ONCE
    assert len(desk.hears(sent)) == sent, "but nothing is lost"


def test_the_rate_of_a_worker_that_reports_without_end_costs_no_memory_and_no_time() -> None:
    meter = RateMeter()
    for number in range(50_000):
        rate = meter.rate(number, 100.0 + number / 4_000)
    assert rate == pytest.approx(4_000, rel=0.01)
    assert max(len(value) for value in vars(meter).values()) < 200
    assert meter.rate(60_000, 130.0) > 0
