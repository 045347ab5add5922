"""`logs`: lines of all worker pods, coloured by pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli.options import OptionalJobName, Selector, connect
from elasticjob.errors import ElasticJobError, Exit, NotFoundError, UsageError

if TYPE_CHECKING:
    from elasticjob.cluster.pod_logs import Selection
    from elasticjob.decisions.log_lines import Line
    from elasticjob.sdk.client import ElasticJobClient


BATCH = 1000
"""Lines that are printed at once."""


def logs(
    name: OptionalJobName = None,
    selector: Selector = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the job until it has finished.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only the worker pod of this rank.", metavar="N")] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Only this worker pod: its index, or its name.", metavar="N|NAME")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All worker pods, however many there are.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Only newer lines, such as 5m.", metavar="TIME")] = None,
    tail: Annotated[int | None, typer.Option("--tail", help="Only the last lines of each pod.", metavar="N")] = None,
    container: Annotated[
        str | None, typer.Option("--container", "-c", help="Container. Default: the one that trains.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the container before it was restarted in its pod.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time of each line.")] = False,
    prefix: Annotated[
        bool | None, typer.Option("--prefix/--no-prefix", help="Show the worker pod of each line. Default: of several.")
    ] = None,
) -> None:
    """Show the log of a job: all its worker pods, merged by time; with --follow, as the lines arrive."""
    if (rank is not None) + (worker is not None) + everything > 1:
        raise UsageError("--rank, --worker and --all exclude each other.")
    if follow and previous:
        raise UsageError("--follow and --previous exclude each other: a container that has ended prints no more.")
    from elasticjob.cluster.pod_logs import Selection
    from elasticjob.decisions.flag_values import seconds

    if bool(name) == bool(selector):
        raise UsageError("Whose log?", "Name a job, or choose jobs by their labels: elasticjob logs -l team=nlp")
    client = connect()
    names = [name] if name else client.cluster.names(selector=selector)
    if not names:
        raise NotFoundError(f"No job in namespace {client.namespace} has the labels {selector}.")
    deleted = print_logs(
        client,
        names,
        follow=follow,
        rank=rank,
        worker=worker,
        everything=everything,
        selection=Selection(seconds("--since", since) if since else None, tail, container, previous),
        timestamps=timestamps,
        prefix=rank is None and worker is None if prefix is None else prefix,
    )
    if deleted:
        raise typer.Exit(Exit.DELETED)


def print_logs(
    client: ElasticJobClient,
    names: Sequence[str],
    *,
    follow: bool,
    rank: int | None = None,
    worker: str | None = None,
    everything: bool = False,
    selection: Selection | None = None,
    timestamps: bool = False,
    prefix: bool = True,
    namespace: str | None = None,
    timeout: float | None = None,
) -> bool:
    """Returns whether a job was deleted meanwhile. Raises ElasticJobError."""
    import sys

    from elasticjob.cli.output import note, say, use_color
    from elasticjob.sdk.log_reader import together
    from elasticjob.views.log_lines import LineView

    logs = [
        client.log_lines(
            name,
            follow=follow,
            rank=rank,
            worker=worker,
            everything=everything,
            selection=selection,
            namespace=namespace,
            timeout=timeout,
            notify=note,
        )
        for name in names
    ]
    one = names[0] if len(names) == 1 else ""
    view = LineView(one, prefix=prefix or not one, timestamps=timestamps, color=use_color(sys.stdout))
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
