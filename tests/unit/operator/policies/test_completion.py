from __future__ import annotations

from collections.abc import Sequence

import pytest
from elasticjob_api import Failure, Reason, Restarts
from elasticjob_operator.policies.completion import outcome
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import Connectivity, Pod, PodPhase, RendezvousView

from tests.unit.operator.builders import NOW, at, ended, failed_pod, make_job, make_outcome, make_pod, make_view
from tests.unit.operator.tables import table

FINE = Budget(limit=3)
LAST = Failure(worker="digits-worker-2", reason="ApplicationError", message="ValueError: no\nTraceback", time=NOW)
SPENT = Budget(restarts=Restarts(total=4), limit=3, last_failure=LAST)
FATAL = Budget(restarts=Restarts(total=1), limit=3, last_failure=LAST, fatal=LAST)


def won(index: int, seconds: float = 0) -> Pod:
    return make_pod(index, PodPhase.SUCCEEDED, end=ended(0, at=seconds, reason="Completed"))


AWAY = make_view(Connectivity.UNREACHABLE)


@table(
    "view, workers, budget, succeeded, reason, again",
    {
        "trains": (make_view(), [make_pod(0)], FINE, None, None, None),
        "no pods yet": (make_view(), [], FINE, None, None, None),
        "agents say so": (make_view(outcome=make_outcome()), [make_pod(0)], FINE, True, Reason.WORKERS_SUCCEEDED, None),
        "no outcome: all pods succeeded": (make_view(), [won(0), won(1)], FINE, True, Reason.WORKERS_SUCCEEDED, None),
        "all ended, one well": (make_view(), [won(0), failed_pod(1)], FINE, True, Reason.WORKERS_SUCCEEDED, None),
        "etcd unreachable: all pods succeeded, the outcome may be unread": pytest.param(
            AWAY, [won(0), won(1)], FINE, None, None, 10
        ),
        "not read yet: the same": (make_view(Connectivity.CONNECTING), [won(0), won(1)], FINE, None, None, 10),
        "etcd unreachable for longer than the grace period": pytest.param(
            AWAY, [won(0, -10), won(1, -9)], FINE, True, Reason.WORKERS_SUCCEEDED, None
        ),
        "one ended well, another still runs: a grace": (AWAY, [won(0), make_pod(1)], FINE, None, None, 10),
        "worker running forever after others completed": pytest.param(
            AWAY, [won(0, -10), make_pod(1)], FINE, True, Reason.WORKERS_SUCCEEDED, None
        ),
        "late pod": (AWAY, [won(0, -10), make_pod(1, PodPhase.PENDING)], FINE, True, Reason.WORKERS_SUCCEEDED, None),
        "a deleted pod that exits with 0 is no success": (
            make_view(),
            [make_pod(0, PodPhase.SUCCEEDED, end=ended(0, at=-99), deletion_timestamp=0), make_pod(1)],
            FINE,
            None,
            None,
            None,
        ),
        "a rule ends it": (make_view(), [failed_pod(0)], FATAL, False, Reason.FAILED_BY_RULE, None),
        "budget spent": (make_view(), [failed_pod(0)], SPENT, False, Reason.MAX_RESTARTS_EXCEEDED, None),
        "agents spent the budget": (
            make_view(outcome=make_outcome("failed", "MaxRestartsExceeded", message="boom")),
            [make_pod(0)],
            FINE,
            False,
            Reason.MAX_RESTARTS_EXCEEDED,
            None,
        ),
        "agents gave up": (
            make_view(outcome=make_outcome("failed", "Other", message="boom")),
            [make_pod(0)],
            FINE,
            False,
            Reason.WORKERS_FAILED,
            None,
        ),
        "the reported outcome is final": pytest.param(
            make_view(outcome=make_outcome()), [failed_pod(0)], SPENT, True, Reason.WORKERS_SUCCEEDED, None
        ),
    },
)
def test_when_a_job_has_ended(
    view: RendezvousView,
    workers: Sequence[Pod],
    budget: Budget,
    succeeded: bool | None,
    reason: Reason | None,
    again: float | None,
) -> None:
    found = outcome(make_job(), view, workers, budget, NOW)
    assert found.status is succeeded
    assert reason is None or found.reason is reason
    assert found.requeue_at == (at(again) if again is not None else None)


def test_the_message_names_the_failed_worker_and_the_field() -> None:
    end = outcome(make_job(max_restarts=3), make_view(), [failed_pod(2)], SPENT, NOW)
    assert end.status is False
    assert "maxRestarts (3)" in end.message
    assert "digits-worker-2: ValueError: no" in end.message


def test_the_message_of_a_rule_names_the_failed_worker() -> None:
    end = outcome(make_job(), make_view(), [failed_pod(2)], FATAL, NOW)
    assert end.status is False
    assert (
        "A rule in spec.failurePolicy.rules with action Fail matches the failure of digits-worker-2: ApplicationError"
        in end.message
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [("exit code 3", "ApplicationError, exit code 3"), ("boom", "ApplicationError, exit code 3: boom")],
)
def test_the_message_has_the_exit_code_once(line: str, said: str) -> None:
    fatal = Failure(worker="digits-worker-1", exit_code=3, reason="ApplicationError", message=line)
    found = outcome(make_job(), make_view(), [failed_pod(0)], Budget(limit=3, fatal=fatal), NOW)
    assert found.message.endswith(f"the failure of digits-worker-1: {said}")
