from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from elasticjob_operator.api import Failure
from elasticjob_operator.policies.failures import judge
from elasticjob_operator.policies.restarts import account, failure_of, is_accounted
from elasticjob_operator.world import Pod, RendezvousView

from tests.unit.operator.builders import at, failed_pod, make_failure, make_job, make_outcome, make_plan, make_status, make_view

NOTHING = make_view()


def counted(seconds: float, worker: str = "digits-worker-0", rank: int | None = None) -> Failure:
    return Failure(worker=worker, rank=rank, reason="ApplicationError", time=at(seconds))


@pytest.mark.parametrize(
    ("before", "last", "view", "failed", "total"),
    [
        pytest.param(0, None, NOTHING, [], 0, id="nothing happened"),
        pytest.param(2, None, NOTHING, [], 2, id="operator restarted: the count is in status"),
        pytest.param(0, None, make_view(plan=make_plan(restart_count=2)), [], 2, id="agents restarted the group twice"),
        pytest.param(5, None, make_view(plan=make_plan(restart_count=1)), [], 5, id="never shrinks: etcd came back empty"),
        pytest.param(0, None, NOTHING, [failed_pod(0)], 1, id="a pod failed"),
        pytest.param(
            0, None, NOTHING, [failed_pod(index, at=index * 0.5) for index in range(4)], 1, id="group failure counts once, not per pod"
        ),
        pytest.param(0, None, NOTHING, [failed_pod(0, at=-60), failed_pod(1, at=0, created=-30)], 2, id="two failures, a minute apart"),
        pytest.param(1, counted(0), NOTHING, [failed_pod(0)], 1, id="counted before"),
        pytest.param(1, counted(0), NOTHING, [failed_pod(1, at=4)], 1, id="same group, seen later"),
        pytest.param(1, counted(-100), NOTHING, [failed_pod(1)], 2, id="a new failure, long after"),
        pytest.param(1, counted(-3), NOTHING, [failed_pod(0, created=-2)], 2, id="the successor failed at once: crash loop counts"),
        pytest.param(1, counted(0), NOTHING, [failed_pod(0, at=1, created=0)], 2, id="the successor, made in the second of the failure"),
        pytest.param(1, counted(0), NOTHING, [failed_pod(1, at=1, created=0)], 1, id="one of the group, made in the second of the failure"),
        pytest.param(1, counted(0), NOTHING, [failed_pod(0, at=-60, created=0)], 1, id="a node's clock is late: counted once all the same"),
        pytest.param(0, None, NOTHING, [failed_pod(0, code=143)], 0, id="disruptions are free"),
        pytest.param(0, None, NOTHING, [failed_pod(0, disruption="PreemptionByScheduler")], 0, id="preemption is free"),
        pytest.param(
            0,
            None,
            make_view(plan=make_plan(restart_count=1), failure=make_failure(at=-1)),
            [failed_pod(0)],
            1,
            id="agents saw it too: once",
        ),
    ],
)
def test_restart_budget(before: int, last: Failure | None, view: RendezvousView, failed: Sequence[Pod], total: int) -> None:
    job = make_job(status=make_status(restarts=before, last_failure=last))
    assert account(job, view, failed).total == total


@pytest.mark.parametrize(("before", "spent"), [(2, False), (3, True)])
def test_budget_is_spent_when_a_failure_exceeds_max_restarts(before: int, spent: bool) -> None:
    job = make_job(max_restarts=3, status=make_status(restarts=before, last_failure=counted(-100)))
    assert account(job, NOTHING, [failed_pod(0)]).spent is spent


def test_counting_is_repeatable() -> None:
    """The operator was killed after the status write and before the deletion: the second look finds it counted."""
    failed = [failed_pod(0), failed_pod(1, at=1)]
    first = account(make_job(), NOTHING, failed)
    job = make_job(status=make_status(restarts=first.total, last_failure=first.last_failure))
    second = account(job, NOTHING, failed)
    assert (second.total, second.last_failure, second.new_failure) == (1, first.last_failure, None)
    assert all(is_accounted(pod, judge(pod), second.last_failure) for pod in failed)


def test_last_failure_of_a_pod_has_its_termination_message() -> None:
    pod = failed_pod(2)
    assert pod.end is not None
    found = account(make_job(), NOTHING, [pod]).last_failure
    assert found is not None
    assert (found.worker, found.exit_code, found.reason, found.time) == ("digits-worker-2", 1, "ApplicationError", at(0))


@pytest.mark.parametrize(
    ("known", "view", "expected"),
    [
        pytest.param(None, make_view(failure=make_failure(1)), "digits-worker-1", id="agents report"),
        pytest.param(counted(-50), make_view(failure=make_failure(1)), "digits-worker-1", id="newer than a pod's"),
        pytest.param(
            counted(-2), make_view(failure=make_failure(1)), "digits-worker-0", id="the rest fails of a pod's failure: the pod is first"
        ),
        pytest.param(counted(-2, rank=0), make_view(failure=make_failure(1)), "digits-worker-1", id="next epoch fails right after"),
        pytest.param(counted(50, rank=0), make_view(failure=make_failure(1)), "digits-worker-0", id="an old one read again"),
        pytest.param(
            None,
            make_view(failure=make_failure(1), outcome=make_outcome("failed", failure=dataclasses.asdict(make_failure(3)))),
            "digits-worker-3",
            id="the outcome names the first",
        ),
        pytest.param(counted(-9), NOTHING, "digits-worker-0", id="kept while etcd has nothing"),
    ],
)
def test_last_failure_is_the_first_of_the_newest(known: Failure | None, view: RendezvousView, expected: str) -> None:
    found = account(make_job(status=make_status(last_failure=known)), view, []).last_failure
    assert found is not None
    assert found.worker == expected


def test_failure_has_the_line_and_the_traceback() -> None:
    found = failure_of(make_failure(1, message="ValueError: no", traceback="Traceback ...\nValueError: no"))
    assert found.message.splitlines() == ["ValueError: no", "Traceback ...", "ValueError: no"]
    assert (found.rank, found.exit_code) == (1, 1)
