"""torchelastic's watchdog. That torch's own client works with it is tested with real workers (tests/integration)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.timers import ENABLE, FILE, TimerServer


@pytest.fixture
def event_loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def ask(path: str, pid: int, at: float, scope: str = "step", number: int = signal.SIGKILL) -> None:
    """As torch's FileTimerClient does."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
        file.write(
            json.dumps({"version": 1, "pid": pid, "scope_id": scope, "expiration_time": at, "signal": number}) + "\n"
        )


def server(event_loop: EventLoop, folder: Path, *ours: int, **environment: str) -> TimerServer:
    return TimerServer({ENABLE: "1", **environment}, str(folder), event_loop, lambda pid: pid in ours)


def test_nobody_asked_for_it(event_loop: EventLoop, tmp_path: Path) -> None:
    timers = TimerServer({}, str(tmp_path), event_loop, lambda _pid: True)
    assert timers.environment == {}
    assert timers.deadline is None
    assert list(tmp_path.iterdir()) == []
    timers.close()


def test_a_worker_that_is_too_late_is_ended(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, sleeper.pid)
    path = timers.environment[FILE]
    ask(path, sleeper.pid, time.time() + 0.05)
    event_loop.wait(5)
    time.sleep(max(0.0, (timers.deadline or 0.0) - time.monotonic()) + 0.01)
    timers.tick(time.monotonic())
    assert sleeper.wait(10) == -signal.SIGKILL
    assert timers.deadline is None
    timers.close()
    assert not os.path.exists(path)


def test_who_is_done_in_time_is_left_alone(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, sleeper.pid)
    ask(timers.environment[FILE], sleeper.pid, time.time() - 1)
    ask(timers.environment[FILE], sleeper.pid, -1)
    event_loop.wait(5)
    assert timers.deadline is None
    timers.tick(time.monotonic())
    assert sleeper.poll() is None
    timers.close()


def test_only_workers_are_ended_and_only_with_a_signal(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, 1)
    ask(timers.environment[FILE], sleeper.pid, time.time() - 1)
    ask(timers.environment[FILE], 1, time.time() - 1, number=0)
    event_loop.wait(5)
    timers.tick(time.monotonic())
    assert sleeper.poll() is None
    timers.close()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", '{"pid": "x"}', "null", '{"pid": 1, "scope_id": "s", "expiration_time": "soon", "signal": 9}'],
)
def test_what_nobody_understands_is_ignored(event_loop: EventLoop, tmp_path: Path, line: str) -> None:
    timers = server(event_loop, tmp_path)
    Path(timers.environment[FILE]).write_text(line + "\n")
    event_loop.wait(5)
    assert timers.deadline is None
    timers.close()


def test_the_users_file_is_used(event_loop: EventLoop, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("left by an earlier agent")
    timers = server(event_loop, tmp_path, **{FILE: str(tmp_path / "mine")})
    assert timers.environment == {FILE: str(tmp_path / "mine")}
    assert (tmp_path / "mine").is_fifo()
    timers.close()
