"""Conversions of single values, for the mapping tables. They raise RejectedValue."""

from __future__ import annotations

from typing import Any

from elasticjob_api import CleanPods

from elasticjob.convert.table import Outcome, RejectedValue

MAX_SECONDS = 2**31 - 1
_OWN_CONTROLLERS = ("kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller")
MAX_PROCS = 1024


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RejectedValue(f"{value!r} is not a number")
    return value


def positive_seconds(value: Any) -> int:
    seconds = whole_number(value)
    if not 1 <= seconds <= MAX_SECONDS:
        raise RejectedValue(f"{seconds} is not between 1 and {MAX_SECONDS}", "leave it out, which means no deadline")
    return seconds


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RejectedValue(f"{value!r} is neither true nor false")
    return value


def procs_per_worker(value: Any) -> int | str:
    """`8`, also as text, or auto, cpu, gpu."""
    if value in ("auto", "cpu", "gpu"):
        return str(value)
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_PROCS:
        raise RejectedValue(
            f"{value!r} is neither auto, cpu, gpu nor a number from 1 to {MAX_PROCS}",
            "set spec.workers.procsPerWorker",
        )
    return number


def clean_pods(value: Any) -> str:
    known = [str(each) for each in CleanPods]
    if value not in known:
        raise RejectedValue(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def managed_by(value: Any) -> str:
    if value in _OWN_CONTROLLERS:
        raise RejectedValue("names the operator that the job comes from", outcome=Outcome.IRRELEVANT)
    if not isinstance(value, str) or "/" not in value:
        raise RejectedValue(f"{value!r} is not a domain-prefixed name", "set spec.managedBy")
    return value


def metrics(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RejectedValue("it is not a list of metrics")
    return value
