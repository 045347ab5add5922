"""`logs`: lines of all worker pods, coloured by pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli.options import (
    AllWorkers,
    OptionalJobName,
    Rank,
    Replica,
    Selector,
    Worker,
    check_choice,
    connect,
)
from elasticjob.errors import ElasticJobError, Exit, NotFoundError, UsageError

if TYPE_CHECKING:
    from elasticjob.decisions.log_lines import Line
    from elasticjob.decisions.log_selection import Selection
    from elasticjob.sdk.client import ElasticJobClient


BATCH = 1000
"""Lines that are printed at once."""


def logs(
    name: OptionalJobName = None,
    selector: Selector = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the job until it has finished.")] = False,
    rank: Rank = None,
    replica: Replica = None,
    worker: Worker = None,
    everything: AllWorkers = False,
    since: Annotated[
        str | None, typer.Option("--since", help="Show only lines newer than this, for example 5m.", metavar="TIME")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Show only this many lines from the end of each log.", metavar="N")
    ] = None,
    container: Annotated[
        str | None, typer.Option("--container", "-c", help="Container. Default: the one that trains.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the log of the container before its restart.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time of each line.")] = False,
    prefix: Annotated[
        bool | None,
        typer.Option(
            "--prefix/--no-prefix", help="Prefix each line with its worker pod. Default: if there are several."
        ),
    ] = None,
) -> None:
    """Show the log of a job: all its worker pods, merged by time; with --follow, as the lines arrive."""
    check_choice(rank, replica, worker, everything=everything)
    if follow and previous:
        raise UsageError("--follow and --previous cannot be used together: a container that has ended prints no more.")
    from elasticjob.decisions.flag_values import seconds
    from elasticjob.decisions.log_selection import Selection

    if bool(name) == bool(selector):
        raise UsageError(
            "logs needs either the name of a job or --selector.",
            "For example: elasticjob logs bert, or elasticjob logs -l team=nlp",
        )
    client = connect()
    names = [name] if name else client.cluster.names(selector=selector)
    if not names:
        raise NotFoundError(f"No job in namespace {client.namespace} has the labels {selector}.")
    newer = seconds("--since", since) if since else None
    selection = Selection(newer, tail, container, previous, rank, replica, worker, everything)
    if print_logs(client, names, selection, follow=follow, timestamps=timestamps, prefix=prefix):
        raise typer.Exit(Exit.DELETED)


def print_logs(
    client: ElasticJobClient,
    names: Sequence[str],
    selection: Selection,
    *,
    follow: bool,
    timestamps: bool = False,
    prefix: bool | None = None,
    namespace: str | None = None,
    timeout: float | None = None,
) -> bool:
    """Returns whether a job was deleted meanwhile. `prefix` None: if there can be several worker pods. Raises
    ElasticJobError."""
    import sys

    from elasticjob.cli.output import note, say, use_color
    from elasticjob.sdk.log_reader import together
    from elasticjob.views.log_lines import LineView

    logs = [
        client.log_lines(name, selection, follow=follow, namespace=namespace, timeout=timeout, notify=note)
        for name in names
    ]
    one = names[0] if len(names) == 1 else ""
    if prefix is None:
        prefix = not one or not selection.is_of_one
    view = LineView(one, prefix=prefix, timestamps=timestamps, color=use_color(sys.stdout))
    for batch in _batches(logs[0] if one else together(logs), follow=follow):
        say(view.text(line) for line in batch)
    return any(getattr(log, "deleted", False) for log in logs)


def _batches(lines: Iterable[Line], *, follow: bool) -> Iterator[list[Line]]:
    """Followed lines one by one, so that they appear at once; others in large parts, which is faster. If reading fails,
    the lines up to then come first."""
    size = 1 if follow else BATCH
    batch: list[Line] = []
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
    except ElasticJobError:
        yield batch
        raise
    yield batch
