"""Which failure is in status.lastFailure."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import Failure
from elasticjob_operator.policies.restart_budget import count_restarts, failure_of
from elasticjob_operator.state import RendezvousView

from tests.unit.operator.builders import (
    NOW,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_outcome,
    make_status,
    make_view,
    with_failures,
)
from tests.unit.operator.policies.test_restart_budget import NOTHING, counted, in_round
from tests.unit.operator.tables import table


def test_the_last_failure_has_the_termination_message() -> None:
    pod = failed_pod(2)
    assert pod.end is not None
    found = count_restarts(make_job(), NOTHING, with_failures(pod), NOW).last_failure
    assert found is not None
    assert (found.worker, found.exit_code, found.reason, found.time) == (
        "digits-worker-2",
        1,
        "ApplicationError",
        at(0),
    )


@table(
    "known, view, expected",
    {
        "agents report": (None, make_view(failure=make_failure(1)), "digits-worker-1"),
        "newer than a pod's": (counted(-50), make_view(failure=make_failure(1)), "digits-worker-1"),
        "the rest fails of a pod's failure: the pod is first": pytest.param(
            counted(-2), make_view(failure=make_failure(1)), "digits-worker-0"
        ),
        "next round fails right after": (counted(-2, rank=0), make_view(failure=make_failure(1)), "digits-worker-1"),
        "an old one read again": (counted(0, rank=0), make_view(failure=make_failure(1, at=-50)), "digits-worker-0"),
        "a clock hours behind": (
            in_round(2, -3600, rank=0),
            make_view(failure=make_failure(1, round_number=3, at=-7200)),
            "digits-worker-1",
        ),
        "a clock an hour ahead": pytest.param(
            in_round(2, 3600, rank=0), make_view(failure=make_failure(1, round_number=3)), "digits-worker-1"
        ),
        "its round fails of a pod, a minute later": pytest.param(
            in_round(3, -60), make_view(failure=make_failure(1, round_number=3)), "digits-worker-0"
        ),
        "the outcome names the first": (
            None,
            make_view(
                failure=make_failure(1), outcome=make_outcome("failed", failure=dataclasses.asdict(make_failure(3)))
            ),
            "digits-worker-3",
        ),
        "kept while etcd has nothing": (counted(-9), NOTHING, "digits-worker-0"),
    },
)
def test_the_last_failure_is_the_first_of_the_newest_round(
    known: Failure | None, view: RendezvousView, expected: str
) -> None:
    found = count_restarts(make_job(status=make_status(last_failure=known)), view, [], NOW).last_failure
    assert found is not None
    assert found.worker == expected


def test_the_last_failure_has_the_traceback() -> None:
    found = failure_of(make_failure(1, message="ValueError: no", traceback="Traceback ...\nValueError: no"))
    assert found.message.splitlines() == ["ValueError: no", "Traceback ...", "ValueError: no"]
    assert (found.rank, found.exit_code) == (1, 1)
