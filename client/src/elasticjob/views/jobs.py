"""Tables of jobs and of worker pods. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

from elasticjob.state import JobState, WorkerState
from elasticjob.views.table import Cell, Column, html, render, render_pages
from elasticjob.views.words import age, count, first_line, number

MOST_WORKERS = 40
"""Worker pods that are listed; of more, only those that are not ready."""

_STYLE = {
    "Running": "good",
    "Ready": "good",
    "Succeeded": "good",
    "Completed": "good",
    "Failed": "bad",
    "Suspended": "dim",
    "Queued": "dim",
    "Deleting": "dim",
    "Terminating": "dim",
    "Degraded": "warn",
    "Stalled": "bad",
    "Pending": "busy",
    "Accepted": "busy",
    "Resizing": "busy",
    "Restarting": "busy",
    "Starting": "busy",
    "WaitingForWorkers": "busy",
    "WaitingForRendezvous": "busy",
    "EtcdStarting": "busy",
}


def style_of(word: str) -> str:
    """Words that are not known name something that is in the way."""
    return _STYLE.get(word, "warn")


def job_table(
    jobs: Sequence[JobState],
    now: datetime.datetime,
    *,
    wide: bool = False,
    rates: bool = True,
    namespaces: bool = False,
    places: Mapping[tuple[str, str], int] | None = None,
    width: int | None = None,
    color: bool = False,
) -> list[str]:
    """`elasticjob list`. `namespaces`: of several namespaces. `wide`: all columns, however narrow the terminal.
    `rates`: whether steps per second are known. `places`: in queues, by namespace and name."""
    pages = [(jobs, places or {})]
    return next(job_tables(pages, now, wide=wide, rates=rates, namespaces=namespaces, width=width, color=color))


def job_tables(
    pages: Iterable[tuple[Sequence[JobState], Mapping[tuple[str, str], int]]],
    now: datetime.datetime,
    *,
    wide: bool = False,
    rates: bool = True,
    namespaces: bool = False,
    width: int | None = None,
    color: bool = False,
) -> Iterator[list[str]]:
    """The same page by page: jobs, and their places in queues."""
    columns = _job_columns(wide=wide, rates=rates, namespaces=namespaces)
    rows = (
        [
            _job_row(
                job, now, wide=wide, rates=rates, namespaces=namespaces, place=places.get((job.namespace, job.name))
            )
            for job in jobs
        ]
        for jobs, places in pages
    )
    return render_pages(columns, rows, width=None if wide else width, color=color)


def job_html(jobs: Sequence[JobState], now: datetime.datetime) -> str:
    """The same for notebooks."""
    return html(_job_columns(namespaces=True), [_job_row(job, now, namespaces=True) for job in jobs])


def _job_columns(*, wide: bool = False, rates: bool = True, namespaces: bool = False) -> list[Column]:
    return [
        *([Column("NAMESPACE")] if namespaces else []),
        Column("NAME", shrinks=not wide),
        Column("STATUS"),
        Column("WORKERS", 1),
        Column("STEP", 2, right=True),
        *([Column("STEPS/S", 4, right=True)] if rates else []),
        Column("RESTARTS", 3, right=True),
        Column("AGE", 2),
        *([Column("SIZES"), Column("WORLD"), Column("ROUND"), Column("IMAGE"), Column("MESSAGE")] if wide else []),
    ]


def _job_row(
    job: JobState,
    now: datetime.datetime,
    *,
    wide: bool = False,
    rates: bool = True,
    namespaces: bool = False,
    place: int | None = None,
) -> list[Cell | str]:
    progress = job.progress
    rate = number(progress.steps_per_second) if progress and not job.is_finished else ""
    row: list[Cell | str] = [job.namespace] if namespaces else []
    row += [
        job.name,
        Cell(f"{job.summary} (place {place})" if place else job.summary, style_of(job.summary)),
        job.workers_text,
        str(progress.step) if progress else "",
        *([rate] if rates else []),
        Cell(str(job.restarts), "warn" if job.restarts else ""),
        age(job.created, now),
    ]
    if wide:
        shown = job.conditions.get("Queued" if job.summary == "Queued" else "Running")
        message = first_line(shown.message) if shown else ""
        row += [job.range_text, str(job.world_size), str(job.round), job.image, message]
    return row


def worker_table(
    workers: Sequence[WorkerState],
    now: datetime.datetime,
    *,
    wide: bool = False,
    width: int | None = None,
    color: bool = False,
) -> list[str]:
    """The worker pods of a job, below it in `elasticjob get NAME`; of many, those that are not ready."""
    columns = [
        Column("WORKER POD", shrinks=not wide),
        Column("STATUS"),
        Column("NODE", 2, shrinks=not wide),
        Column("AGE", 1),
        Column("DETAIL", 3, shrinks=not wide),
    ]
    many = len(workers) > MOST_WORKERS and not wide
    shown = [worker for worker in workers if not worker.ready][:MOST_WORKERS] if many else workers
    rows: list[list[Cell | str]] = [
        [
            worker.name,
            Cell(worker.summary, style_of(worker.summary)),
            worker.node,
            age(worker.created, now),
            first_line(worker.detail) or (f"exit code {worker.exit_code}" if worker.exit_code else ""),
        ]
        for worker in shown
    ]
    lines = render(columns, rows, width=None if wide else width, color=color)
    hidden = len(workers) - len(shown)
    return [*lines, f"and {count(hidden, 'more worker pod')}"] if hidden else lines
