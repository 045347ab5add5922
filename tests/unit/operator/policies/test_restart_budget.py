"""How failures of worker processes and pods add up in status.restarts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from elasticjob_api import Failure, Restarts
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.restart_budget import count_restarts, is_counted
from elasticjob_operator.state import Pod, RendezvousView
from elasticjob_runtime.contract import PEER_LOST, PlanReason

from tests.unit.operator.builders import (
    NOW,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_plan,
    make_status,
    make_view,
    with_failures,
)
from tests.unit.operator.tables import table


def restarts(**fields: Any) -> Any:
    return make_status().model_copy(update={"restarts": Restarts(**fields)})


NOTHING = make_view()


def counted(seconds: float, worker: str = "digits-worker-0", rank: int | None = None) -> Failure:
    return Failure(worker=worker, rank=rank, reason="ApplicationError", time=at(seconds))


def in_round(number: int, seconds: float, worker: str = "digits-worker-0", rank: int | None = None) -> Failure:
    return counted(seconds, worker, rank).model_copy(update={"round": number})


def planned(number: int, at: float) -> RendezvousView:
    return make_view(plan=dataclasses.replace(make_plan(number), created_at=NOW.timestamp() + at))


@table(
    "last, view, pod, total",
    {
        "no other plan since: of the same incident": (in_round(3, -60), planned(3, -600), failed_pod(1), 1),
        "of the next round: another incident": (in_round(3, -60), planned(4, -30), failed_pod(1), 2),
        "before the next round, seen later": (in_round(3, -60), planned(4, -1), failed_pod(1, at=-2), 1),
        "a planner's clock an hour ahead hides nothing": (in_round(3, -60), planned(4, 3600), failed_pod(1), 2),
        "made since: its own failure": (in_round(3, -60), planned(3, -600), failed_pod(1, created=-30), 2),
        "an hour later, whatever the plans say": (in_round(3, -3600), planned(3, -7200), failed_pod(1), 2),
        "a status of an earlier version": (counted(-60), planned(3, -600), failed_pod(1), 2),
        "seconds later, but in the next round": (in_round(3, -3), planned(4, -2), failed_pod(1), 2),
    },
)
def test_pods_that_fail_in_one_round_count_once(last: Failure, view: RendezvousView, pod: Pod, total: int) -> None:
    job = make_job(status=make_status(restarts=1, last_failure=last))
    assert count_restarts(job, view, with_failures(pod), NOW).total == total


def test_pods_of_one_incident_count_once_however_long_they_take() -> None:
    status, failed = make_status(), []
    for number in range(11):
        failed.append(failed_pod(number, at=6 * number))
        found = count_restarts(make_job(status=status), planned(1, -600), with_failures(*failed), at(6 * number))
        status = make_status(restarts=found.total, last_failure=found.last_failure)
    assert found.total == 1


def test_a_clock_that_is_an_hour_ahead_hides_no_failure() -> None:
    view = make_view(plan=make_plan(restart_count=1), failure=make_failure(3, at=3600))
    status = make_status()
    for number in range(20):
        now = at(60 + 10 * number)
        crashed = (
            [failed_pod(1, created=53 + 10 * number, started=54 + 10 * number, at=55 + 10 * number, incarnation=number)]
            if number
            else []
        )
        found = count_restarts(make_job(status=status), view, with_failures(*crashed), now)
        assert found.last_failure is not None
        assert found.last_failure.time is not None
        assert found.last_failure.time <= now
        status = status.model_copy(update={"restarts": found.restarts, "last_failure": found.last_failure})
    assert found.total == 20
    assert found.last_failure is not None
    assert found.last_failure.worker == "digits-worker-1-19", "the newest"


@pytest.mark.parametrize("ahead", [0, 3600])
def test_the_end_of_a_pod_counts_although_its_peers_report_that_they_lost_it(ahead: float) -> None:
    """The agents count no restart for a lost member, so only the operator can count the end of its pod."""
    lost = dataclasses.replace(make_failure(2, round_number=2, at=10 + ahead), reason=PEER_LOST)
    killed = failed_pod(0, code=137, at=10)
    gone = dataclasses.replace(
        make_plan(3, restart_count=1), reason=PlanReason.MEMBER_LOST, created_at=at(10.3).timestamp()
    )
    passes = [  # a worker process of pod 2 was killed first; then the agent of pod 0, which the peers notice first
        (1, make_view(plan=make_plan(2, restart_count=1), failure=make_failure(2, at=ahead)), []),
        (10.2, make_view(plan=make_plan(2, restart_count=1), failure=lost), []),
        (10.4, make_view(plan=gone, failure=lost), [killed]),
        (11, make_view(plan=gone, failure=lost), [killed]),
        (30, make_view(plan=gone, failure=lost), [killed]),
    ]
    status = make_status()
    for seconds, view, pods in passes:
        found = count_restarts(make_job(status=status), view, with_failures(*pods), at(seconds))
        status = status.model_copy(update={"restarts": found.restarts, "last_failure": found.last_failure})
    assert found.total == 2
    assert found.last_failure is not None
    assert (found.last_failure.worker, found.last_failure.reason) == ("digits-worker-0", "Signal")


def test_pods_that_end_a_minute_apart_count_twice_although_plans_are_seen_first() -> None:
    status = make_status()
    for number, seconds in ((0, 10), (1, 70)):
        plan = dataclasses.replace(make_plan(2 + number), created_at=at(seconds + 2).timestamp())
        killed = with_failures(failed_pod(number, code=137, at=seconds))
        found = count_restarts(make_job(status=status), make_view(plan=plan), killed, at(seconds + 3))
        status = status.model_copy(update={"restarts": found.restarts, "last_failure": found.last_failure})
    assert found.total == 2


def test_a_report_from_a_fast_clock_counts_once() -> None:
    view = make_view(plan=make_plan(restart_count=1), failure=make_failure(3, at=3600))
    first = count_restarts(make_job(), view, [], at(1))
    status = make_status().model_copy(update={"restarts": first.restarts, "last_failure": first.last_failure})
    assert count_restarts(make_job(status=status), view, [], at(30)).last_failure == first.last_failure


@table(
    "before, last, view, failed, total",
    {
        "nothing happened": (0, None, NOTHING, [], 0),
        "operator restarted: the count is in status": (2, None, NOTHING, [], 2),
        "agents restarted the group twice": (0, None, make_view(plan=make_plan(restart_count=2)), [], 2),
        "never shrinks: etcd came back empty": (5, None, make_view(plan=make_plan(restart_count=1)), [], 5),
        "a pod failed": (0, None, NOTHING, [failed_pod(0)], 1),
        "group failure counts once, not per pod": pytest.param(
            0, None, NOTHING, [failed_pod(index, at=index * 0.5) for index in range(4)], 1
        ),
        "two failures, a minute apart": pytest.param(
            0, None, NOTHING, [failed_pod(0, at=-60), failed_pod(1, at=0, created=-30)], 2
        ),
        "counted before": (1, counted(0), NOTHING, [failed_pod(0)], 1),
        "same group, seen later": (1, counted(0), NOTHING, [failed_pod(1, at=4)], 1),
        "a new failure, long after": (1, counted(-100), NOTHING, [failed_pod(1)], 2),
        "the successor failed at once: crash loop counts": (1, counted(-3), NOTHING, [failed_pod(0, created=-2)], 2),
        "the successor, made in the second of the failure": pytest.param(
            1, counted(0), NOTHING, [failed_pod(0, at=1, created=0, incarnation=1)], 2
        ),
        "one of the group, made in the second of the failure": pytest.param(
            1, counted(0), NOTHING, [failed_pod(1, at=1, created=0)], 1
        ),
        "a node's clock is late: counted once all the same": pytest.param(
            1, counted(0), NOTHING, [failed_pod(0, at=-60, created=0)], 1
        ),
        "losing one's membership is free": (0, None, NOTHING, [failed_pod(0, code=75)], 0),
        "preemption is free": (0, None, NOTHING, [failed_pod(0, disruption="PreemptionByScheduler")], 0),
        "agents saw it too: once": pytest.param(
            0, None, make_view(plan=make_plan(restart_count=1), failure=make_failure(at=-1)), [failed_pod(0)], 1
        ),
    },
)
def test_how_often_failures_count(
    before: int, last: Failure | None, view: RendezvousView, failed: Sequence[Pod], total: int
) -> None:
    job = make_job(status=make_status(restarts=before, last_failure=last))
    assert count_restarts(job, view, with_failures(*failed), NOW).total == total


@pytest.mark.parametrize(("before", "spent"), [(2, False), (3, True)])
def test_the_budget_is_exceeded_after_max_restarts(before: int, spent: bool) -> None:
    job = make_job(max_restarts=3, status=make_status(restarts=before, last_failure=counted(-100)))
    assert count_restarts(job, NOTHING, with_failures(failed_pod(1)), NOW).spent is spent


def test_counting_is_repeatable() -> None:
    """The operator was killed after the status write and before the deletion: the second look finds it counted."""
    failed = [failed_pod(0), failed_pod(1, at=1)]
    first = count_restarts(make_job(), NOTHING, with_failures(*failed), NOW)
    job = make_job(status=make_status(restarts=first.total, last_failure=first.last_failure))
    second = count_restarts(job, NOTHING, with_failures(*failed), NOW)
    assert (second.total, second.last_failure, second.new_failure) == (1, first.last_failure, None)
    assert all(is_counted(pod, classify_failure(pod), second.last_failure) for pod in failed)


@table(
    "before, count, expected",
    {
        "agents restarted the group twice": ({"total": 0}, 2, (2, 2)),
        "nothing new: one of the three was a pod": ({"total": 3, "reported": 2}, 2, (3, 2)),
        "a pod's failure and the agents' restarts add up": ({"total": 3, "reported": 2}, 3, (4, 3)),
        "a new run counts from 0, the job does not": ({"total": 3, "reported": 0}, 1, (4, 1)),
        "new agents after an empty etcd: nothing is given back": ({"total": 5, "reported": 4}, 0, (5, 0)),
        "a status of an earlier version": ({"total": 5}, 5, (5, 5)),
    },
)
def test_a_restart_by_the_agents_counts_once_per_group(
    before: dict[str, int], count: int, expected: tuple[int, int]
) -> None:
    found = count_restarts(make_job(status=restarts(**before)), make_view(plan=make_plan(restart_count=count)), [], NOW)
    assert (found.total, found.restarts.reported) == expected


def test_a_restart_that_follows_from_the_end_of_a_pod_does_not_count_again() -> None:
    status = make_status(restarts=1, last_failure=counted(-2)).model_copy(
        update={"restarts": Restarts(total=1, reported=0)}
    )
    view = make_view(plan=make_plan(restart_count=1), failure=make_failure(1))
    assert count_restarts(make_job(status=status), view, [], NOW).restarts == Restarts(total=1, reported=1)
