from __future__ import annotations

import pytest
from elasticjob_api import ConditionType, Reason, Status, set_condition
from elasticjob_operator.planning import CreateObject, CreatePod, DeletePod
from elasticjob_operator.planning.events import events_of_actions, events_of_status, repeatable
from elasticjob_operator.state import Kind

from tests.unit.operator.builders import NOW
from tests.unit.operator.tables import table

RUNNING, RESTARTING, FAILED = ConditionType.RUNNING, ConditionType.RESTARTING, ConditionType.FAILED
READY = ConditionType.RENDEZVOUS_READY


def having(type_: ConditionType, status: bool, reason: Reason, message: str = "message") -> Status:
    return Status(
        conditions=set_condition((), type=type_, status=status, reason=reason, message=message, generation=1, now=NOW)
    )


@table(
    "before, after, expected",
    {
        "trains": (Status(), having(RUNNING, True, Reason.TRAINING), [(Reason.TRAINING, False)]),
        "only the message changes": pytest.param(
            having(RUNNING, True, Reason.TRAINING, "round 1"), having(RUNNING, True, Reason.TRAINING, "round 2"), []
        ),
        "routine": (Status(), having(RUNNING, False, Reason.WAITING_FOR_WORKERS), []),
        "someone must act": pytest.param(
            Status(), having(RUNNING, False, Reason.IMAGE_UNAVAILABLE), [(Reason.IMAGE_UNAVAILABLE, True)]
        ),
        "a failure": (Status(), having(RESTARTING, True, Reason.WORKER_FAILED), [(Reason.WORKER_FAILED, True)]),
        "a disruption": (Status(), having(RESTARTING, True, Reason.WORKER_LOST), [(Reason.WORKER_LOST, False)]),
        "in the event of Training": pytest.param(
            having(RESTARTING, True, Reason.WORKER_LOST), having(RESTARTING, False, Reason.RESUMED), []
        ),
        "etcd is ready": (Status(), having(READY, True, Reason.ETCD_READY), []),
        "etcd has started": (having(READY, False, Reason.ETCD_STARTING), having(READY, True, Reason.ETCD_READY), []),
        "etcd is reachable again": (
            having(READY, False, Reason.ETCD_UNREACHABLE),
            having(READY, True, Reason.ETCD_READY),
            [(Reason.ETCD_READY, False)],
        ),
        "not failed": (Status(), having(FAILED, False, Reason.NOT_FINISHED), []),
        "in the event of Succeeded": (Status(), having(FAILED, False, Reason.WORKERS_SUCCEEDED), []),
        "failed": pytest.param(
            Status(), having(FAILED, True, Reason.MAX_RESTARTS_EXCEEDED), [(Reason.MAX_RESTARTS_EXCEEDED, True)]
        ),
    },
)
def test_events_of_condition_changes(before: Status, after: Status, expected: list[tuple[Reason, bool]]) -> None:
    assert [(event.reason, event.warning) for event in events_of_status(before, after)] == expected


def test_many_pods_are_one_event() -> None:
    created = [
        CreatePod(job="digits", like={}, index=index, name=f"digits-worker-{index}-wgz5q", reason="")
        for index in range(1000)
    ]
    etcd = CreateObject(kind=Kind.STATEFUL_SET, body={"metadata": {"name": "digits-etcd"}}, reason="")
    assert [(event.reason, event.message) for event in events_of_actions([*created, etcd])] == [
        (Reason.WORKER_CREATED, "Created 1000 worker pods, the first digits-worker-0, the last digits-worker-999."),
        (Reason.ETCD_CREATED, "Created StatefulSet digits-etcd for the job's etcd."),
    ]


def test_worker_pods_are_named_in_the_order_of_their_indices() -> None:
    created = [
        CreatePod(job="digits", like={}, index=index, name=f"digits-worker-{index}", reason="") for index in (2, 10, 1)
    ]
    (event,) = events_of_actions(created)
    assert event.message == "Created digits-worker-1, digits-worker-2, digits-worker-10."


def test_conditions_with_the_same_cause_are_one_event() -> None:
    conditions = (
        condition for type_ in (READY, RUNNING) for condition in having(type_, False, Reason.UNSCHEDULABLE).conditions
    )
    both = Status(conditions=tuple(conditions))
    assert [event.reason for event in events_of_status(Status(), both)] == [Reason.UNSCHEDULABLE]


def test_the_event_of_a_deletion_has_its_reason() -> None:
    (event,) = events_of_actions([DeletePod(name="digits-worker-3", uid="u", reason="node n1 is not ready")])
    assert (event.reason, event.message) == (Reason.WORKER_DELETED, "Deleted digits-worker-3: node n1 is not ready")


def test_many_deletions_for_one_reason_are_one_event() -> None:
    gone = [
        DeletePod(name=f"digits-worker-{index}-wgz5q", uid="u", reason="the job is suspended") for index in range(1000)
    ]
    (event,) = events_of_actions(gone)
    assert (
        event.message
        == "Deleted 1000 worker pods, the first digits-worker-0, the last digits-worker-999: the job is suspended"
    )


@table(
    "before, after, expected",
    {
        "no condition changes": (Status(), Status(), ["b failed"]),
        "in the event of Restarting": (Status(), having(RESTARTING, True, Reason.WORKER_FAILED), ["message"]),
    },
)
def test_every_counted_failure_is_one_event(before: Status, after: Status, expected: list[str]) -> None:
    assert [event.message for event in events_of_status(before, after, "b failed")] == expected


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("exit code 1: 2026-11-24 22:00:01,100 ERROR cuda", "exit code 1"),
        ("InitContainerFailed, exit code 3: init container fetch: no such dataset", None),
        ("exit code 1: ValueError: a: b", None),
    ],
)
def test_the_event_of_a_failure_has_the_last_line_unless_that_has_a_time(cause: str, expected: str | None) -> None:
    text = f"digits-worker-0-abcde failed ({cause}); restart 1 of at most 3 follows."
    assert repeatable(text) == f"digits-worker-0 failed ({expected or cause})."
