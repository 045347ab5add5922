"""What an agent knows of the steps of its workers."""

from __future__ import annotations

from elasticjob_runtime.agent.progress import Progress
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.telemetry.transitions import WorkerReport


def test_workers_that_wait_for_a_plan_do_not_hang() -> None:
    progress = Progress(HangLimits(), lambda _: None)
    for step in range(9):
        progress.reported(WorkerReport(rank=0, round=1, at=0.0, phase="step", step=step), float(step))
    assert progress.hang(90.0) is not None
    assert progress.hang(500.0, waits=True) is None
    assert progress.hang(500.0) is None, "what was before does not count"
