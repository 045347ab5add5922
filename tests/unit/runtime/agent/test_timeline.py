"""Events as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from elasticjob_runtime.agent.timeline import Timeline


def test_events_are_json_lines_that_can_be_read_at_once(tmp_path: Path) -> None:
    timeline = Timeline("w0", tmp_path / "events")
    timeline.event("plan", epoch=1, size=3)
    (line,) = (tmp_path / "events").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("time") > 0
    assert event == {"member": "w0", "event": "plan", "epoch": 1, "size": 3}


def test_a_second_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        timeline = Timeline(name, tmp_path / "events")
        timeline.event("plan")
        timeline.close()
    assert len((tmp_path / "events").read_text().splitlines()) == 2


def test_without_a_file_nothing_is_written() -> None:
    timeline = Timeline("w0")
    timeline.event("plan")
    timeline.close()


def test_a_full_disk_does_not_end_the_training() -> None:
    timeline = Timeline("w0", Path("/dev/full"))
    timeline.event("plan", epoch=1)
    timeline.event("plan", epoch=2)
    timeline.close()
