"""What the agent makes of the steps that its workers report, and of the optimizer steps that they count."""

from __future__ import annotations

import pathlib

from elasticjob_runtime.agent.optimizer_steps import OptimizerSteps
from elasticjob_runtime.agent.progress import RoundProgress
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.membership.hang import Hang, HangLimits
from elasticjob_runtime.telemetry.transitions import WorkerReport
from elasticjob_runtime.training import auto_progress

from tests.unit.runtime.agent.pages import Pages


class Workers(Pages):
    def have_taken(self, steps: int, at: float, passes: int = 0, passed_at: float = 0.0) -> None:
        for rank in self.error_files:
            self.write(rank, auto_progress.PAGE.pack(steps, at, passes, passed_at))


def test_counts_are_published_less_and_less_often(tmp_path: pathlib.Path) -> None:
    workers, steps = Workers(tmp_path), OptimizerSteps(0.0)
    steps.watch(workers.error_files)
    written = []
    for second in range(1, 7201):
        workers.have_taken(10 * second, second)
        steps.read(second)
        if value := steps.progress(1, second, 1e9 + second, at_once=False):
            written.append(value)
    assert len(written) < 20
    assert written[-1].steps_per_second == 10.0
    workers.have_taken(99_999, 7200.5)
    steps.finish(7201)
    last = steps.progress(1, 7201, 1e9, at_once=True)
    assert last is not None
    assert last.optimizer_steps == 99_999, "the last count of a training is not lost"


def test_a_script_that_reports_is_not_counted_for_it(tmp_path: pathlib.Path) -> None:
    workers, published = Workers(tmp_path), list[ProgressValue]()
    progress = RoundProgress(HangLimits(), published.append)
    progress.starting(0.0)
    progress.set_progress(ProgressValue(step=3, round=1), 1)
    workers.have_taken(5, 1.0)
    assert progress.count(workers.error_files, 1.0) is None
    progress.publish_counted(1, 1.0, 1e9, at_once=True)
    progress.publish(1.0, at_once=True)
    assert [value.step for value in published] == [3]


def test_a_hang_is_seen_in_the_count_until_the_script_reports(tmp_path: pathlib.Path) -> None:
    workers = Workers(tmp_path)
    progress = RoundProgress(HangLimits(factor=20.0, least=60.0), lambda _: None)
    progress.starting(0.0)
    for second in range(1, 11):
        workers.have_taken(2 * second, second)
        progress.count(workers.error_files, second)
    assert progress.hang(69.0) is None
    progress.reported(WorkerReport(rank=0, round=1, at=0.0, phase="pause", seconds=100.0), 11.0)
    assert progress.hang(170.0) is None, "an announced pause counts here, too"
    hang = progress.hang(172.0)
    assert hang is not None
    assert hang.text == "no step for 162 s, median 0.5 s, beyond the announced pause of 100 s"


def test_backward_passes_stand_in_for_steps_that_are_not_seen(tmp_path: pathlib.Path) -> None:
    """An optimizer of the script's own."""
    workers, published = Workers(tmp_path), list[ProgressValue]()
    progress = RoundProgress(HangLimits(factor=20.0, least=60.0), published.append)
    progress.starting(0.0)
    for second in range(1, 11):
        workers.have_taken(0, 0.0, 2 * second, second)
        progress.count(workers.error_files, second)
    progress.publish_counted(1, 10.0, 1e9, at_once=True)
    assert [(value.optimizer_steps, value.backward_passes) for value in published] == [(0, 20)]
    assert published[0].steps_per_second == 2.0
    assert progress.hang(69.0) is None
    hang = progress.hang(70.0)
    assert hang is not None
    assert hang.text == "no backward pass for 60 s, median 0.5 s"
    workers.have_taken(1, 71.0, 21, 71.0)
    progress.count(workers.error_files, 71.0)
    progress.publish_counted(1, 71.0, 1e9, at_once=True)
    assert (published[-1].optimizer_steps, published[-1].backward_passes) == (1, None), "steps are seen after all"


def test_a_script_whose_steps_are_skipped_for_long_does_not_hang(tmp_path: pathlib.Path) -> None:
    """A GradScaler skips them while gradients overflow."""
    workers, asked = Workers(tmp_path), list[Hang | None]()
    progress = RoundProgress(HangLimits(factor=20.0, least=60.0), lambda _: None)
    progress.starting(0.0)
    for second in range(1, 300):
        workers.have_taken(min(second, 10), min(second, 10), second, second)
        progress.count(workers.error_files, second)
        asked.append(progress.hang(second))
    assert not any(asked)
    hang = progress.hang(359.0)
    assert hang is not None
    assert hang.text == "no step for 349 s, median 1 s"


def test_workers_that_wait_for_a_plan_do_not_hang() -> None:
    progress = RoundProgress(HangLimits(), lambda _: None)
    for step in range(9):
        progress.reported(WorkerReport(rank=0, round=1, at=0.0, phase="step", step=step), float(step))
    assert progress.hang(90.0) is not None
    assert progress.hang(500.0, waits=True) is None
    assert progress.hang(500.0) is None, "what was before does not count"
