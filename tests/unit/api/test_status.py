"""The status: it is read as it was written, and nothing that a script reports can make the write fail."""

from __future__ import annotations

import datetime
from typing import Any

import pydantic
import pytest
from elasticjob_api import (
    MESSAGES,
    Condition,
    ConditionStatus,
    ConditionType,
    Failure,
    Progress,
    Reason,
    Status,
    message,
    set_condition,
    summary_of,
)

NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=datetime.timezone.utc)
LATER = NOON + datetime.timedelta(minutes=1)


def conditions(
    *each: tuple[ConditionType, bool | None], at: datetime.datetime = NOON, start: tuple[Condition, ...] = ()
) -> tuple[Condition, ...]:
    result = start
    for type_, status in each:
        result = set_condition(
            result, type=type_, status=status, reason=Reason.ACCEPTED, message="", generation=1, now=at
        )
    return result


def test_a_status_survives_a_round_trip_through_the_api_server() -> None:
    status = Status(
        replicas=2,
        progress=Progress(step=7, steps_per_second=1.5, metrics={"loss": "0.25"}, updated_at=NOON),
        conditions=conditions((ConditionType.ACCEPTED, True)),
        start_time=NOON,
    )
    assert Status.model_validate(status.to_api()) == status


def test_times_are_utc_with_whole_seconds() -> None:
    berlin = NOON.astimezone(datetime.timezone(datetime.timedelta(hours=1)))
    assert Status(start_time=berlin).to_api()["startTime"] == "2026-01-02T12:00:00Z"
    with pytest.raises(pydantic.ValidationError, match="time without a zone"):
        Status(start_time=NOON.replace(tzinfo=None))


def test_unset_fields_are_left_out() -> None:
    assert "stepsPerSecond" not in Progress(steps_per_second=float("nan")).to_api()
    written = Status().to_api()
    assert "progress" not in written
    assert "startTime" not in written
    assert written["restarts"] == {"total": 0, "byCause": {}}


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        pytest.param({"loss": 0.123456789, "accuracy": 1}, {"loss": "0.123457", "accuracy": "1"}, id="six digits"),
        pytest.param(
            {"loss": float("nan"), "norm": float("inf")},
            {"loss": "nan", "norm": "inf"},
            id="a loss that is NaN is shown",
        ),
        pytest.param({1: 2.0, "b": "x"}, {"1": "2", "b": "x"}, id="names become text"),
        pytest.param({"stage": "x" * 100}, {"stage": "x" * 64}, id="long text is cut"),
        pytest.param({f"m{i:03}": i for i in range(100)}, {f"m{i:03}": str(i) for i in range(32)}, id="the first 32"),
    ],
)
def test_metrics_are_stored_as_short_strings(reported: Any, shown: dict[str, str]) -> None:
    assert Progress(metrics=reported).metrics == shown


def test_a_long_traceback_keeps_its_end() -> None:
    kept = Failure(message="x" * 10_000 + "ValueError: the cause").message
    assert len(kept) == 8192
    assert kept.startswith("...")
    assert kept.endswith("ValueError: the cause")


HIDDEN = ["\x1b[2J", "\x9b2J", "\x07", "\u202e", "\u2066", "\r", "\x7f"]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_no_character_of_a_script_moves_the_cursor_of_a_reader(hidden: str) -> None:
    """kubectl prints much of a status as it is."""
    text = f"line\n\tloss {hidden}"
    failure = Failure(message=text, worker=text)
    progress = Progress(metrics={text: text})
    shown = [failure.message, failure.worker, *progress.metrics, *progress.metrics.values()]
    running: dict[str, Any] = {"type": ConditionType.RUNNING, "status": True, "reason": Reason.TRAINING}
    (condition,) = set_condition((), **running, message=text, generation=1, now=NOON)
    for item in (*shown, condition.message):
        assert hidden[0] not in item
        assert item.startswith("line\n\tloss \ufffd")


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = conditions((ConditionType.RUNNING, False))
    same = set_condition(
        first,
        type=ConditionType.RUNNING,
        status=False,
        reason=Reason.WAITING_FOR_WORKERS,
        message="1 of 2",
        generation=2,
        now=LATER,
    )
    assert same[0].last_transition_time == first[0].last_transition_time
    assert (same[0].reason, same[0].message, same[0].observed_generation) == ("WaitingForWorkers", "1 of 2", 2)
    changed = conditions((ConditionType.RUNNING, True), at=LATER, start=same)
    assert changed[0].last_transition_time == LATER.replace(microsecond=0)


def test_setting_an_equal_condition_changes_nothing() -> None:
    once = conditions((ConditionType.ACCEPTED, True), (ConditionType.RUNNING, None))
    assert conditions((ConditionType.ACCEPTED, True), (ConditionType.RUNNING, None), at=LATER, start=once) == once
    assert once[1].status is ConditionStatus.UNKNOWN


ACCEPTED, RUNNING, RESTARTING = ConditionType.ACCEPTED, ConditionType.RUNNING, ConditionType.RESTARTING


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "", id="nothing yet"),
        pytest.param({ACCEPTED: (False, Reason.INVALID_POD_TEMPLATE)}, "InvalidPodTemplate", id="rejected"),
        pytest.param({ACCEPTED: (True, Reason.ACCEPTED)}, "Accepted", id="accepted"),
        pytest.param({RUNNING: (False, Reason.WAITING_FOR_WORKERS)}, "WaitingForWorkers", id="starting"),
        pytest.param({RUNNING: (False, Reason.UNSCHEDULABLE)}, "Unschedulable", id="cannot start"),
        pytest.param(
            {
                RUNNING: (False, Reason.WAITING_FOR_RENDEZVOUS),
                ConditionType.RENDEZVOUS_READY: (False, Reason.ETCD_UNREACHABLE),
            },
            "EtcdUnreachable",
            id="no etcd",
        ),
        pytest.param({RUNNING: (True, Reason.TRAINING), RESTARTING: (False, Reason.RESUMED)}, "Running", id="training"),
        pytest.param(
            {RUNNING: (True, Reason.TRAINING), ConditionType.DEGRADED: (True, Reason.WORKER_LOST)},
            "Degraded",
            id="fewer worker pods",
        ),
        pytest.param(
            {RUNNING: (True, Reason.TRAINING), ConditionType.RESIZING: (True, Reason.SCALING_UP)},
            "Resizing",
            id="resizing",
        ),
        pytest.param(
            {RUNNING: (False, Reason.WAITING_FOR_WORKERS), RESTARTING: (True, Reason.WORKER_LOST)},
            "Restarting",
            id="restarting",
        ),
        pytest.param(
            {RUNNING: (False, Reason.POD_REJECTED), RESTARTING: (True, Reason.WORKER_LOST)},
            "PodRejected",
            id="cannot restart",
        ),
        pytest.param(
            {RUNNING: (False, Reason.SUSPENDING), ConditionType.SUSPENDED: (False, Reason.SUSPENDING)},
            "Suspending",
            id="suspending",
        ),
        pytest.param(
            {RUNNING: (False, Reason.SUSPENDED), ConditionType.SUSPENDED: (True, Reason.SUSPENDED)},
            "Suspended",
            id="suspended",
        ),
        pytest.param(
            {ConditionType.QUEUED: (True, Reason.EVICTED), ConditionType.SUSPENDED: (True, Reason.EVICTED)},
            "Queued",
            id="in its queue",
        ),
        pytest.param(
            {
                ACCEPTED: (False, Reason.POD_REJECTED),
                ConditionType.QUEUED: (True, Reason.NOT_ACCEPTED),
                ConditionType.SUSPENDED: (True, Reason.NOT_ACCEPTED),
            },
            "PodRejected",
            id="rejected before it can be in its queue",
        ),
        pytest.param(
            {ACCEPTED: (False, Reason.POD_REJECTED), ConditionType.SUSPENDED: (True, Reason.SUSPENDED)},
            "Suspended",
            id="suspended, whether or not it is accepted",
        ),
        pytest.param(
            {RUNNING: (False, Reason.FINISHED), ConditionType.FAILED: (True, Reason.DEADLINE_EXCEEDED)},
            "Failed",
            id="failed",
        ),
    ],
)
def test_the_summary_is_the_most_important_condition(
    given: dict[ConditionType, tuple[bool, Reason]], expected: str
) -> None:
    result: tuple[Condition, ...] = ()
    for type_, (status, reason) in ({ACCEPTED: (True, Reason.ACCEPTED), **given} if given else {}).items():
        result = set_condition(result, type=type_, status=status, reason=reason, message="", generation=1, now=NOON)
    assert summary_of(result) == expected


def test_a_succeeded_or_failed_job_is_finished() -> None:
    assert not Status(conditions=conditions((ConditionType.RUNNING, True), (ConditionType.FAILED, False))).is_finished
    assert Status(conditions=conditions((ConditionType.FAILED, True))).is_finished
    assert Status(conditions=conditions((ConditionType.SUCCEEDED, True))).is_finished


def test_every_reason_has_a_message_and_is_a_valid_condition_reason() -> None:
    assert set(MESSAGES) == set(Reason)
    for reason in Reason:
        assert f"{reason}" == reason.value
        set_condition((), type=ConditionType.ACCEPTED, status=True, reason=reason, message="", generation=1, now=NOON)


def test_a_message_without_its_values_is_a_key_error() -> None:
    assert message(Reason.ETCD_CREATED, name="digits-etcd") == "Created StatefulSet digits-etcd for the job's etcd."
    with pytest.raises(KeyError):
        message(Reason.ETCD_CREATED)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"exit_code": 3, "message": "exit code 3: killed\ntraceback"}, "ApplicationError, exit code 3: killed"),
        ({"exit_code": 3, "message": "exit code 3"}, "ApplicationError, exit code 3"),
        ({"exit_code": 1, "message": "ValueError: x"}, "ApplicationError, exit code 1: ValueError: x"),
        ({"message": "no step for 60 s"}, "ApplicationError: no step for 60 s"),
        ({}, "ApplicationError"),
    ],
)
def test_a_failure_names_its_exit_code_once(fields: dict[str, Any], cause: str) -> None:
    assert Failure(reason="ApplicationError", **fields).cause == cause


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "metric a is NoneType, not a number"),
        ([1], "metric a is list, not a number"),
        (10**400, "metric a is too large for a floating-point number"),
    ],
)
def test_metrics_that_are_no_numbers_are_named(value: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Progress(step=1, metrics={"a": value})
