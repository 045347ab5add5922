"""Events as JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from elasticjob_runtime.telemetry.event_log import EventLog

from hack.support import eventually


def test_events_are_json_lines_written_at_once(tmp_path: Path) -> None:
    log = EventLog("w0", tmp_path / "events")
    log.event("plan", round=1, size=3)
    (line,) = eventually(lambda: (tmp_path / "events").read_text().splitlines())
    event = json.loads(line)
    assert event.pop("time") > 0
    assert event == {"member": "w0", "event": "plan", "round": 1, "size": 3}


def test_a_second_run_appends_to_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        log = EventLog(name, tmp_path / "events")
        log.event("plan")
        log.close()
    assert len((tmp_path / "events").read_text().splitlines()) == 2


@pytest.mark.parametrize("path", [None, Path("/dev/full")], ids=["no file", "a full disk"])
def test_events_that_cannot_be_written_do_not_end_the_training(path: Path | None) -> None:
    log = EventLog("w0", path)
    log.event("plan", round=1)
    log.event("plan", round=2)
    log.close()


def test_a_hanging_disk_does_not_block_the_agent_and_later_gets_all_events_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events")
    reading = os.open(tmp_path / "events", os.O_RDONLY | os.O_NONBLOCK)
    log = EventLog("w0", tmp_path / "events")
    for number in range(3_000):  # more than a pipe holds; this would hang
        log.event("plan", round=number, message="x" * 100)
    seen = b""

    def all_of_them() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(reading, 1 << 20)
        return seen.count(b"\n") == 3_000

    eventually(all_of_them)
    assert [json.loads(line)["round"] for line in seen.splitlines()] == list(range(3_000))
    log.close()
    os.close(reading)
