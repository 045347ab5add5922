"""Set-up shows what is running, why, how long it took last time, and where to look if it fails."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from hack.steps import StepError, Steps, concurrently, run_logged


def shown(tmp_path: Path, text: io.StringIO) -> Steps:
    return Steps(Console(file=text, width=200), tmp_path / "timings.json")


def test_a_step_shows_its_reason_and_how_long_it_took_last_time(tmp_path: Path) -> None:
    text = io.StringIO()
    for _ in range(2):
        with shown(tmp_path, text) as steps, steps.step("build", "no registry here", usually=40):
            pass
    first, second = (line for line in text.getvalue().splitlines() if line.startswith("·"))
    assert first == "· build (no registry here; takes about 40 s on 2 cores)"
    assert second == "· build (no registry here; took 0 s last time)"


def test_a_step_that_fails_is_shown_as_failed_and_not_timed(tmp_path: Path) -> None:
    text = io.StringIO()
    with pytest.raises(ValueError, match="broken"), shown(tmp_path, text) as steps, steps.step("build"):
        raise ValueError("broken")
    assert "✗ build failed after" in text.getvalue()
    assert not (tmp_path / "timings.json").exists()


def test_a_broken_file_of_timings_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "timings.json").write_text("{")
    with shown(tmp_path, io.StringIO()) as steps, steps.step("build"):
        pass
    assert "build" in (tmp_path / "timings.json").read_text()


def test_a_failing_program_is_reported_with_its_last_output_and_its_log(tmp_path: Path) -> None:
    lines: list[str] = []
    program = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    with pytest.raises(StepError, match=rf"(?s)exited with 3.*{tmp_path}/log.*two"):
        run_logged([sys.executable, "-c", program], tmp_path / "log", lines.append)
    assert sorted(lines) == ["one", "two"]
    assert "two" in (tmp_path / "log").read_text()


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="no-such-program is not installed"):
        run_logged(["no-such-program", "now"], tmp_path / "log")


def test_all_parallel_steps_end_before_the_first_error_is_reported() -> None:
    ended = threading.Event()

    def failing() -> str:
        raise ValueError("first")

    def slow() -> str:
        ended.wait(0.05)
        ended.set()
        return "slow"

    with pytest.raises(ValueError, match="first"):
        concurrently(failing, slow)
    assert ended.is_set()


def test_results_of_parallel_steps_keep_their_order() -> None:
    assert concurrently(lambda: 1, lambda: 2, lambda: 3) == [1, 2, 3]
