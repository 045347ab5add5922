"""Reports by Kubeflow's progress protocol: what is understood, and what the job shows of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from elasticjob_runtime.agent.progress import RoundProgress
from elasticjob_runtime.agent.trainer_status import MAX_METRICS, TrainerStatus, with_status
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.membership.hang import HangLimits
from hypothesis import given
from hypothesis import strategies as st


def body(metrics: dict[str, Any] | None = None, **fields: Any) -> bytes:
    if metrics is not None:
        fields["metrics"] = [{"name": name, "value": value} for name, value in metrics.items()]
    return json.dumps({"trainerStatus": fields}).encode()


HF_STEP = body(
    {"loss": "0.25", "learning_rate": "1e-05", "current_step": "45", "total_steps": "100", "current_epoch": "1.35"},
    lastUpdatedTime="2026-01-01T12:00:00+00:00",
    progressPercentage=45,
    estimatedRemainingSeconds=120,
)
"""As transformers 5.23 sends it at the end of a step."""


def test_a_report_of_hugging_faces_trainer_has_step_percentage_time_and_metrics() -> None:
    assert TrainerStatus.parse(HF_STEP) == TrainerStatus(
        percent=45,
        remaining_seconds=120,
        step=45,
        total_steps=100,
        metrics={"loss": 0.25, "learning_rate": 1e-05, "current_epoch": 1.35},
    )


@pytest.mark.parametrize("value", ["nan", "inf", "high", "", None, [], {}])
def test_a_metric_that_is_no_finite_number_is_left_out(value: object) -> None:
    assert TrainerStatus.parse(body({"loss": value, "accuracy": 0.5})).metrics == {"accuracy": 0.5}


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_a_metric_with_an_unusable_name_is_left_out(name: str) -> None:
    assert TrainerStatus.parse(body({name: 1})).metrics == {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "codec|Expecting value"),
        (b"[]", "trainerStatus"),
        (b"{}", "trainerStatus"),
        (b'{"trainerStatus": 7}', "trainerStatus: expected an object"),
        (b"[" * 50_000, "nested too deeply"),
        (body(progressPercentage=101), "progressPercentage"),
        (body(progressPercentage=-1), "progressPercentage"),
        (body(progressPercentage=True), "progressPercentage"),
        (body(progressPercentage="half"), "progressPercentage"),
        (body(estimatedRemainingSeconds=1.5), "estimatedRemainingSeconds"),
        (body(estimatedRemainingSeconds=2**80), "estimatedRemainingSeconds"),
        (b'{"trainerStatus": {"metrics": 7}}', "metrics: expected a list"),
        (b'{"trainerStatus": {"metrics": [7]}}', "metrics: expected objects"),
        (body(metrics={str(index): 1 for index in range(257)}), "at most 256"),
    ],
)
def test_a_report_that_is_not_understood_is_rejected_with_the_reason(wrong: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainerStatus.parse(wrong)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_raise_value_error(data: bytes) -> None:
    try:
        TrainerStatus.parse(data)
    except ValueError:
        return


def shown(status: TrainerStatus, last: ProgressValue | None = None) -> ProgressValue | None:
    return with_status(status, last, round_number=2, steps_per_second=3.0, now=1000.0)


def test_the_first_report_of_a_run_says_nothing_yet() -> None:
    """A script that resumes reports 0 % before it has read its checkpoint."""
    assert shown(TrainerStatus.parse(body({"total_steps": 100}, progressPercentage=0))) is None


def test_the_last_report_keeps_the_step_of_the_one_before() -> None:
    last = shown(TrainerStatus.parse(HF_STEP))
    end = shown(
        TrainerStatus.parse(
            body({"train_loss": 0.2, "loss": 0.125}, progressPercentage=100, estimatedRemainingSeconds=0)
        ),
        last,
    )
    assert end is not None
    assert (end.step, end.percent, end.remaining_seconds, end.total_steps) == (45, 100, 0, 100)
    assert end.metrics == {"train_loss": 0.2, "loss": 0.125, "learning_rate": 1e-05, "current_epoch": 1.35}


def test_a_script_without_steps_shows_its_percentage() -> None:
    found = shown(TrainerStatus(percent=30))
    assert found is not None
    assert (found.step, found.percent, found.round) == (0, 30, 2)


def test_metrics_are_bounded() -> None:
    found = shown(
        TrainerStatus(step=1, metrics={f"a{index}": 1.0 for index in range(200)}),
        ProgressValue(step=0, round=2, metrics={f"b{index}": 1.0 for index in range(200)}),
    )
    assert found is not None
    assert list(found.metrics) == [f"a{index}" for index in range(MAX_METRICS)], "new ones stay"


def test_both_kinds_of_reports_add_up() -> None:
    published: list[ProgressValue] = []
    progress = RoundProgress(HangLimits(), published.append)
    progress.starting(0.0)
    progress.set_trainer_status(TrainerStatus.parse(HF_STEP), 2, 1000.0)
    progress.set_progress(ProgressValue(step=46, round=2, last_checkpoint_step=40), 2)
    progress.publish(0.0, at_once=True)
    (found,) = published
    assert (found.step, found.last_checkpoint_step, found.percent, found.total_steps) == (46, 40, 45, 100)


def test_a_new_round_starts_without_the_last_rounds_progress() -> None:
    progress = RoundProgress(HangLimits(), lambda _progress: None)
    progress.set_trainer_status(TrainerStatus.parse(HF_STEP), 1, 1000.0)
    progress.starting(0.0)
    assert progress.set_trainer_status(TrainerStatus(percent=0), 2, 1001.0) is None


def test_reports_of_kubeflows_protocol_do_not_count_for_hangs_and_crash_loops() -> None:
    progress = RoundProgress(HangLimits(factor=1.0, least=0.001), lambda _progress: None)
    for step in range(20):
        progress.set_trainer_status(TrainerStatus(step=step), 1, 1000.0 + step)
    assert progress.step is None
    assert progress.hang(1e9) is None
