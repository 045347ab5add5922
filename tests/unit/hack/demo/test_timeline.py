"""The demo's timeline is right whatever the order of observations, and never calls a failure a success."""

from __future__ import annotations

from functools import reduce

import pytest

from hack.demo.observations import (
    Finished,
    JobSeen,
    Observation,
    PodDeleted,
    StepSeen,
    WorldSeen,
)
from hack.demo.timeline import Timeline, observe, problem

APPLIED = 1000.0
NEW = Timeline(applied_at=APPLIED, full=3, delete_at=500)


def step(number: int) -> StepSeen:
    return StepSeen(step=number, epoch=number // 100, loss=0.5)


def world(pod: str, rank: int, size: int, after: int, pid: int = 20) -> WorldSeen:
    return WorldSeen(pod=pod, pid=pid, rank=rank, world=size, step=after)


def timeline_of(*seen: tuple[float, Observation]) -> Timeline:
    """The timeline of observations at seconds after apply."""
    return reduce(lambda timeline, each: observe(timeline, APPLIED + each[0], each[1]), seen, NEW)


def together(at: float, size: int, after: int, pods: str = "abc") -> tuple[tuple[float, Observation], ...]:
    return tuple((at, world(pod, rank, size, after)) for rank, pod in enumerate(pods))


TRAINING = (*together(5.0, 3, 0), (6.0, step(10)), (35.0, step(500)))
LOST = (*TRAINING, (35.1, PodDeleted("session-worker-2", "c")))
CONTINUED = (*LOST, *together(35.3, 2, 504, "ab"))
FULL = (*CONTINUED, (36.0, step(510)), *together(41.0, 3, 590, "abd"))
END = ((70.0, step(1000)), (70.1, Finished(1000)), (72.0, JobSeen(ready=0, wanted=3, succeeded=True)))
ALL = (*FULL, *END)


def test_a_good_end_has_no_problem() -> None:
    timeline = timeline_of(*ALL)
    assert timeline.is_over
    assert problem(timeline) == ""


def test_the_last_line_may_come_after_the_status() -> None:
    *rest, (_, finished), succeeded = ALL
    before = timeline_of(*rest, succeeded)
    assert not before.is_over
    assert problem(observe(before, APPLIED + 73, finished)) == ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (ALL[:-1], "did not finish in time"),
        ((*TRAINING, *END), "ended before a pod was deleted"),
        ((*LOST, *END), "does not show that the other worker processes continued"),
        ((*CONTINUED, *END), "before it was back at full size"),
        ((*FULL, (50.0, world("b", 1, 3, 700, pid=77)), *END), "worker processes of the remaining pods restarted: 1"),
        ((*LOST, *together(36.0, 2, 480, "ab"), *FULL[-3:], *END), "steps were lost: 19"),
        ((*LOST, (40.0, JobSeen(failed="MaxRestarts: 10 restarts"))), "MaxRestarts: 10 restarts"),
    ],
)
def test_every_bad_end_is_a_failure_that_says_why(seen: tuple[tuple[float, Observation], ...], expected: str) -> None:
    assert expected in problem(timeline_of(*seen))


def test_a_failed_job_is_over_at_once() -> None:
    assert timeline_of(*LOST, (40.0, JobSeen(failed="x"))).is_over


def test_a_step_that_was_interrupted_before_its_commit_is_not_lost() -> None:
    assert timeline_of(*LOST, *together(35.3, 2, 499, "ab")).steps_lost == 0


def test_a_line_of_another_rank_that_arrives_late_is_no_lost_step() -> None:
    late = timeline_of(*CONTINUED, (36.0, step(520)), (36.1, world("b", 1, 2, 504)))
    assert late.steps_lost == 0


def test_restarts_before_all_processes_train_together_are_not_counted() -> None:
    timeline = timeline_of((3.0, world("a", 0, 1, 0, pid=9)), *ALL)
    assert problem(timeline) == ""


def test_a_replacement_with_the_name_of_the_lost_pod_is_no_restarted_process() -> None:
    timeline = timeline_of(*CONTINUED, (41.0, world("d", 2, 3, 590, pid=99)))
    assert timeline.restarted == 0
