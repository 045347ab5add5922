"""torchelastic's watchdog timers. That torch's own client works with them is tested in tests/integration."""

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


def set_timer(path: str, pid: int, at: float, scope: str = "step", number: int = signal.SIGKILL) -> None:
    """As torch's FileTimerClient does."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
        file.write(
            json.dumps({"version": 1, "pid": pid, "scope_id": scope, "expiration_time": at, "signal": number}) + "\n"
        )


def server(event_loop: EventLoop, folder: Path, *ours: int, **environment: str) -> TimerServer:
    return TimerServer({ENABLE: "1", **environment}, str(folder), event_loop, lambda pid: pid in ours)


def test_without_the_variable_there_are_no_timers(event_loop: EventLoop, tmp_path: Path) -> None:
    timers = TimerServer({}, str(tmp_path), event_loop, lambda _pid: True)
    assert timers.environment == {}
    assert timers.deadline is None
    assert list(tmp_path.iterdir()) == []
    timers.close()


def test_a_worker_process_that_exceeds_its_timer_is_killed(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, sleeper.pid)
    path = timers.environment[FILE]
    set_timer(path, sleeper.pid, time.time() + 0.05)
    event_loop.wait(5)
    time.sleep(max(0.0, (timers.deadline or 0.0) - time.monotonic()) + 0.01)
    timers.tick(time.monotonic())
    assert sleeper.wait(10) == -signal.SIGKILL
    assert timers.deadline is None
    timers.close()
    assert not os.path.exists(path)


def test_a_released_timer_kills_no_process(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, sleeper.pid)
    set_timer(timers.environment[FILE], sleeper.pid, time.time() - 1)
    set_timer(timers.environment[FILE], sleeper.pid, -1)
    event_loop.wait(5)
    assert timers.deadline is None
    timers.tick(time.monotonic())
    assert sleeper.poll() is None
    timers.close()


def test_only_worker_processes_are_killed_and_only_with_a_valid_signal(
    event_loop: EventLoop, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    timers = server(event_loop, tmp_path, 1)
    set_timer(timers.environment[FILE], sleeper.pid, time.time() - 1)
    set_timer(timers.environment[FILE], 1, time.time() - 1, number=0)
    event_loop.wait(5)
    timers.tick(time.monotonic())
    assert sleeper.poll() is None
    timers.close()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", '{"pid": "x"}', "null", '{"pid": 1, "scope_id": "s", "expiration_time": "soon", "signal": 9}'],
)
def test_an_invalid_message_is_ignored(event_loop: EventLoop, tmp_path: Path, line: str) -> None:
    timers = server(event_loop, tmp_path)
    Path(timers.environment[FILE]).write_text(line + "\n")
    event_loop.wait(5)
    assert timers.deadline is None
    timers.close()


def test_the_users_fifo_path_is_used(event_loop: EventLoop, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("left by an earlier agent")
    timers = server(event_loop, tmp_path, **{FILE: str(tmp_path / "mine")})
    assert timers.environment == {FILE: str(tmp_path / "mine")}
    assert (tmp_path / "mine").is_fifo()
    timers.close()
