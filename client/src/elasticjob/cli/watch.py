"""`watch`: a job as it goes on, full screen or line by line."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli.options import JobName, connect, given
from elasticjob.errors import Exit
from elasticjob.views.text import visible

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient
    from elasticjob.state import JobState

REDRAW_SECONDS = 0.5


def watch(
    name: JobName,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print a line for each change instead of the full screen, for pipes and CI.")
    ] = False,
) -> None:
    """Watch a job until it has finished: worker pods, rounds, restarts, steps, failures. Ctrl-C quits."""
    client = connect()
    client.get(name)
    if plain or not (sys.stdout.isatty() and sys.stdin.isatty()):
        last = _plain(client, name)
    else:
        last = _full_screen(client, name)
        if last is not None and not last.is_finished:
            return  # Ctrl-C
    if last is None:
        raise typer.Exit(Exit.DELETED)
    if last.is_true("Failed"):
        raise typer.Exit(Exit.JOB_FAILED)


def _full_screen(client: ElasticJobClient, name: str) -> JobState | None:
    """What `describe` shows, as it changes. Returns the last state; None if the job was deleted."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from elasticjob.cli.output import layout, say
    from elasticjob.sdk.watch import JobWatch
    from elasticjob.views.describe import describe

    console, lines = Console(highlight=False), [""]
    last: JobState | None = None
    with (
        contextlib.suppress(KeyboardInterrupt),
        JobWatch(client.cluster, name, workers=True) as watched,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        watched.follow_progress()
        for now in watched.snapshots():
            last = now.job
            if last is None:
                break
            lines = describe(last, now.workers, None, client.cluster.api.now(), flags=given, **layout())
            lost = ["The API server cannot be reached; trying again.", ""] if now.lost_for > 1 else []
            page = "\n".join([*lost, *lines])
            screen.update(Text.from_ansi(visible(page, colors=True), no_wrap=True), refresh=True)
            if last.is_finished:
                break
            time.sleep(REDRAW_SECONDS)
    say(lines if last is not None else f"{name} was deleted.")
    return last


def _plain(client: ElasticJobClient, name: str) -> JobState | None:
    """Returns the last state; None if the job was deleted."""
    import time

    from elasticjob.cli.output import note, say, use_color
    from elasticjob.decisions.changes import STEP_SECONDS, changes, progress_line
    from elasticjob.sdk.watch import JobWatch
    from elasticjob.state import WorkerState
    from elasticjob.views.table import paint, plain

    color = use_color(sys.stdout)
    before: JobState | None = None
    workers: list[WorkerState] = []
    told, told_at, lost = "", 0.0, False
    with JobWatch(client.cluster, name, workers=True) as watched:
        watched.follow_progress()
        for now in watched.snapshots():
            clock = client.cluster.api.now().astimezone().strftime("%H:%M:%S")
            for change in changes(before, now.job, workers, now.workers):
                say(f"{clock} {paint(plain(change.text), change.style, color=color)}")
            if (now.lost_for > 1) != lost:
                lost = not lost
                note(f"{clock} the API server {'cannot be reached; trying again' if lost else 'is back'}")
            if now.job is None or now.job.is_finished:
                return now.job
            step = progress_line(now.job)
            if step != told and time.monotonic() - told_at >= STEP_SECONDS:
                say(f"{clock} {plain(step)}")
                told, told_at = step, time.monotonic()
            before, workers = now.job, now.workers
    return before
