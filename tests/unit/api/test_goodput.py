"""What the wall time of a job was spent on: the parts add up, and what is not reported is unknown."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pytest
from elasticjob_api.goodput import TimePart, goodput, goodput_series, spans
from elasticjob_api.history import Change, ChangeType, History, Phases, Sample, Series
from hypothesis import given
from hypothesis import strategies as st

NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, tzinfo=datetime.timezone.utc)


def at(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def change(seconds: float, type_: str = "Round", reason: str = "Start", **fields: Any) -> Change:
    return Change(time=at(seconds), type=type_, reason=reason, **fields)


def sample(seconds: float, step: int, rate: float | None = 2.0, *, counted: bool = False) -> str:
    return str(Sample(time=at(seconds), step=step, world_size=4, steps_per_second=rate, counted=counted))


def divided(
    changes: list[Change], samples: list[str] | None = None, until: float = 100, **options: Any
) -> dict[str, float]:
    """Seconds by part, from noon, without unused parts."""
    history = History(changes=tuple(changes), samples=tuple(samples or ()), dropped=options.pop("dropped", {}))
    found = goodput(history, since=NOON, until=at(until), **options)
    return {part.value: round(seconds, 3) for part, seconds in found.seconds.items() if seconds}


START = change(10, resume_seconds=8.0, phases=Phases(plan=4.0))
"""Rank 0's agent was there at 6 s, the agents agreed at 10 s, and the first step was done at 14 s."""
TO_STEP_80 = [sample(24, 20), sample(54, 80)]


@pytest.mark.parametrize(
    ("changes", "samples", "expected"),
    [
        pytest.param([], [], {"waiting": 100}, id="no round yet"),
        pytest.param(
            [START],
            [*TO_STEP_80, sample(100, 172)],
            {"waiting": 10, "starting": 4, "productive": 86},
            id="one round without interruption",
        ),
        pytest.param(
            [START],
            TO_STEP_80,
            {"waiting": 10, "starting": 4, "productive": 40, "unknown": 46},
            id="what happened since the newest report is unknown",
        ),
        pytest.param([change(10)], [], {"waiting": 10, "unknown": 90}, id="nothing is reported"),
        pytest.param(
            [START],
            [*TO_STEP_80, sample(95, 82), sample(100, 92)],
            {"waiting": 10, "starting": 4, "productive": 46, "unknown": 40},
            id="steps stopped for long, and went on",
        ),
        pytest.param(
            [START],
            [*TO_STEP_80, sample(100, 100)],
            {"waiting": 10, "starting": 4, "productive": 86},
            id="steps were slow",
        ),
        pytest.param(
            [
                START,
                change(
                    60, reason="MemberLost", form_seconds=2.0, resume_seconds=5.0, steps_lost=20, world_size_before=4
                ),
            ],
            [*TO_STEP_80, sample(100, 142)],
            {"waiting": 10, "starting": 7, "productive": 71.5, "forming": 2, "repeated": 9.5},
            id="a round that repeats steps, and says how many",
        ),
        pytest.param(
            [START, change(60, reason="WorkerFailed", form_seconds=2.0, resume_seconds=5.0, world_size_before=4)],
            [*TO_STEP_80, sample(100, 120)],
            {"waiting": 10, "starting": 7, "productive": 60, "forming": 2, "repeated": 17, "unknown": 4},
            id="a round that goes back, and does not say so: its samples do",
        ),
        pytest.param(
            [START, change(60, reason="MemberLost", form_seconds=40.0, wait_seconds=30.0, resume_seconds=42.0)],
            [sample(20, 12), sample(100, 88)],
            {"waiting": 40, "starting": 6, "productive": 44, "forming": 10},
            id="the time without enough worker pods is waiting",
        ),
        pytest.param(
            [
                START,
                change(90, reason="WorkerFailed", failure="Hang", form_seconds=1.0, resume_seconds=2.0, steps_lost=0),
            ],
            [*TO_STEP_80, sample(100, 99)],
            {"waiting": 10, "starting": 5, "productive": 49, "hung": 35, "forming": 1},
            id="a hang lasts from the last step to its end",
        ),
        pytest.param(
            [START, *(change(60 + 10 * index, reason="WorkerFailed", form_seconds=6.0) for index in range(4))],
            TO_STEP_80,
            {"waiting": 10, "starting": 4 + 3 * 4 + 10, "productive": 40, "forming": 24},
            id="a crash loop before the first step trains nothing",
        ),
        pytest.param(
            [
                START,
                change(54, "Suspended", "Suspended"),
                change(74, "Resumed", "JobResumed"),
                change(80, resume_seconds=3.0, phases=Phases(plan=1.0), run=2),
                change(95, "Succeeded", "WorkersSucceeded"),
            ],
            [*TO_STEP_80, sample(95, 106)],
            {"waiting": 16, "starting": 6, "productive": 53, "suspended": 20},
            id="suspended, resumed and done: nothing is counted after the end",
        ),
        pytest.param(
            [START, change(40, "Scaled", "ScalingUp")],
            [*TO_STEP_80, sample(100, 172)],
            {"waiting": 10, "starting": 4, "productive": 86},
            id="a request for another size interrupts nothing",
        ),
        pytest.param(
            [START],
            [*TO_STEP_80, sample(74, 40), sample(100, 92)],
            {"waiting": 10, "starting": 4, "productive": 46, "repeated": 20, "unknown": 20},
            id="samples that go back without a round",
        ),
    ],
)
def test_wall_time_is_divided_by_what_it_was_spent_on(
    changes: list[Change], samples: list[str], expected: dict[str, float]
) -> None:
    assert divided(changes, samples) == expected


def test_a_job_without_progress_now_hangs() -> None:
    assert divided([START], TO_STEP_80, stalled=True) == {"waiting": 10, "starting": 4, "productive": 40, "hung": 46}


def test_the_time_before_the_kept_changes_is_unknown() -> None:
    found = divided([START], [*TO_STEP_80, sample(100, 172)], dropped={"Start": 1})
    assert found == {"unknown": 6, "forming": 4, "starting": 4, "productive": 86}


def test_counted_steps_of_a_restarted_script_are_new_once_they_exceed_all_earlier_ones() -> None:
    """It may have read a checkpoint or not. It had taken 53 steps: 41, and 12 in the 6 s until it failed."""
    changes = [START, change(40, reason="WorkerFailed", resume_seconds=2.0, world_size_before=4)]
    samples = [sample(34, 41, counted=True), sample(100, 117, counted=True)]
    found = divided(changes, samples)
    assert found == {"waiting": 10, "starting": 6, "productive": 20 + 32, "unknown": 6 + 26}


def test_the_share_is_as_exact_as_what_is_known() -> None:
    history = History(changes=(START,), samples=tuple(TO_STEP_80))
    found = goodput(history, until=at(100))
    assert (found.wall, found.low, found.high) == (94, 40 / 94, 86 / 94)
    assert goodput(History(changes=(change(0),)), until=at(100)).low is None
    assert goodput(History()).wall == 0


@pytest.mark.parametrize(
    ("seconds", "share"), [(6, 0), (10, 0), (14, 0), (18, 4 / 12), (34, 20 / 28), (54, 40 / 48), (100, 40 / 94)]
)
def test_the_share_over_time_is_that_of_each_moment(seconds: float, share: float) -> None:
    series = goodput_series(History(changes=(START,), samples=tuple(TO_STEP_80)), at(100))
    assert share_at(series, at(seconds)) == pytest.approx(share, abs=0.01)


def test_the_share_over_time_stays_while_the_job_is_suspended() -> None:
    changes = (START, change(56, "Suspended", "Suspended"))
    series = goodput_series(History(changes=changes, samples=tuple(TO_STEP_80)), at(100))
    assert {round(share, 9) for time, share in series if time >= at(56)} == {40 / 50}


def test_without_a_known_step_there_is_no_share_over_time() -> None:
    assert goodput_series(History(changes=(change(0),)), at(100)) == []


def share_at(series: Series, time: datetime.datetime) -> float:
    """Of the line through the points."""
    before, after = next(pair for pair in itertools.pairwise(series) if pair[0][0] <= time <= pair[1][0])
    return before[1] + (after[1] - before[1]) * ((time - before[0]) / (after[0] - before[0]))


moments = st.floats(0, 1000).map(lambda seconds: round(seconds, 1))
durations = st.none() | st.floats(0, 200)
any_change = st.builds(
    change,
    moments,
    st.sampled_from([*ChangeType, "Round", "Round", "Round", "Later"]),
    st.sampled_from(["Start", "WorkerFailed"]),
    form_seconds=durations,
    wait_seconds=durations,
    resume_seconds=durations,
    steps_lost=st.none() | st.integers(0, 50),
    failure=st.sampled_from(["", "Hang"]),
)
any_sample = st.builds(sample, moments, st.integers(0, 200), st.sampled_from([None, 0.0, 2.0]), counted=st.booleans())


@given(
    st.lists(any_change, max_size=8).map(lambda found: sorted(found, key=lambda item: item.time)),
    st.lists(any_sample, max_size=12).map(sorted),
    st.none() | moments,
    st.none() | moments,
    st.booleans(),
)
def test_the_parts_add_up_to_the_wall_time(
    changes: list[Change], samples: list[str], since: float | None, until: float | None, stalled: bool
) -> None:
    history = History(changes=tuple(changes), samples=tuple(samples))
    begin, end = (None if moment is None else at(moment) for moment in (since, until))
    found = spans(history, since=begin, until=end, stalled=stalled)
    assert all(span.seconds > 0 for span in found)
    assert all(before.end == after.begin for before, after in itertools.pairwise(found))
    total = goodput(history, since=begin, until=end, stalled=stalled)
    assert total.wall == pytest.approx((found[-1].end - found[0].begin).total_seconds() if found else 0.0)
    assert set(total.seconds) == set(TimePart)
    if total.low is not None and total.high is not None:
        assert -1e-9 <= total.low <= total.high <= 1 + 1e-9
