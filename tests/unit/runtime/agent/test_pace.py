"""How fast worker processes are, from their pages."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.agent.pace import PaceMeter, Throttling
from elasticjob_runtime.contract import PaceValue
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.training.auto_progress import WAITED, WAITED_AT

from tests.unit.runtime.agent.pages import Pages
from tests.unit.runtime.membership.builders import make_plan

PLAN = make_plan("abcd", me="c", round_number=7, nproc=2)


class Workers(Pages):
    """One of them waits for the other."""

    def have_taken(self, steps: int, at: float) -> None:
        for rank, waited in ((0, 0.03), (1, 0.01)):
            self.write(rank, WAITED.pack(steps, at, steps * waited), WAITED_AT)


def windows(folder: pathlib.Path, *, steps_per_second: int, seconds: int) -> list[PaceValue]:
    workers, meter, found = Workers(folder), PaceMeter(0.0), list[PaceValue]()
    for second in range(1, seconds + 1):
        workers.have_taken(steps_per_second * second, float(second))
        if pace := meter.read(workers.error_files, PLAN, float(second)):
            found.append(pace)
    return found


def test_own_time_is_what_a_step_takes_beyond_waiting(tmp_path: pathlib.Path) -> None:
    first = windows(tmp_path, steps_per_second=20, seconds=3)[0]
    assert first.own_seconds == pytest.approx({"4": 0.02, "5": 0.04})
    assert first.step_seconds == pytest.approx(0.05)
    assert (first.round, first.window) == (7, 1)


@pytest.mark.parametrize(
    ("steps_per_second", "seconds", "count"),
    [
        pytest.param(20, 7, range(3, 4), id="the first three windows of quick steps take 120 steps"),
        pytest.param(1, 100, range(2, 3), id="a window has 30 steps"),
        pytest.param(20, 7200, range(360), id="a long round has a window a minute"),
    ],
)
def test_windows_are_frequent_at_first(
    tmp_path: pathlib.Path, steps_per_second: int, seconds: int, count: range
) -> None:
    assert len(windows(tmp_path, steps_per_second=steps_per_second, seconds=seconds)) in count


def test_nothing_is_said_until_all_workers_step(tmp_path: pathlib.Path) -> None:
    workers, meter = Workers(tmp_path), PaceMeter(0.0)
    auto_progress.create_page(auto_progress.page_file(workers.error_files[1]))
    assert meter.read(workers.error_files, PLAN, 1.0) is None
    assert meter.read({}, PLAN, 3.0) is None


def test_throttling_is_the_share_of_periods_since_the_last_look(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cpu.stat"
    file.write_text("nr_periods 100\nnr_throttled 50\nthrottled_time 9\n")
    throttling = Throttling(file)
    assert throttling.share() == 0.0, "no period since"
    file.write_text("nr_periods 200\nnr_throttled 75\nthrottled_time 9\n")
    assert throttling.share() == 0.25
    file.unlink()
    assert Throttling(file).share() == 0.0
