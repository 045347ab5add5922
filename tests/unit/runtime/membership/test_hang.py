"""When training that reports no more steps counts as a hang."""

from __future__ import annotations

import random

import pytest
from elasticjob_runtime.contract import SpecValue
from elasticjob_runtime.membership.culprit import Activity, Culprit, RankEvidence, Stack, find_culprit
from elasticjob_runtime.membership.hang import REMEMBERED, Hang, HangLimits, StepTimes, is_certain, limits_of, restarts
from elasticjob_runtime.training.auto_progress import PAGE_BYTES, StepCounter

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
    "an announced pause extends the deadline": (paused(timed(*[1.0] * 10), 10.5, 600.0), LIMITS, 10.5 + 600.0 + 10.0),
    "the longest announced pause of several ranks counts":
        (paused(timed(*[1.0] * 10), 10.5, 5.0, 600.0, 60.0), LIMITS, 620.5),
    "a short pause does not shorten the deadline": (paused(timed(*[1.0] * 10), 8.0, 1.0), LIMITS, 20.0),
    "an infinite pause has no deadline": (paused(timed(*[1.0] * 10), 10.5, float("inf")), LIMITS, None),
    "the next step ends the pause": (resumed(paused(timed(*[1.0] * 10), 10.0, 600.0), 11, 300.0), LIMITS, 310.0),
    "a late report of the same step does not end the pause":
        (resumed(paused(timed(*[1.0] * 10), 10.0, 600.0), 10, 11.0), LIMITS, 620.0),
    "steps with a pause do not count for the median":
        (resumed(paused(timed(*[1.0] * 4), 4.0, 600.0), 5, 300.0), LIMITS, None),
    "ten times the median after the last step": (timed(*[1.0] * 10), LIMITS, 20.0),
    "not before the least": (timed(*[0.1] * 10), LIMITS, 6.0),
    "a slow first step does not move the median": (timed(60.0, *[1.0] * 8), LIMITS, 78.0),
    "too few steps: no deadline": (timed(*[1.0] * 4), LIMITS, None),
    "no steps: no deadline": (StepTimes(), LIMITS, None),
    "hang detection off: no deadline": (timed(*[1.0] * 10), HangLimits(factor=0.0), None),
    "only recent steps count for the median": (timed(*[1.0] * 200, *[2.0] * REMEMBERED), LIMITS, 402.0 + 20.0),
}  # fmt: skip


@pytest.mark.parametrize(("times", "limits", "deadline"), DEADLINES.values(), ids=DEADLINES)
def test_the_hang_deadline_follows_the_step_times_and_pauses(
    times: StepTimes, limits: HangLimits, deadline: float | None
) -> None:
    assert times.deadline(limits) == (None if deadline is None else pytest.approx(deadline))


def test_the_message_of_a_hang_names_the_time_without_a_step() -> None:
    times = timed(*[0.4] * 10)
    assert times.hang(LIMITS, 8.9) is None
    assert times.hang(LIMITS, 35.0) == Hang("no step for 31 s, median 0.4 s", final=False)


def test_the_message_of_a_hang_names_an_exceeded_pause() -> None:
    times = paused(timed(*[0.4] * 10), 4.0, 60.0)
    assert times.hang(LIMITS, 68.9) is None
    text = "no step for 66 s, median 0.4 s, beyond the announced pause of 60 s (evaluation)"
    assert times.hang(LIMITS, 70.0) == Hang(text, final=False)


def test_a_hang_is_asked_about_less_and_less_often_until_it_is_one_for_sure() -> None:
    times, limits = timed(*[0.4] * 10), HangLimits()
    looks = ((second - 4, times.hang(limits, second)) for second in range(4, 7200))
    asked = [(second, hang.final) for second, hang in looks if hang is not None]
    often = [(60, False), (120, False), (240, False), (480, False), (960, False), (1800, True)]
    assert asked == [*often, (3600, True), (5400, True)]
    times.add(11, 7200.0)
    assert times.deadline(limits) == pytest.approx(7260.0), "the next step begins again"


def test_time_in_which_the_machine_stood_still_is_no_evidence() -> None:
    """Its processes need as long for their next step as ever, and were seen to take none for a moment only."""
    times, limits = timed(*[0.4] * 10), HangLimits()
    looks = ((second, times.hang(limits, second)) for second in range(7200, 10_000))
    asked = [(second - 7200, hang.final) for second, hang in looks if hang is not None]
    assert asked == [(0, False), (60, False), (180, False), (420, False), (900, False), (1740, True)]


def test_steps_that_take_longer_than_the_longest_hang_are_asked_about_before_they_are_one() -> None:
    times, limits = timed(*[100.0] * 10), HangLimits()
    asked = [(now, hang.final) for now in range(1000, 9000) if (hang := times.hang(limits, now)) is not None]
    assert asked == [(3000, False), (5000, True), (7000, True)]


def test_a_script_whose_count_of_steps_begins_again_is_seen_to_train() -> None:
    times = timed(*[1.0] * 10)
    for step in range(5):
        times.add(step, 15.0 + step)
    assert times.deadline(LIMITS) == pytest.approx(19.0 + 10.0)


ALL_BUSY = Culprit(why="", stuck=False)
NAMED, MUST_WAIT, UNKNOWN = Culprit(ranks=(1,), why=""), Culprit(ranks=(1,), why="", acts=False), Culprit(why="")
RESTARTS = {
    "a rank that does nothing, and keeps the others waiting": (False, NAMED, True, True),
    "... but restarts are not wanted": (False, NAMED, False, False),
    "a rank that does something": (False, MUST_WAIT, True, False),
    "none is known": (False, UNKNOWN, True, False),
    "none is known for half an hour": (True, UNKNOWN, True, True),
    "a rank that does something for half an hour": (True, MUST_WAIT, True, True),
    "all are busy for half an hour": (True, ALL_BUSY, True, False),
    "half an hour, but restarts are not wanted": (True, UNKNOWN, False, False),
}


@pytest.mark.parametrize(("final", "culprit", "wanted", "expected"), RESTARTS.values(), ids=RESTARTS)
def test_processes_are_restarted_only_if_that_helps(
    final: bool, culprit: Culprit, wanted: bool, expected: bool
) -> None:
    assert restarts(Hang("no step", final), culprit, HangLimits(restarts=wanted)) is expected


OWN = HangLimits(factor=10.0, least=5.0, longest=600.0)
SPECS = {
    "no spec": (None, OWN),
    "a spec that says nothing": (SpecValue(min=1, max=2), OWN),
    "a spec that says all":
        (SpecValue(min=1, max=2, hang_restarts=False, hang_factor=3.0, hang_min=7.0), HangLimits(factor=3.0, least=7.0,
            longest=600.0, restarts=False)),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "limits"), SPECS.values(), ids=SPECS)
def test_the_jobs_spec_wins_over_the_agents_flags(spec: SpecValue | None, limits: HangLimits) -> None:
    assert limits_of(spec, OWN) == limits


class Day:
    """Two ranks that train for 24 hours with two optimizers, seen by an agent. Everything that looks like a hang ends
    by itself."""

    def __init__(self, seed: int, batches: int) -> None:
        """`batches`: in a step, of half a second each."""
        self.random = random.Random(seed)
        self.times, self.limits = StepTimes(), HangLimits()
        self.counter, self.optimizers, self.batches = StepCounter(bytearray(PAGE_BYTES)), (object(), object()), batches
        self.now = 0.0
        self.asked = 0
        self.restarted: list[str] = []
        self.alarms: list[str] = []

    def run(self) -> None:
        pauses = (
            ("steps", 0.0), ("evaluation", 600.0), ("save", 300.0), ("compile", 180.0), ("stall", 45.0),
            ("jump", 3600.0), ("overflow", 1800.0),
        )  # fmt: skip
        while self.now < 86400.0:
            what, least = pauses[0] if self.random.random() < 0.97 else self.random.choice(pauses)
            if what == "steps":
                for _ in range(max(1, 20 // self.batches)):
                    self.take_step()
            elif what == "overflow":  # the gradient scaler skips all steps
                end = self.now + least
                while self.now < end:
                    self.take_batch()
            elif what == "jump":  # the machine was suspended: the agent wakes up before the next step
                self.now += least
                self.look(None)
            else:
                self.pause(what, self.random.uniform(0.5, 1.0) * least)

    def take_batch(self) -> None:
        self.now += self.random.uniform(0.3, 0.7)
        self.look({})
        self.times.alive(self.now)

    def take_step(self) -> None:
        for _ in range(self.batches):
            self.take_batch()
        for optimizer in self.optimizers:
            self.counter.before(optimizer)
            self.counter.after(optimizer)
        self.times.count(self.counter.steps, self.now)

    def pause(self, what: str, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.times.deadline(self.limits)) is not None and due < until:
            self.now = due
            self.look({0: IN_BARRIER, 1: RankEvidence(activity=DOES[what])})
        self.now = until

    def look(self, evidence: dict[int, RankEvidence] | None) -> None:
        """None: a step comes while it looks."""
        hang = self.times.hang(self.limits, self.now)
        if hang is None:
            return
        self.asked += 1
        if evidence is None:
            self.take_step()
            return
        culprit = find_culprit(evidence, whole=True)
        if restarts(hang, culprit, self.limits):
            self.restarted.append(hang.text)
        if is_certain(hang, culprit):
            self.alarms.append(hang.text)


IN_BARRIER = RankEvidence(stack=Stack(collective="barrier", place="main (train.py:40)"))
DOES = {
    "evaluation": Activity(cpu_ms=2730, switches=1390),
    "save": Activity(cpu_ms=860, switches=11_122, bytes=5_000_000),
    "compile": Activity(cpu_ms=2900, switches=400, bytes=100_000),
    "stall": Activity(),
}


@pytest.mark.parametrize("batches", [1, 100])
@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_training_has_no_false_alarm(seed: int, batches: int) -> None:
    day = Day(seed, batches)
    day.run()
    assert batches > 1 or day.asked > 20, "evaluations and the like were looked at"
    assert (day.restarted, day.alarms) == ([], [])


def test_a_hang_of_a_quarter_of_an_hour_is_told_whatever_it_is() -> None:
    times, limits, unknown = timed(*[0.4] * 10), HangLimits(), Culprit(why="", certain=False)
    asked = ((second - 4, times.hang(limits, second)) for second in range(4, 7200))
    assert [second for second, hang in asked if hang is not None and is_certain(hang, unknown)] == [
        960,
        1800,
        3600,
        5400,
    ]
    assert is_certain(Hang("no step", final=False), NAMED), "at once, where something is wrong for sure"


def test_counted_steps_count_each_however_rarely_they_are_read() -> None:
    times = StepTimes()
    times.count(2, 1.0)
    assert times.deadline(LIMITS) is None
    times.count(12, 6.0)
    assert times.deadline(LIMITS) == pytest.approx(6.0 + 5.0), "half a second each"
    times.count(13, 7.0)
    assert times.deadline(LIMITS) == pytest.approx(7.0 + 5.0), "one slow step does not move the median"


def test_reports_of_one_step_by_several_ranks_count_once() -> None:
    times = StepTimes()
    for step in range(10):
        for rank in range(3):
            times.add(step, step + rank * 0.01)
    assert times.deadline(LIMITS) == pytest.approx(9.0 + 10.0)
