"""What worker processes report to their agent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.agent.rate_meter import RateMeter
from elasticjob_runtime.agent.worker_server import READS_AT_ONCE, WorkerServer
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.event_loop import EventLoop

from hack.support import eventually


class Bench:
    """A WorkerServer with its event loop, and connections of worker processes."""

    def __init__(self) -> None:
        self.received: list[ProgressValue] = []
        self.said: list[tuple[str, int, int]] = []
        self.event_loop = EventLoop()
        self.reports = WorkerServer(
            self.event_loop,
            self.received.append,
            on_saves=lambda rank, round_number: self.said.append(("saves", rank, round_number)),
            on_saved=lambda rank, round_number: self.said.append(("saved", rank, round_number)),
        )

    def worker(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.reports.path)
        return connection

    def receive(self, count: int) -> list[ProgressValue]:
        return wait_for(self.event_loop, self.received, count)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.reports.close()
    bench.event_loop.close()


def report(**fields: Any) -> bytes:
    return json.dumps({"type": "progress", "rank": 0, "step": 1, "time": 100.0, **fields}).encode()


def test_a_progress_report_reaches_the_agent(bench: Bench) -> None:
    bench.worker().send(report(step=7, last_checkpoint_step=5, metrics={"loss": 0.5}))
    (progress,) = bench.receive(1)
    assert progress == ProgressValue(step=7, round=0, last_checkpoint_step=5, metrics={"loss": 0.5}, updated_at=100.0)


def test_only_reports_of_rank_0_count(bench: Bench) -> None:
    worker = bench.worker()
    worker.send(report(rank=1, step=3))
    worker.send(report(rank=0, step=4))
    assert [progress.step for progress in bench.receive(1)] == [4]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut JSON"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"3", id="a number"),
        pytest.param(b'{"type": "progress"}', id="no step"),
        pytest.param(report(step="many"), id="text as step"),
        pytest.param(report(step=1e999), id="infinite step"),
        pytest.param(report(metrics=[1]), id="a list of metrics"),
        pytest.param(report(metrics={"loss": "low"}), id="text as metric"),
        pytest.param(report(rank="first"), id="text as rank"),
        pytest.param(report(time=None), id="no time"),
        pytest.param(b'{"type": "gossip"}', id="unknown type"),
    ],
)
def test_an_invalid_message_does_not_end_the_agent(bench: Bench, message: bytes) -> None:
    bench.worker().send(message)
    bench.worker().send(report(step=2))
    assert [progress.step for progress in bench.receive(1)] == [2]


def test_worker_processes_can_report_one_after_the_other(bench: Bench) -> None:
    for step in (1, 2, 3):
        worker = bench.worker()
        worker.send(report(step=step))
        worker.close()
    assert [progress.step for progress in bench.receive(3)] == [1, 2, 3]


def test_the_folder_of_the_socket_is_removed() -> None:
    bench = Bench()
    folder = os.path.dirname(bench.reports.path)
    assert os.path.isdir(folder)
    bench.reports.close()
    bench.event_loop.close()
    assert not os.path.exists(folder)


def test_pending_reports_are_read_at_the_end(bench: Bench) -> None:
    worker = bench.worker()
    worker.send(report(step=1))
    bench.receive(1)
    worker.send(report(step=2))
    bench.reports.drain()
    assert [progress.step for progress in bench.received] == [1, 2]


@pytest.mark.parametrize(
    ("reports", "rates"),
    [
        pytest.param([(5, 100.0)], [0.0], id="the first report has none"),
        pytest.param([(0, 0.0), (10, 1.0), (30, 2.0)], [0.0, 10.0, 15.0], id="the mean of recent reports"),
        pytest.param([(0, 0.0), (1, 20.0), (101, 30.0), (201, 40.0)], [0.0, 0.05, 10.0, 10.0], id="without old ones"),
        pytest.param([(0, 0.0), (100, 1.0), (50, 2.0), (60, 3.0)], [0.0, 100.0, 0.0, 10.0], id="after a restart"),
        pytest.param(
            [(0, 5000.0), (10, 5001.0), (20, 100.0), (40, 101.0)], [0.0, 10.0, 0.0, 20.0], id="clock set back"
        ),
        pytest.param([(0, 1.0), (1, 1.0)], [0.0, 0.0], id="two at the same time"),
    ],
)
def test_the_rate_is_that_of_recent_steps(reports: list[tuple[int, float]], rates: list[float]) -> None:
    meter = RateMeter()
    assert [meter.rate(step, at) for step, at in reports] == rates


def test_a_flood_of_reports_does_not_block_the_event_loop(bench: Bench) -> None:
    worker, sent = bench.worker(), 0
    worker.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            worker.send(report(step=sent))
            sent += 1
    assert sent > READS_AT_ONCE, "the kernel buffers too few for this test"
    bench.event_loop.wait(1.0)  # accepts
    bench.event_loop.wait(1.0)
    assert len(bench.received) == READS_AT_ONCE
    assert len(bench.receive(sent)) == sent, "nothing is lost"


def test_the_rate_of_a_flood_of_reports_takes_bounded_memory() -> None:
    meter = RateMeter()
    for number in range(50_000):
        rate = meter.rate(number, 100.0 + number / 4_000)
    assert rate == pytest.approx(4_000, rel=0.01)
    assert max(len(value) for value in vars(meter).values()) < 200
    assert meter.rate(60_000, 130.0) > 0


def wait_for(event_loop: EventLoop, received: list[Any], count: int) -> list[Any]:
    def enough() -> bool:
        event_loop.wait(0.01)
        return len(received) >= count

    eventually(enough, 10.0, what=f"{count} of {received}")
    return received


def test_a_worker_process_that_offers_to_save_is_asked_and_reports_the_end(bench: Bench) -> None:
    workers = [bench.worker(), bench.worker()]
    for rank, worker in enumerate(workers):
        worker.send(json.dumps({"type": "saves", "rank": rank, "round": 3}).encode())
    wait_for(bench.event_loop, bench.said, 2)
    bench.reports.ask_to_save(1, 30.0)
    bench.reports.ask_to_save(2, 30.0)  # no such worker: ignored
    workers[1].settimeout(10.0)
    assert json.loads(workers[1].recv(1000)) == {"type": "save", "seconds": 30.0, "stays": False}
    workers[1].send(json.dumps({"type": "saved", "rank": 1, "round": 3}).encode())
    assert wait_for(bench.event_loop, bench.said, 3)[2] == ("saved", 1, 3)
    workers[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        workers[0].recv(1000)
