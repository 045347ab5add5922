"""When training that reports no more steps counts as a hang."""

from __future__ import annotations

import pytest
from elasticjob_runtime.membership.hang import REMEMBERED, HangLimits, StepTimes

LIMITS = HangLimits(factor=10.0, least=5.0)


def timed(*seconds: float) -> StepTimes:
    """Steps of these durations, the first starting at 0 s."""
    times = StepTimes()
    now = 0.0
    for step, one in enumerate((0.0, *seconds)):
        now += one
        times.add(step, now)
    return times


def paused(times: StepTimes, at: float, *seconds: float) -> StepTimes:
    for one in seconds:
        times.pause(one, "evaluation", at)
    return times


def resumed(times: StepTimes, step: int, at: float) -> StepTimes:
    times.add(step, at)
    return times


DEADLINES = {
    "an announced pause extends the deadline": (
        paused(timed(*[1.0] * 10), 10.5, 600.0),
        LIMITS,
        10.5 + 600.0 + 10.0,
    ),
    "the longest announced pause of several ranks counts": (
        paused(timed(*[1.0] * 10), 10.5, 5.0, 600.0, 60.0),
        LIMITS,
        620.5,
    ),
    "a short pause does not shorten the deadline": (paused(timed(*[1.0] * 10), 8.0, 1.0), LIMITS, 20.0),
    "an infinite pause has no deadline": (paused(timed(*[1.0] * 10), 10.5, float("inf")), LIMITS, None),
    "the next step ends the pause": (resumed(paused(timed(*[1.0] * 10), 10.0, 600.0), 11, 300.0), LIMITS, 310.0),
    "a late report of the same step does not end the pause": (
        resumed(paused(timed(*[1.0] * 10), 10.0, 600.0), 10, 11.0),
        LIMITS,
        620.0,
    ),
    "steps with a pause do not count for the median": (
        resumed(paused(timed(*[1.0] * 4), 4.0, 600.0), 5, 300.0),
        LIMITS,
        None,
    ),
    "ten times the median after the last step": (timed(*[1.0] * 10), LIMITS, 20.0),
    "not before the least": (timed(*[0.1] * 10), LIMITS, 6.0),
    "a slow first step does not move the median": (timed(60.0, *[1.0] * 8), LIMITS, 78.0),
    "too few steps: no deadline": (timed(*[1.0] * 4), LIMITS, None),
    "no steps: no deadline": (StepTimes(), LIMITS, None),
    "hang detection off: no deadline": (timed(*[1.0] * 10), HangLimits(), None),
    "only recent steps count for the median": (
        timed(*[1.0] * 200, *[2.0] * REMEMBERED),
        LIMITS,
        402.0 + 20.0,
    ),
}


@pytest.mark.parametrize(("times", "limits", "deadline"), DEADLINES.values(), ids=DEADLINES)
def test_the_hang_deadline_follows_the_step_times_and_pauses(
    times: StepTimes, limits: HangLimits, deadline: float | None
) -> None:
    assert times.deadline(limits) == (None if deadline is None else pytest.approx(deadline))


def test_the_message_of_a_hang_names_the_time_without_a_step() -> None:
    times = timed(*[0.4] * 10)
    assert times.hang(LIMITS, 8.9) is None
    assert times.hang(LIMITS, 35.0) == "hang: no step for 31 s, median 0.4 s"


def test_the_message_of_a_hang_names_an_exceeded_pause() -> None:
    times = paused(timed(*[0.4] * 10), 4.0, 60.0)
    assert times.hang(LIMITS, 68.9) is None
    assert (
        times.hang(LIMITS, 70.0)
        == "hang: no step for 66 s, median 0.4 s, beyond the announced pause of 60 s (evaluation)"
    )


def test_reports_of_one_step_by_several_ranks_count_once() -> None:
    times = StepTimes()
    for step in range(10):
        for rank in range(3):
            times.add(step, step + rank * 0.01)
    assert times.deadline(LIMITS) == pytest.approx(9.0 + 10.0)
