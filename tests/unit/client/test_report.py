"""What `elasticjob plot` says and draws."""

from __future__ import annotations

import datetime
import re

import pytest
from elasticjob.state import JobState
from elasticjob.views.page import page
from elasticjob.views.report import summary
from elasticjob.views.svg import LEFT, MOST_TICKS, NARROW, RIGHT, WIDTH, drawing, image, ticks
from elasticjob_api import Change, History

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
JOB = JobState("bert", "ml", restarts=4, reported="Failed")


def change(seconds: float, reason: str, **fields: object) -> Change:
    fields = {"type": "Round", "round": 1, "world_size": 2, **fields}
    return Change.model_validate({"time": NOW + datetime.timedelta(seconds=seconds), "reason": reason, **fields})


def sample(seconds: float, step: int) -> str:
    return f"{(NOW + datetime.timedelta(seconds=seconds)).isoformat()} {step} 2 2"


CRASHES = [change(100 + 60 * index, "WorkerFailed", world_size_before=2, form_seconds=30.0) for index in range(4)]
SILENT = History(changes=(change(0, "Start"), *CRASHES))
"""A crash loop of a script that reports nothing."""
REPORTED = History(
    changes=(change(0, "Start", resume_seconds=5.0), *CRASHES, change(400, "MaxRestartsExceeded", type="Failed")),
    samples=(sample(10, 10), sample(60, 120), sample(65, 128)),
)
KNOWN = History(
    changes=(change(0, "Start", resume_seconds=5.0), change(50, "Resized", resume_seconds=2.0, steps_lost=3)),
    samples=(sample(10, 10), sample(60, 100)),
)


@pytest.mark.parametrize(
    ("history", "repeated", "goodput"),
    [
        pytest.param(SILENT, "unknown", "unknown", id="nothing is reported"),
        pytest.param(REPORTED, "unknown", "at least 15.0 %", id="a crash loop before the first step"),
        pytest.param(KNOWN, "3", "86.7 %", id="all is known"),
        pytest.param(
            REPORTED.model_copy(update={"samples": (*REPORTED.samples, sample(110, 100))}),
            *("at least 28", "15.0 % to 23.8 %"),
            id="a round that goes back, and does not say so",
        ),
    ],
)
def test_a_report_says_what_is_unknown(history: History, repeated: str, goodput: str) -> None:
    facts = dict(summary(JOB, history, NOW + datetime.timedelta(seconds=60)))
    assert (facts["steps repeated"], facts["goodput"]) == (repeated, goodput)


def test_an_empty_figure_says_why() -> None:
    assert drawing(JOB, SILENT, NOW, NARROW).count("the script does not report its steps") == 2
    assert "does not report" not in drawing(JOB, KNOWN, NOW, NARROW)


def test_the_head_of_an_image_is_not_cut() -> None:
    suspended = change(100, "Suspended", type="Suspended"), change(140, "JobResumed", type="Resumed")
    history = KNOWN.model_copy(update={"changes": (*KNOWN.changes, *suspended, *CRASHES[2:])})
    now = NOW + datetime.timedelta(seconds=400)
    text = image(JOB, history, now).replace("\N{NO-BREAK SPACE}", " ")
    head = re.findall(rf"<text x='{LEFT}' y='(\d+)'[^>]*>([^<]*)</text>", text.partition("Worker processes")[0])[1:]
    assert ", ".join(line.rstrip(",") for _, line in head) == ", ".join(map(" ".join, summary(JOB, history, now)))
    assert len(head) == 2
    assert all(6.5 * len(line) < WIDTH - LEFT - RIGHT for _, line in head), "as wide as DejaVu Sans"
    assert int(head[1][0]) - int(head[0][0]) > 12


def test_a_page_has_figures_for_narrow_screens() -> None:
    text = page(JOB, KNOWN, NOW)
    assert f"width='{NARROW}'" in text
    assert "<td title='steps repeated'>3</td>" in text
    assert "<td title='steps repeated'>unknown</td>" in page(JOB, REPORTED, NOW)


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.4, [0]),
        (7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (305, [0, 60, 120, 180, 240, 300]),
        (5400, [0, 900, 1800, 2700, 3600, 4500, 5400]),
        (30 * 86_400, [day * 86_400 for day in range(0, 31, 4)]),
    ],
)
def test_labels_of_the_time_axis_are_round_and_few(seconds: float, labels: list[int]) -> None:
    assert ticks(seconds) == labels
    assert len(labels) <= MOST_TICKS
