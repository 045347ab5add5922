"""The window, the limit of the agents' own count, and rules for failures."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import Failure
from elasticjob_operator.policies.restart_budget import count_restarts, failure_of
from elasticjob_operator.state import Pod, PodPhase

from tests.unit.operator.builders import (
    NOW,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_plan,
    make_pod,
    make_status,
    make_view,
    with_failures,
)
from tests.unit.operator.policies.test_restart_budget import NOTHING, restarts
from tests.unit.operator.tables import table


def test_restarts_are_counted_by_cause() -> None:
    status = restarts(total=3, reported=1, by_cause={"OutOfMemory": 2, "ApplicationError": 1})
    view = make_view(plan=make_plan(2, restart_count=2), failure=make_failure(at=-90))
    found = count_restarts(
        make_job(status=status), view, with_failures(failed_pod(0, reason="OOMKilled", code=137)), NOW
    ).restarts
    assert found.by_cause == {"OutOfMemory": 3, "ApplicationError": 2}
    assert found.total == 5


@table(
    "times, after, window, spent, again",
    {
        "the first": ([], 0, 1, False, 60),
        "at the limit": ([-10, -5], 0, 3, False, 50),
        "one too many within the minute": ([-10, -5, -1], 0, 4, True, 50),
        "the oldest has left": ([-90, -59, -1], 0, 3, False, 1),
        "leaves at its very second": ([-60, -59, -1], 0, 3, False, 1),
    },
)
def test_only_restarts_within_the_window_count(
    times: list[float], after: float, window: int, spent: bool, again: float
) -> None:
    status = restarts(total=40, reported=0, times=tuple(at(time) for time in times))
    job = make_job(spec={"failurePolicy": {"maxRestarts": 3, "windowSeconds": 60}}, status=status)
    found = count_restarts(job, NOTHING, with_failures(failed_pod(0)), at(after))
    assert (found.restarts.window, found.spent, found.total) == (window, spent, 41)
    assert found.requeue_at == at(again)


@table(
    "before, limit",
    {
        "all is left": ({"total": 0, "reported": 0}, 3),
        "their own restarts change nothing": ({"total": 2, "reported": 2}, 3),
        "the failure of a pod uses one up": ({"total": 2, "reported": 1}, 2),
        "so do those of the last run": ({"total": 2, "reported": 0}, 1),
        "none is left": ({"total": 9, "reported": 1}, 1),
    },
)
def test_the_agents_limit_is_what_is_left_of_the_budget(before: dict[str, int], limit: int) -> None:
    assert count_restarts(make_job(max_restarts=3, status=restarts(**before)), NOTHING, [], NOW).agents_limit == limit


def ruled(*rules: dict[str, Any], **job: Any) -> Any:
    return make_job(spec={"failurePolicy": {"maxRestarts": 3, "rules": list(rules)}}, **job)


IGNORE, FAIL, RESTART = (
    {"exitCodes": [42], "action": "Ignore"},
    {"exitCodes": [42], "action": "Fail"},
    {"reasons": ["Evicted"], "action": "Restart"},
)


@table(
    "rule, pod, total, fatal",
    {
        "ignored": (IGNORE, failed_pod(0, code=42), 0, False),
        "another code counts": (IGNORE, failed_pod(0, code=1), 1, False),
        "fails the job": (FAIL, failed_pod(0, code=42), 1, True),
        "losing one's membership stays free": (FAIL, failed_pod(0, code=75), 0, False),
        "evictions count by wish": (RESTART, make_pod(0, PodPhase.FAILED, reason="Evicted", created=0), 1, False),
        "preemption does not": (RESTART, make_pod(0, PodPhase.FAILED, reason="Preempted", created=0), 0, False),
    },
)
def test_rules_for_pods(rule: dict[str, Any], pod: Pod, total: int, fatal: bool) -> None:
    found = count_restarts(ruled(rule), NOTHING, with_failures(pod, job=ruled(rule)), NOW)
    assert (found.total, found.fatal is not None) == (total, fatal)


@table(
    "rule, known, total, fatal",
    {
        "ignored": ({"exitCodes": [1], "action": "Ignore"}, None, 0, False),
        "fails the job": ({"reasons": ["ApplicationError"], "action": "Fail"}, None, 1, True),
        "was there before the rule": pytest.param(
            {"reasons": ["ApplicationError"], "action": "Fail"}, failure_of(make_failure(1)), 1, False
        ),
    },
)
def test_rules_for_failures_that_the_agents_report(
    rule: dict[str, Any], known: Failure | None, total: int, fatal: bool
) -> None:
    view = make_view(plan=make_plan(restart_count=1), failure=make_failure(1))
    found = count_restarts(ruled(rule, status=make_status(last_failure=known)), view, [], NOW)
    assert (found.total, found.restarts.reported, found.fatal is not None) == (total, 1, fatal)


def test_agents_do_not_end_a_job_because_of_ignored_failures() -> None:
    job = ruled(IGNORE, status=restarts(total=3, reported=5))
    assert count_restarts(job, NOTHING, [], NOW).agents_limit == 105
