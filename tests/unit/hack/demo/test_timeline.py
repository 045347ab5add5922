"""The demo's timeline is right whatever the order of observations, and never calls a failure a success."""

from __future__ import annotations

import dataclasses
from functools import reduce
from typing import Any

import pytest

from hack.demo.observations import JobSeen, LineSeen, Observation, PodDeleted, parse_job, parse_line
from hack.demo.timeline import Timeline, View, is_news, observe, problem, table

APPLIED = 1000.0
NEW = Timeline(applied_at=APPLIED, full=3, delete_at=300)


def step(number: int, world: int, word: str = "") -> LineSeen:
    return LineSeen(word=word, step=number, epoch=number // 23, world=world)


def timeline_of(*seen: tuple[float, Observation]) -> Timeline:
    """The timeline of observations at seconds after apply."""
    return reduce(lambda timeline, each: observe(timeline, APPLIED + each[0], each[1]), seen, NEW)


TRAINING = ((5.0, step(0, 3, "started")), (6.0, step(10, 3)), (35.0, step(300, 3)))
LOST = (*TRAINING, (35.1, PodDeleted("digits-worker-2")))
ALL = (
    *LOST,
    (35.2, JobSeen(ready=3, wanted=3, world=3, step=304)),
    (36.0, step(300, 2, "resumed")),
    (37.0, step(310, 2)),
    (42.0, step(320, 3, "resumed")),
    (43.0, step(330, 3)),
    (70.0, LineSeen(accuracy=0.94)),
    (71.0, step(600, 3, "finished")),
    (71.1, LineSeen(accuracy=0.9722)),
    (72.0, JobSeen(ready=0, wanted=3, succeeded=True)),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step=120 epoch=3 world=4 loss=0.1234", LineSeen(step=120, epoch=3, world=4, loss=0.1234)),
        (
            "[digits-worker-0 rank 0] resumed step=120 epoch=3 world=2",
            LineSeen(word="resumed", step=120, epoch=3, world=2),
        ),
        ("finished step=600 epoch=26 world=3\n", LineSeen(word="finished", step=600, epoch=26, world=3)),
        ("[rank0]: accuracy=0.9712", LineSeen(accuracy=0.9712)),
        ("step=10 epoch=0 world=1 loss=1e-05", LineSeen(step=10, epoch=0, world=1, loss=1e-05)),
        ("stopped by SIGTERM step=12", None),
        ("WARNING: footstep=1", None),
        ("", None),
    ],
)
def test_lines_of_the_example_are_understood_behind_any_prefix(text: str, expected: LineSeen | None) -> None:
    assert parse_line(text) == expected


def test_a_job_is_read_as_the_api_server_has_it() -> None:
    job: dict[str, Any] = {
        "spec": {"workers": {"replicas": 3}},
        "status": {
            "readyReplicas": 2,
            "worldSize": 2,
            "round": 4,
            "progress": {"step": 310, "metrics": {"accuracy": "0.91"}},
            "conditions": [{"type": "Failed", "status": "False"}, {"type": "Running", "status": "True"}],
        },
    }
    assert parse_job(job) == JobSeen(ready=2, wanted=3, world=2, group=4, step=310, accuracy=0.91)


def test_a_job_that_has_no_status_yet_is_read() -> None:
    assert parse_job({"spec": {"workers": {"replicas": 3}}}) == JobSeen(wanted=3)


def test_a_failed_job_says_why() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "MaxRestarts", "message": "10 restarts"}
    assert (
        parse_job({"spec": {"workers": {}}, "status": {"conditions": [condition]}}).failed == "MaxRestarts: 10 restarts"
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (TRAINING[:2], False),  # not halfway yet
        (TRAINING, True),
        (((5.0, step(0, 2, "started")), (6.0, step(300, 2))), False),  # not at full size
        (LOST, False),  # only once
    ],
)
def test_a_pod_is_deleted_once_halfway_at_full_size(
    seen: tuple[tuple[float, Observation], ...], expected: bool
) -> None:
    assert timeline_of(*seen).should_delete_pod is expected


def test_the_table_lists_what_happened_and_when() -> None:
    assert table(timeline_of(*ALL)) == [
        ("0.0 s", "job applied", ""),
        ("6.0 s", "training", "6.0 s after apply"),
        ("35.1 s", "worker pod digits-worker-2 deleted", "at step 300, with 3 worker pods"),
        (
            "37.0 s",
            "training resumed with 2 of 3 worker pods",
            "1.9 s after the pod was deleted, from step 300, 4 steps lost",
        ),
        (
            "43.0 s",
            "training resumed at full size: 3 worker pods",
            "7.9 s after the pod was deleted, from step 320, 0 steps lost",
        ),
        ("72.0 s", "job succeeded", ""),
        ("", "accuracy on the test images", "0.9722"),
        ("", "steps lost in total", "4"),
    ]


def test_a_good_end_has_no_problem() -> None:
    timeline = timeline_of(*ALL)
    assert timeline.is_over
    assert problem(timeline) == ""


def test_the_last_accuracy_may_come_after_the_status() -> None:
    rest, (_, accuracy), succeeded = ALL[:-2], ALL[-2], ALL[-1]
    before = timeline_of(*rest, succeeded)
    assert not before.is_over
    assert problem(observe(before, APPLIED + 73, accuracy)) == ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ((*ALL[:-2], (71.1, LineSeen(accuracy=0.9499)), ALL[-1]), "accuracy 0.9499 is below 0.95"),
        (ALL[:-1], "did not finish in time"),
        ((*TRAINING, *ALL[-3:]), "ended before a pod was deleted"),
        ((*LOST, *ALL[-3:]), "does not show that training resumed"),
        ((*LOST, (36.0, step(300, 2, "resumed")), (37.0, step(310, 2)), *ALL[-3:]), "before it was back at full size"),
        ((*LOST, (40.0, JobSeen(failed="MaxRestarts: 10 restarts"))), "MaxRestarts: 10 restarts"),
    ],
)
def test_every_bad_end_is_a_failure_that_says_why(seen: tuple[tuple[float, Observation], ...], expected: str) -> None:
    assert expected in problem(timeline_of(*seen))


def test_an_accuracy_halfway_is_not_the_result() -> None:
    assert timeline_of(*TRAINING, (36.0, LineSeen(accuracy=0.99))).final_accuracy is None


def test_a_failed_job_is_over_at_once() -> None:
    assert timeline_of(*LOST, (40.0, JobSeen(failed="x"))).is_over


def test_a_status_of_the_group_before_does_not_count_as_steps_of_the_new_one() -> None:
    timeline = timeline_of(
        *LOST,
        (36.0, step(290, 2, "resumed")),
        (36.1, JobSeen(group=1, world=2, step=304)),
        (37.0, step(290, 3, "resumed")),
    )
    assert timeline.steps_lost == 10


def test_full_size_at_once_counts_as_resumed_and_as_full_size() -> None:
    timeline = timeline_of(*LOST, (36.0, step(300, 3, "resumed")), (37.0, step(310, 3)))
    assert timeline.resumed
    assert timeline.full_again


def test_workers_that_load_a_checkpoint_but_never_train_have_not_resumed() -> None:
    timeline = timeline_of(
        *LOST, (36.0, step(290, 2, "resumed")), (40.0, step(290, 3, "resumed")), (41.0, step(291, 3))
    )
    assert [entry.what for entry in timeline.entries][2:] == ["training resumed at full size: 3 worker pods"]
    assert timeline.entries[-1].detail == "5.9 s after the pod was deleted, from step 290, 10 steps lost"


def test_an_older_accuracy_in_the_status_does_not_replace_a_newer_one() -> None:
    assert timeline_of((1.0, LineSeen(accuracy=0.9)), (2.0, JobSeen(accuracy=0.8))).view.accuracy == 0.9


def test_the_first_step_counts_wherever_it_is_seen_first() -> None:
    assert [
        entry.time for entry in timeline_of((5.0, JobSeen(step=0)), (6.0, JobSeen(step=1)), (7.0, step(10, 3))).entries
    ] == [APPLIED + 6]


def test_without_a_terminal_only_changes_are_timeline_of() -> None:
    view = View(workers="3/3", world=3, step=10, loss=0.5)
    assert not is_news(view, dataclasses.replace(view, step=20, loss=0.4))
    assert is_news(view, dataclasses.replace(view, workers="2/3"))
    assert is_news(view, dataclasses.replace(view, epoch=1))
    assert not is_news(view, dataclasses.replace(view, group=2))
