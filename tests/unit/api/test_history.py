"""Reading a job's history: sizes and step rates over time."""

from __future__ import annotations

import pytest
from elasticjob_api.goodput import goodput_series
from elasticjob_api.history import History, Sample, repeated, step_rates, world_sizes

from tests.unit.api.test_goodput import NOON, at, change, sample

LOST = change(
    100, reason="MemberLost", world_size_before=4, world_size=3, form_seconds=2.0, resume_seconds=10.0, steps_lost=20
)
HISTORY = History(
    changes=(
        change(0, world_size=4),
        LOST,
        change(150, "Scaled", "ScalingUp", workers_before=4, workers=5),
        change(200, "Succeeded", "WorkersSucceeded"),
    ),
    samples=(sample(10, 20), sample(90, 180), sample(110, 161), sample(200, 341)),
)


def test_the_world_size_is_zero_from_the_cause_of_a_change_until_training_goes_on() -> None:
    assert world_sizes(HISTORY) == [(at(0), 4), (at(98), 0), (at(108), 3), (at(200), 0)]


def test_step_rates_count_interruptions_and_repeated_steps() -> None:
    assert step_rates(HISTORY) == [(at(10), 2.0), (at(90), 0.0), (at(110), 2.0), (at(200), 2.0)]


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [
        pytest.param(130, [(10, 2.0), (90, 2.0), (98, 0.0), (130, 2.0), (140, 2.0)], id="between two samples"),
        pytest.param(140, [(10, 2.0), (90, 4.5), (98, 0.0), (140, 0.0)], id="until a sample"),
        pytest.param(None, [(10, 2.0), (90, 0.72), (140, 0.72)], id="that it has ended, only the sample says"),
    ],
)
def test_no_steps_are_taken_while_a_job_is_suspended(resumed: int | None, expected: list[tuple[int, float]]) -> None:
    suspended = (change(0, world_size=4), change(98, "Suspended", "Suspended"), change(110, "Suspended", "Queued"))
    rounds = [change(resumed - 6, world_size=4, form_seconds=2.0, resume_seconds=8.0)] if resumed else []
    history = History(changes=(*suspended, *rounds), samples=(sample(10, 20), sample(90, 180), sample(140, 216)))
    assert step_rates(history) == [(at(time), rate) for time, rate in expected]


LOOP = History(
    changes=(
        change(0, world_size=2, resume_seconds=5.0),
        *(
            change(100 + 60 * index, reason="WorkerFailed", world_size_before=2, world_size=2, form_seconds=30.0)
            for index in range(4)
        ),
        change(400, "Failed", "MaxRestartsExceeded"),
    ),
    samples=(sample(10, 10), sample(65, 128)),
)
"""Trains for 70 s, then crashes in each round before the first step."""


def test_a_crash_loop_is_no_training() -> None:
    assert world_sizes(LOOP)[:2] == [(at(5), 2), (at(70), 0)]
    assert {size for _, size in world_sizes(LOOP)[1:]} == {0}


def test_steps_that_a_round_repeats_are_unknown_until_its_first_step() -> None:
    assert repeated(LOOP) == (0, False)
    assert repeated(HISTORY) == (20, True)
    assert repeated(History(changes=LOOP.changes[:1])) == (0, True), "nothing that could be repeated"
    known = change(341, reason="WorkerFailed", world_size_before=2, world_size=2, resume_seconds=1.0, steps_lost=9)
    assert repeated(History(changes=(*LOOP.changes[:-1], known))) == (9, True), "the rounds before it made no step"


def test_samples_that_go_back_are_repeated_steps() -> None:
    """Five rounds, of which each goes back to step 128, and does not say so."""
    samples = [sample(10, 128)]
    changes = [change(0, world_size=2)]
    for index in range(4):
        changes.append(change(100 * index + 50, reason="WorkerFailed", world_size_before=2, world_size=2))
        samples += [sample(100 * index + 45, 140), sample(100 * index + 60, 129)]
    history = History(changes=tuple(changes), samples=tuple(samples))
    assert repeated(history) == (44, False)


def test_rounds_of_a_script_that_reports_no_steps_may_train() -> None:
    assert (at(100), 2) in world_sizes(History(changes=LOOP.changes[1:]))


def test_counts_of_optimizer_steps_begin_again_and_repeat_nothing() -> None:
    counted = [str(Sample(time=at(time), step=step, world_size=2, counted=True)) for time, step in ((10, 100), (60, 5))]
    assert repeated(History(changes=HISTORY.changes, samples=tuple(counted))) == (20, True)


def test_an_empty_history_has_no_points() -> None:
    assert (world_sizes(History()), step_rates(History())) == ([], [])


@pytest.mark.parametrize(
    "text",
    ["", "soon 1 2 3", "2026-01-02T12:00:00Z one 2 3", "2026-01-02T12:00:00 1 2 3", "2026-01-02T12:00:00Z 1 2 inf"],
)
def test_a_sample_that_cannot_be_read_is_left_out(text: str) -> None:
    assert History(samples=(text, sample(0, 1))).progress == (
        Sample(time=NOON, step=1, world_size=4, steps_per_second=2.0),
    )


@pytest.mark.parametrize("rate", [None, 0.0, 12.34])
@pytest.mark.parametrize("counted", [False, True])
def test_a_sample_is_read_as_it_was_written(rate: float | None, counted: bool) -> None:
    written = Sample(time=NOON, step=7, world_size=4, steps_per_second=rate, counted=counted)
    assert Sample.parse(str(written)) == written


def test_a_sample_of_a_later_version_may_have_more_fields() -> None:
    assert Sample.parse(f"{sample(0, 7)} 99") == Sample.parse(sample(0, 7))


@pytest.mark.parametrize("seconds", [1e308, 10**18, -1e308])
def test_impossible_durations_can_still_be_drawn(seconds: float) -> None:
    impossible = change(
        0, world_size=4, world_size_before=4, form_seconds=seconds, resume_seconds=seconds, steps_lost=2**62
    )
    history = History(changes=(change(0), impossible), samples=HISTORY.samples)
    assert len(world_sizes(history)) >= 2
    assert all(0 <= share <= 1 for _, share in goodput_series(history, at(400)))


def test_values_that_are_stored_are_bounded() -> None:
    assert len(change(0, message="x" * 10_000).message) == 256
    assert change(0, resume_seconds=-1.0).resume_seconds == 0.0
    assert change(0, resume_seconds=1.23456789).resume_seconds == 1.2346
    assert change(0, resume_seconds=float("nan")).resume_seconds is None
