"""The guide to debugging a job says what to do about every reason that may need it."""

from __future__ import annotations

from elasticjob_api import Reason

from hack.checks.pages import Problem, spans

PAGE = "docs/guides/debugging.md"
NORMAL = frozenset(
    {
        Reason.ACCEPTED,
        Reason.ADMITTED,
        Reason.COMPLETE,
        Reason.ETCD_CREATED,
        Reason.ETCD_READY,
        Reason.FINISHED,
        Reason.JOB_RESUMED,
        Reason.JOB_STARTED,
        Reason.NOT_FINISHED,
        Reason.NOT_QUEUED,
        Reason.NOT_TRAINING,
        Reason.NO_STRAGGLERS,
        Reason.NO_SUSPECTS,
        Reason.PROGRESSING,
        Reason.RESIZED,
        Reason.RESIZING,
        Reason.RESUMED,
        Reason.SCALING_DOWN,
        Reason.SCALING_UP,
        Reason.STORE_READY,
        Reason.SUSPENDING,
        Reason.TRAINING,
        Reason.WORKERS_SUCCEEDED,
        Reason.WORKER_CREATED,
        Reason.WORKER_DELETED,
    }
)
"""Reasons of a job that is as its owner wants it, or will be without anyone's help."""


def unexplained(markdown: str) -> list[Problem]:
    """Reasons that the guide does not name in a code span."""
    named = {span.text for span in spans(markdown)}
    return [
        Problem(PAGE, 1, f"does not say what to do about reason {reason}: add a row, or list it in {__name__}.NORMAL")
        for reason in Reason
        if reason not in NORMAL and reason.value not in named
    ]
