"""What the agent of rank 0 publishes of its worker processes' progress."""

from __future__ import annotations

import pytest
from elasticjob_runtime.agent.progress import RoundProgress
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.membership.hang import HangLimits
from elasticjob_runtime.telemetry.transitions import WorkerReport


@pytest.mark.parametrize(
    ("reported", "rank", "expected"),
    [
        pytest.param(True, 0, [(758, 700), (758, 758)], id="after the last step"),
        pytest.param(True, 1, [(758, 700)], id="by another rank, perhaps on a disk of its own"),
        pytest.param(False, 0, [], id="by a script that reports no progress"),
    ],
)
def test_a_checkpoint_is_published_when_it_is_saved(
    reported: bool, rank: int, expected: list[tuple[int, int | None]]
) -> None:
    """What is saved on SIGTERM, or before a change, is followed by no step."""
    published: list[ProgressValue] = []
    progress = RoundProgress(HangLimits(), published.append)
    progress.starting(0.0)
    if reported:
        progress.set_progress(ProgressValue(step=758, round=2, last_checkpoint_step=700), 2)
    progress.publish(0.0, at_once=True)
    progress.reported(WorkerReport(rank=rank, round=2, at=1000.0, phase="checkpoint", step=758), 1.0)
    progress.publish(1.0, at_once=True)
    assert [(value.step, value.last_checkpoint_step) for value in published] == expected
