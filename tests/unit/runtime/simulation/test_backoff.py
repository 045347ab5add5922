"""Crash loops among several agents: no other agent plans during the delay before a restart, unless a member is lost."""

from __future__ import annotations

import dataclasses

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.membership.crash_loop import CrashLimits

from tests.unit.runtime.simulation.agent import LEASE_TTL
from tests.unit.runtime.simulation.events import Kind
from tests.unit.runtime.simulation.scenario import Scenario

WAITING = CrashLimits(at_once=1, backoff=30.0, backoff_max=30.0)


def start(seed: int, limits: CrashLimits) -> Scenario:
    """Three members that train with these limits."""
    scenario = Scenario(agents=3, least=2, most=3, seed=seed, max_restarts=99)
    for agent in scenario.agents:
        agent.loop.settings = dataclasses.replace(agent.settings, crash_limits=limits)
    return scenario


def crashes(scenario: Scenario, times: int, seconds: float) -> None:
    for _ in range(times):
        scenario.happens(Kind.CRASH_WORKER, scenario.trainers[1])
        scenario.wait(seconds)


def test_the_first_crash_is_restarted_at_once_and_the_second_is_delayed(seed: int) -> None:
    scenario = start(seed, WAITING)
    first = scenario.plan.round
    crashes(scenario, 1, 5.0)
    scenario.check(scenario.plan.round == first + 1 and len(scenario.trainers) == 3, "the first is restarted at once")
    crashes(scenario, 1, 25.0)
    scenario.check(scenario.plan.round == first + 1, "the second is delayed, and no other agent plans")
    scenario.wait(10.0)
    scenario.check(scenario.plan.round == first + 2 and len(scenario.trainers) == 3, "the second is restarted")
    scenario.check(scenario.plan.restart_count == 2)


@pytest.mark.parametrize("who", [0, 2])
def test_a_member_lost_during_the_delay_ends_it(seed: int, who: int) -> None:
    scenario = start(seed, WAITING)
    crashes(scenario, 1, 5.0)
    round_number, victim = scenario.plan.round, scenario.trainers[who]
    crashes(scenario, 1, 3.0)
    scenario.happens(Kind.CRASH_AGENT, victim)
    scenario.wait(LEASE_TTL + 5.0)
    scenario.check(
        scenario.plan.round == round_number + 1 and scenario.plan.reason is PlanReason.MEMBER_LOST, f"{scenario.plan}"
    )
    scenario.trains(2, "the others train")
    scenario.check(scenario.plan.restart_count == 1, "a lost member costs no restart")
    scenario.check(scenario.plan.same_crashes == 1, "the crash history is kept")
