"""What counts as progress alone, and so costs no plan and waits for the budget of all jobs."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import ConditionType, GoodputStatus, OptimizerSteps, Progress, StoredHistory
from elasticjob_operator.policies.progress import only_progress_changed, only_progress_reported
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import ProgressValue

from tests.unit.operator.builders import NOW, make_failure, make_plan, make_status, make_view


def reported(step: int, round_number: int = 3, **fields: Any) -> ProgressValue:
    return ProgressValue(step=step, round=round_number, **fields)


TRAINS = make_view(plan=make_plan(3), progress=reported(10))
COUNTS = make_view(plan=make_plan(3), counted=reported(0, optimizer_steps=10))


@pytest.mark.parametrize(
    ("before", "after", "alone"),
    [
        (TRAINS, TRAINS, False),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(11)), True),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(10, last_checkpoint_step=10)), True),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(10, metrics={"loss": 0.5})), True),
        (COUNTS, make_view(plan=make_plan(3), counted=reported(0, optimizer_steps=12)), True),
        (make_view(plan=make_plan(3)), TRAINS, False),
        (TRAINS, make_view(plan=make_plan(3)), False),
        (TRAINS, COUNTS, False),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(11, 4)), False),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(9)), False),
        (TRAINS, make_view(plan=make_plan(4), progress=reported(11)), False),
        (TRAINS, make_view(plan=make_plan(3), progress=reported(11), failure=make_failure(1)), False),
        (TRAINS, make_view(Connectivity.UNREACHABLE, plan=make_plan(3), progress=reported(11)), False),
    ],
    ids=[
        "nothing new",
        "a step",
        "a checkpoint",
        "metrics",
        "optimizer steps",
        "the first report",
        "no report any more",
        "another kind of report",
        "the first report of a round",
        "steps that are repeated",
        "and a new round",
        "and a failure",
        "and an outage of etcd",
    ],
)
def test_reports_of_progress_alone_are_told_from_changes(before: Any, after: Any, alone: bool) -> None:
    assert only_progress_reported(before, after) is alone


def history(*samples: str, changes: tuple[dict[str, Any], ...] = ()) -> StoredHistory:
    return StoredHistory({"changes": list(changes), "samples": list(samples)})


CHANGE = {"time": "2026-01-01T12:00:00Z", "type": "Round", "round": 1}
RUNS = make_status(ConditionType.RUNNING, progress=Progress(step=1), history=history("a", changes=(CHANGE,)))


@pytest.mark.parametrize(
    ("changed", "alone"),
    [
        ({}, False),
        ({"progress": Progress(step=2)}, True),
        ({"progress": Progress(step=2), "history": history("a", "b", changes=(CHANGE,))}, True),
        ({"progress": Progress(step=2), "goodput": GoodputStatus(percent=9, updated_at=NOW)}, True),
        ({"progress": None}, False),
        ({"progress": None, "optimizer_steps": OptimizerSteps(count=2)}, False),
        ({"progress": Progress(step=2), "ready_replicas": 1}, False),
        ({"progress": Progress(step=2), "history": history("a", changes=({**CHANGE, "resumeSeconds": 1.5},))}, False),
        ({"progress": Progress(step=2), "conditions": ()}, False),
    ],
    ids=[
        "nothing",
        "a step",
        "a sample",
        "goodput",
        "no progress any more",
        "another kind of progress",
        "and a pod",
        "and how long a round took to start",
        "and a condition",
    ],
)
def test_statuses_that_differ_in_progress_alone_are_told_from_others(changed: dict[str, Any], alone: bool) -> None:
    assert only_progress_changed(RUNS, RUNS.model_copy(update=changed)) is alone


def test_the_first_progress_of_a_job_is_a_change_of_state() -> None:
    before = make_status(ConditionType.RUNNING)
    assert not only_progress_changed(before, before.model_copy(update={"progress": Progress(step=1)}))
