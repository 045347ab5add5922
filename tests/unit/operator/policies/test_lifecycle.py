from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import Condition, ConditionStatus, Reason, Status
from elasticjob_operator.policies.lifecycle import deadlines, expiry, forget_last_run, is_resuming, starts_new_run

from tests.unit.operator.builders import NOW, at, make_job
from tests.unit.operator.tables import table


def job(
    lifecycle: dict[str, Any],
    suspended: bool | None = None,
    start: float | None = 0,
    completion: float | None = None,
    *,
    suspend: bool = False,
) -> Any:
    """`suspend`: what its spec says; `suspended`: what its status says."""
    status = "True" if suspended else "False"
    condition = Condition(type="Suspended", status=ConditionStatus(status), reason="Test", last_transition_time=NOW)
    return make_job(
        spec={"suspend": suspend, "lifecycle": lifecycle},
        status=Status(
            conditions=() if suspended is None else (condition,),
            start_time=at(start) if start is not None else None,
            completion_time=at(completion) if completion is not None else None,
            round=7,
            world_size=4,
        ),
    )


@table(
    "suspend, at_rest, start, resuming, new_run",
    {
        "never suspended": (False, None, 0, False, False),
        "to be suspended": (True, None, 0, False, False),
        "at rest": (True, True, 0, False, False),
        "resumed": (False, True, 0, True, True),
        "resumed before it was suspended: the run continues": (False, False, 0, False, False),
        "applied suspended, then resumed: its first run": (False, True, None, True, False),
    },
)
def test_a_resumed_job_starts_a_new_run(
    suspend: bool, at_rest: bool | None, start: float | None, resuming: bool, new_run: bool
) -> None:
    found = job({}, at_rest, start, suspend=suspend)
    assert (is_resuming(found), starts_new_run(found)) == (resuming, new_run)


def test_a_new_run_has_its_own_rounds_and_deadlines() -> None:
    found = forget_last_run(job({}, True).status)
    assert (found.round, found.world_size, found.start_time) == (0, 0, None)
    assert found.conditions == job({}, True).status.conditions


ACTIVE, STARTUP = Reason.DEADLINE_EXCEEDED, Reason.STARTUP_DEADLINE_EXCEEDED


@table(
    "lifecycle, start, trained, after, reason, again",
    {
        "none given": ({}, 0, False, 9999, None, None),
        "not accepted yet: no time runs": ({"activeDeadlineSeconds": 60}, None, False, 9999, None, None),
        "in time": ({"activeDeadlineSeconds": 60}, 0, True, 59, None, 60),
        "too long, though it trains": ({"activeDeadlineSeconds": 60}, 0, True, 60, ACTIVE, None),
        "long-pending pods: still in time": ({"startupDeadlineSeconds": 60}, 0, False, 59.5, None, 60),
        "long-pending pods hold the others no longer": ({"startupDeadlineSeconds": 60}, 0, False, 60, STARTUP, None),
        "has trained: a later restart may take its time": ({"startupDeadlineSeconds": 60}, 0, True, 9999, None, None),
        "the earlier of both": ({"startupDeadlineSeconds": 60, "activeDeadlineSeconds": 90}, 0, False, 10, None, 60),
        "the one that is left": ({"startupDeadlineSeconds": 60, "activeDeadlineSeconds": 90}, 0, True, 70, None, 90),
        "the operator was down": pytest.param(
            {"startupDeadlineSeconds": 60, "activeDeadlineSeconds": 90}, 0, False, 500, STARTUP, None
        ),
    },
)
def test_deadlines(
    lifecycle: dict[str, Any],
    start: float | None,
    trained: bool,
    after: float,
    reason: Reason | None,
    again: float | None,
) -> None:
    found = deadlines(job(lifecycle, start=start), trained=trained, waiting="no node takes it", now=at(after))
    assert (found.reason if found.status is False else None) == reason
    assert found.requeue_at == (at(again) if again is not None else None)


def test_the_message_of_a_deadline_names_field_value_and_cause() -> None:
    end = deadlines(
        job({"startupDeadlineSeconds": 5}), trained=False, waiting="digits-worker-3 is unschedulable", now=at(9)
    )
    assert end.status is False
    assert "spec.lifecycle.startupDeadlineSeconds (5 s): digits-worker-3 is unschedulable" in end.message


@table(
    "lifecycle, after, delete, again",
    {
        "no TTL": ({}, 9999, False, None),
        "within the TTL": ({"ttlSecondsAfterFinished": 60}, 59, False, 60),
        "TTL expired": ({"ttlSecondsAfterFinished": 60}, 60, True, None),
        "at once": ({"ttlSecondsAfterFinished": 0}, 0, True, None),
    },
)
def test_a_finished_job_is_deleted_after_its_ttl(
    lifecycle: dict[str, Any], after: float, delete: bool, again: float | None
) -> None:
    found = expiry(job(lifecycle, completion=0), at(after))
    assert (found.delete, found.requeue_at) == (delete, at(again) if again is not None else None)
