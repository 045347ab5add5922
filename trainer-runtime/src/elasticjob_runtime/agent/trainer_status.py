"""The progress that a script reports by the protocol of Kubeflow Trainer, and what the job shows of it. Pure.

The body of a report (kubeflow/trainer, docs/proposals/2779-trainjob-progress); every field may be missing:

    {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 120,
                       "metrics": [{"name": "loss", "value": "0.15"}], "lastUpdatedTime": "2026-01-01T12:00:00+00:00"}}

Hugging Face's Trainer (transformers 5) sends it at most every 5 s, with the metrics `current_step` and `total_steps`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from elasticjob_runtime.contract import ProgressValue

MAX_METRICS = 32
"""Metrics that are kept, as in the job's status."""
MAX_METRIC_NAME = 64
MAX_REPORTED = 256
"""Most metrics in a report, as in Kubeflow Trainer."""
_LARGEST = 2**53
"""Steps and seconds beyond this are mistakes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainerStatus:
    """One report."""

    percent: int | None = None
    remaining_seconds: int | None = None
    step: int | None = None
    total_steps: int | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """Those that are finite numbers."""

    @classmethod
    def parse(cls, body: bytes) -> TrainerStatus:
        """Raises ValueError, with a message for users."""
        try:
            status = json.loads(body)["trainerStatus"]
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        except (KeyError, TypeError):
            raise ValueError("expected a JSON object with trainerStatus") from None
        if not isinstance(status, dict):
            raise ValueError("trainerStatus: expected an object")
        metrics = _metrics(status.get("metrics"))
        step, total = metrics.pop("current_step", None), metrics.pop("total_steps", None)
        return cls(
            percent=_count(status, "progressPercentage", 100),
            remaining_seconds=_count(status, "estimatedRemainingSeconds", _LARGEST),
            step=_step(step),
            total_steps=_step(total),
            metrics=metrics,
        )


def with_status(
    status: TrainerStatus, last: ProgressValue | None, *, round_number: int, steps_per_second: float, now: float
) -> ProgressValue | None:
    """The progress to publish: `last`, which this round published before, with what `status` says. `now`: Unix time, s.

    None: there is nothing to show yet. A script that resumes reports 0 % before it has read its checkpoint.
    """
    if last is None and status.step is None and not status.percent:
        return None
    before = last or ProgressValue(step=0, round=round_number)
    return dataclasses.replace(
        before,
        round=round_number,
        step=before.step if status.step is None else status.step,
        steps_per_second=before.steps_per_second if status.step is None else round(steps_per_second, 3),
        percent=before.percent if status.percent is None else status.percent,
        remaining_seconds=status.remaining_seconds,
        total_steps=before.total_steps if status.total_steps is None else status.total_steps,
        metrics=dict(
            list({**status.metrics, **before.metrics, **status.metrics}.items())[:MAX_METRICS]
        ),  # new ones first
        updated_at=now,
    )


def _count(status: dict[str, Any], name: str, most: int) -> int | None:
    value = status.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}: expected a whole number from 0 to {most}")
    return value


def _metrics(reported: object) -> dict[str, float]:
    if reported is None:
        return {}
    if not isinstance(reported, list) or len(reported) > MAX_REPORTED:
        raise ValueError(f"metrics: expected a list of at most {MAX_REPORTED} objects")
    found: dict[str, float] = {}
    for metric in reported:
        if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
            raise ValueError("metrics: expected objects with name and value")
        name, number = metric["name"], _number(metric.get("value"))
        if number is not None and 0 < len(name) <= MAX_METRIC_NAME and name.isprintable():
            found[name] = number
    return found


def _number(value: object) -> float | None:
    """None: it is not a finite number, which the job cannot show."""
    if not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _step(number: float | None) -> int | None:
    return int(number) if number is not None and 0 <= number <= _LARGEST else None
