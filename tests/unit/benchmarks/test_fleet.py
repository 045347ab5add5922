"""The agents that the benchmarks of the operator play."""

from __future__ import annotations

import time
from typing import Any

from elasticjob_operator.names import LABEL_JOB, LABEL_JOB_UID, LABEL_RUN
from elasticjob_runtime.contract import DEFAULT_PREFIX, LEASE_TTL, Keys, PlanReason, PlanValue, ProgressValue

from benchmarks.operator.agents import LAST_CALL_SECONDS, PlayedAgents, Put

KEYS = Keys(DEFAULT_PREFIX, "8c-1")


def pod(index: int) -> dict[str, Any]:
    labels = {LABEL_JOB: "digits", LABEL_JOB_UID: "8c", LABEL_RUN: "1"}
    return {"metadata": {"name": f"digits-worker-{index}-abcde", "labels": labels}, "status": {"phase": "Running"}}


def plan_in(puts: list[Put]) -> PlanValue:
    return PlanValue.from_json(dict(puts)[KEYS.plan].decode())


def test_played_agents_write_what_real_ones_do() -> None:
    agents, now = PlayedAgents(None, size=2), time.monotonic()  # type: ignore[arg-type]
    agents.on_running(pod(0))
    assert [key for key, _ in agents.due(now)] == [KEYS.member("digits-worker-0-abcde"), KEYS.last_joined]
    agents.on_running(pod(1))
    formed = agents.due(now)
    assert (plan_in(formed).round, plan_in(formed).size, plan_in(formed).reason) == (1, 2, PlanReason.START)
    assert sum(key.startswith(KEYS.ranks) for key, _ in formed) == 2
    assert not agents.all_train(1)
    first = dict(agents.due(now + 1))
    assert KEYS.transition in first
    assert agents.all_train(1)
    step = ProgressValue.from_json(first[KEYS.progress].decode()).step
    assert agents.due(now + 1.5) == [], "one report a second in the first minute"
    assert ProgressValue.from_json(dict(agents.due(now + 11))[KEYS.progress].decode()).step > step + 30
    agents.age(600)
    agents.due(now + 12)
    assert agents.due(now + 21) == [], "and one each 10 s later"


def test_played_agents_go_on_without_those_that_are_lost_and_take_in_their_replacements() -> None:
    agents, now = PlayedAgents(None, size=2), time.monotonic()  # type: ignore[arg-type]
    agents.on_running(pod(0))
    agents.on_running(pod(1))
    agents.due(now)
    agents.due(now + 1)
    agents.lose([pod(1)])
    assert agents.due(now + 2) == [], "a group that has lost a member takes no step"
    later = time.monotonic() + LEASE_TTL + LAST_CALL_SECONDS
    alone = plan_in(agents.due(later))
    assert (alone.round, alone.size, alone.reason) == (2, 1, PlanReason.MEMBER_LOST)
    assert not agents.all_train(1)
    agents.on_running(pod(2))
    assert plan_in(agents.due(later + 1)).size == 2
    agents.due(later + 3)
    assert agents.all_train(1)


def test_agents_that_are_taken_over_only_report_each_10_s() -> None:
    agents, now = PlayedAgents(None, size=2), time.monotonic()  # type: ignore[arg-type]
    agents.take_over("digits", "8c-1", first_report_in=5)
    assert agents.due(now + 4) == []
    reports = [dict(agents.due(now + after)) for after in (6, 14, 17)]
    assert [list(report) for report in reports] == [[KEYS.progress], [], [KEYS.progress]]
    first, last = (ProgressValue.from_json(reports[at][KEYS.progress].decode()).step for at in (0, 2))
    assert 1000 < first < last - 30
    assert agents.ages({"digits": first})[0] < 1
