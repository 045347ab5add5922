"""What counts as progress alone, and so costs no plan and waits for the budget of all jobs."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import ConditionType, GoodputStatus, OptimizerSteps, Progress, StoredHistory
from elasticjob_operator.policies.progress import only_progress_changed, only_progress_reported
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import ProgressValue

from tests.unit.operator.builders import NOW, make_failure, make_plan, make_status, make_view
from tests.unit.operator.tables import table


def reported(step: int, round_number: int = 3, **fields: Any) -> ProgressValue:
    return ProgressValue(step=step, round=round_number, **fields)


TRAINS = make_view(plan=make_plan(3), progress=reported(10))
COUNTS = make_view(plan=make_plan(3), counted=reported(0, optimizer_steps=10))


@table(
    "before, after, alone",
    {
        "nothing new": (TRAINS, TRAINS, False),
        "a step": (TRAINS, make_view(plan=make_plan(3), progress=reported(11)), True),
        "a checkpoint": (TRAINS, make_view(plan=make_plan(3), progress=reported(10, last_checkpoint_step=10)), True),
        "metrics": (TRAINS, make_view(plan=make_plan(3), progress=reported(10, metrics={"loss": 0.5})), True),
        "optimizer steps": (COUNTS, make_view(plan=make_plan(3), counted=reported(0, optimizer_steps=12)), True),
        "the first report": (make_view(plan=make_plan(3)), TRAINS, False),
        "no report any more": (TRAINS, make_view(plan=make_plan(3)), False),
        "another kind of report": (TRAINS, COUNTS, False),
        "the first report of a round": (TRAINS, make_view(plan=make_plan(3), progress=reported(11, 4)), False),
        "steps that are repeated": (TRAINS, make_view(plan=make_plan(3), progress=reported(9)), False),
        "and a new round": (TRAINS, make_view(plan=make_plan(4), progress=reported(11)), False),
        "and a failure": (TRAINS, make_view(plan=make_plan(3), progress=reported(11), failure=make_failure(1)), False),
        "and an outage of etcd": pytest.param(
            TRAINS, make_view(Connectivity.UNREACHABLE, plan=make_plan(3), progress=reported(11)), False
        ),
    },
)
def test_reports_of_progress_alone_are_told_from_changes(before: Any, after: Any, alone: bool) -> None:
    assert only_progress_reported(before, after) is alone


def history(*samples: str, changes: tuple[dict[str, Any], ...] = ()) -> StoredHistory:
    return StoredHistory({"changes": list(changes), "samples": list(samples)})


CHANGE = {"time": "2026-01-01T12:00:00Z", "type": "Round", "round": 1}
RUNS = make_status(ConditionType.RUNNING, progress=Progress(step=1), history=history("a", changes=(CHANGE,)))


@table(
    "changed, alone",
    {
        "nothing": ({}, False),
        "a step": ({"progress": Progress(step=2)}, True),
        "a sample": ({"progress": Progress(step=2), "history": history("a", "b", changes=(CHANGE,))}, True),
        "goodput": ({"progress": Progress(step=2), "goodput": GoodputStatus(percent=9, updated_at=NOW)}, True),
        "no progress any more": ({"progress": None}, False),
        "another kind of progress": ({"progress": None, "optimizer_steps": OptimizerSteps(count=2)}, False),
        "and a pod": ({"progress": Progress(step=2), "ready_replicas": 1}, False),
        "and how long a round took to start": (
            {"progress": Progress(step=2), "history": history("a", changes=({**CHANGE, "resumeSeconds": 1.5},))},
            False,
        ),
        "and a condition": ({"progress": Progress(step=2), "conditions": ()}, False),
    },
)
def test_statuses_that_differ_in_progress_alone_are_told_from_others(changed: dict[str, Any], alone: bool) -> None:
    assert only_progress_changed(RUNS, RUNS.model_copy(update=changed)) is alone


def test_the_first_progress_of_a_job_is_a_change_of_state() -> None:
    before = make_status(ConditionType.RUNNING)
    assert not only_progress_changed(before, before.model_copy(update={"progress": Progress(step=1)}))
