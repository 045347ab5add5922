"""How often snapshots are taken, and when there is no memory for them."""

from __future__ import annotations

import itertools

import pytest
from elasticjob_runtime.training.memory.policy import BUDGET, LONGEST_INTERVAL, Pace, fits, interval


@pytest.mark.parametrize(
    ("cost", "step_seconds", "steps"),
    [
        (0.0, 0.05, 1),
        (0.00025, 0.05, 1),
        (0.00026, 0.05, 2),
        (0.15, 0.05, 1024),
        (0.15, 1.0, 32),
        (0.15, 30.0, 1),
        (1.0, 0.0, LONGEST_INTERVAL),
    ],
    ids=["free", "just in the budget", "just over it", "1 GiB", "slow steps", "very slow steps", "no time at all"],
)
def test_the_interval_keeps_the_cost_within_the_budget(cost: float, step_seconds: float, steps: int) -> None:
    assert interval(cost, step_seconds) == steps


@pytest.mark.parametrize("cost", [0.0003, 0.002, 0.15, 3.0])
@pytest.mark.parametrize("step_seconds", [0.004, 0.05, 2.0])
def test_a_simulated_training_spends_at_most_the_budget(cost: float, step_seconds: float) -> None:
    pace, now, spent, taken = Pace(), 0.0, 0.0, []
    for step in range(1, 200_000):
        now += step_seconds
        if pace.is_due(step, now):
            now += cost
            pace.took(cost, now)
            taken.append(step)
            spent += cost if step > 1 else 0.0  # the first one is due to the start
    assert spent / now <= BUDGET * 1.1
    assert max(second - first for first, second in itertools.pairwise([0, *taken])) <= 2 * max(
        1, cost / (BUDGET * step_seconds)
    )


def test_a_change_brings_no_snapshot_forward() -> None:
    """All processes would wait for it, right after they have waited for the change."""
    pace = Pace()
    assert pace.is_due(1, 1.0)
    pace.took(0.1, 1.1)
    now = iter(1.1 + 0.1 * step for step in itertools.count(1))
    assert [step for step in range(2, 40) if pace.is_due(step, next(now))] == [], "one in 256 steps"
    pace.changed()
    assert [step for step in range(40, 100) if pace.is_due(step, next(now))] == []


def test_the_time_of_a_change_is_no_step() -> None:
    """It would make snapshots look cheap."""
    pace = Pace()
    pace.is_due(1, 0.1)
    pace.took(0.1, 0.2)
    pace.is_due(2, 0.3)
    before = pace.interval
    pace.changed()
    pace.is_due(3, 1000.0)
    pace.took(0.1, 1000.1)
    assert pace.interval == before


def test_one_long_pause_does_not_count_in_full() -> None:
    pace, now = Pace(), 0.0
    for step in range(1, 100):
        now += 0.1
        if pace.is_due(step, now):
            now += 0.1
            pace.took(0.1, now)
    before = pace.interval
    pace.is_due(101, now + 3600.0)
    assert pace.interval >= before / 2


def test_ranks_with_different_costs_snapshot_after_the_same_steps() -> None:
    often, seldom = interval(0.1, 0.05), interval(0.19, 0.05)
    assert seldom % often == 0


@pytest.mark.parametrize(
    ("needed", "free", "allowed"),
    [(0, 0, True), (100, 200, True), (101, 200, False), (100, None, True)],
    ids=["nothing new", "half of what is free", "more than that", "unknown"],
)
def test_snapshots_take_at_most_half_of_the_free_memory(needed: int, free: int | None, allowed: bool) -> None:
    assert fits(needed, free) is allowed
