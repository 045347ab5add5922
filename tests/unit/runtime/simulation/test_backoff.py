"""Crash loops among many agents: the wait before a restart is nobody's reason to plan, unless a member is lost."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.membership.crash_loop import CrashLimits

from tests.unit.runtime.simulation.agent import LEASE_TTL
from tests.unit.runtime.simulation.events import Kind
from tests.unit.runtime.simulation.test_scenarios import Story

SEEDS = range(8)

WAITING = CrashLimits(at_once=1, backoff=30.0, backoff_max=30.0)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def story(seed: int, limits: CrashLimits) -> Story:
    """Three train; all have these limits."""
    told = Story(agents=3, least=2, most=3, seed=seed, max_restarts=99)
    for agent in told.agents:
        agent.loop.settings = dataclasses.replace(agent.settings, crash_limits=limits)
    return told


def crashes(told: Story, times: int, seconds: float) -> None:
    for _ in range(times):
        told.happens(Kind.CRASH_WORKER, told.trainers[1])
        told.wait(seconds)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_crash_restarts_at_once_the_second_waits(seed: int) -> None:
    told = story(seed, WAITING)
    first = told.plan.round
    crashes(told, 1, 5.0)
    told.check(told.plan.round == first + 1 and len(told.trainers) == 3, "the first is restarted at once")
    crashes(told, 1, 25.0)
    told.check(told.plan.round == first + 1, "the second waits, and nobody else plans")
    told.wait(10.0)
    told.check(told.plan.round == first + 2 and len(told.trainers) == 3, "the second is restarted")
    told.check(told.plan.restart_count == 2)


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_dies_during_the_wait_ends_it(seed: int, who: int) -> None:
    told = story(seed, WAITING)
    crashes(told, 1, 5.0)
    round_number, victim = told.plan.round, told.trainers[who]
    crashes(told, 1, 3.0)
    told.happens(Kind.CRASH_AGENT, victim)
    told.wait(LEASE_TTL + 5.0)
    told.check(told.plan.round == round_number + 1 and told.plan.reason is PlanReason.MEMBER_LOST, f"{told.plan}")
    told.check(len(told.trainers) == 2, "the others train")
    told.check(told.plan.restart_count == 1, "a lost member is free")
    told.check(told.plan.same_crashes == 1, "what was remembered stays")
