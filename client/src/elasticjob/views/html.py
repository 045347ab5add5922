"""Jobs as HTML, for notebooks. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from html import escape

from elasticjob.state import JobState
from elasticjob.views.jobs import style_of
from elasticjob.views.words import age, number

_COLORS = {"good": "#1a7f37", "busy": "#0969da", "warn": "#9a6700", "bad": "#cf222e", "dim": "#6e7781"}
_TITLES = ("namespace", "name", "status", "workers", "step", "steps/s", "restarts", "age")


def job_html(jobs: Sequence[JobState], now: datetime.datetime) -> str:
    """A table with one row per job."""
    head = "".join(f"<th style='text-align:left'>{title}</th>" for title in _TITLES)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(_row(job, now) for job in jobs)}</tbody></table>"


def _row(job: JobState, now: datetime.datetime) -> str:
    progress = job.progress
    color = _COLORS.get(style_of(job.summary), "inherit")
    running = job.conditions.get("Running")
    status = (
        f"<span style='color:{color};font-weight:600' title='{escape(running.message if running else '', quote=True)}'>"
        f"{escape(job.summary)}</span>"
    )
    cells = (
        escape(job.namespace),
        f"<b>{escape(job.name)}</b>",
        status,
        escape(job.workers_text),
        str(progress.step) if progress else "",
        number(progress.steps_per_second) if progress else "",
        str(job.restarts),
        age(job.created, now),
    )
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"
