"""`watch`: a job as it goes on, full screen or line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli.options import Context, JobName, Kubeconfig, Namespace, connect
from elasticjob.errors import Exit

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient
    from elasticjob.state import JobState


def watch(
    name: JobName,
    plain: Annotated[
        bool, typer.Option("--plain", help="A line for each change instead of a full screen: for pipes and CI.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Watch a job until it has finished: worker pods, rounds, restarts, steps, failures. q quits."""
    client = connect(namespace, context, kubeconfig)
    client.get(name)
    if plain or not (sys.stdout.isatty() and sys.stdin.isatty()):
        last = _plain(client, name)
    else:
        from elasticjob.live.app import watch_full_screen

        last = watch_full_screen(client, name)
        if last is not None and not last.is_finished:
            return  # q
    if last is None:
        raise typer.Exit(Exit.DELETED)
    if last.is_true("Failed"):
        raise typer.Exit(Exit.JOB_FAILED)


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
