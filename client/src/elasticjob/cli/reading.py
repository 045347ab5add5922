"""`list`, `get` and `describe`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticjob.cli.options import AllNamespaces, JobName, JobNames, NoHeaders, Output, OutputFormat, Selector, connect
from elasticjob.errors import ForbiddenError, UsageError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient


def list_jobs(
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    output: OutputFormat = None,
    no_headers: NoHeaders = False,
) -> None:
    """List jobs."""
    from elasticjob.cli.output import layout, note, say, show_objects
    from elasticjob.state import job_state
    from elasticjob.views.jobs import job_tables

    client, wide = connect(), output == Output.WIDE
    where: dict[str, Any] = {"all_namespaces": all_namespaces, "selector": selector}
    if output == Output.NAME:
        for page in client.listed(**where):
            show_objects([*page], output, single=False)
        return
    if output is not None and not wide:
        show_objects([job.manifest for job in client.list(**where)], output, single=False)
        return
    if wide:  # the API server does not print all of that
        pages = iter([[job.state for job in client.list(**where)]])
    else:
        pages = iter([job_state(job) for job in page] for page in client.listed(**where))
    with_places = ((jobs, client.places(jobs)) for jobs in pages if jobs)
    first = next(with_places, None)
    if first is None:
        everywhere = "in any namespace" if all_namespaces else f"in namespace {client.namespace}"
        note(f"There are no ElasticJobs {everywhere}.{'' if all_namespaces else ' All namespaces: elasticjob list -A'}")
        return
    style = {"wide": wide, "rates": wide, "namespaces": all_namespaces, **layout()}
    lines = job_tables(itertools.chain([first], with_places), client.cluster.api.now(), **style)
    say(next(lines)[no_headers:])
    for more in lines:
        say(more)


def get(
    names: JobNames = None,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show jobs again whenever they change.")] = False,
    output: OutputFormat = None,
    no_headers: NoHeaders = False,
) -> None:
    """Show jobs with their worker pods; without a name, list all jobs."""
    from elasticjob.cli.output import Errors, layout, note, say, show_objects
    from elasticjob.views.jobs import job_table, worker_table

    if names and (all_namespaces or selector):
        raise UsageError("Names, and -A or -l, cannot be used together.", "Choose the namespace of a job with -n.")
    if watch:
        _watch(connect(), names or (), all_namespaces, selector, output, no_headers)
        return
    if not names:
        list_jobs(all_namespaces, selector, output, no_headers)
        return
    client = connect()
    jobs, errors = [], Errors()
    for name in names:
        with errors:
            jobs.append(client.get(name))
    if output is not None and output != Output.WIDE:
        if jobs:
            show_objects([job.manifest for job in jobs], output, single=len(names) == 1)
        errors.exit()
        return
    now, wide = client.cluster.api.now(), output == Output.WIDE
    if jobs:
        states = [job.state for job in jobs]
        say(job_table(states, now, wide=wide, places=client.places(states), **layout())[no_headers:])
    try:
        for workers in filter(None, (job.workers() for job in jobs)):
            say(["", *worker_table(workers, now, wide=wide, **layout())[no_headers:]])
    except ForbiddenError as error:
        note(f"Worker pods are not shown: {error.message}")
    errors.exit()


def _watch(
    client: ElasticJobClient,
    names: Sequence[str],
    all_namespaces: bool,
    selector: str,
    output: str | None,
    no_headers: bool,
) -> None:
    """Until Ctrl-C, as kubectl does."""
    from elasticjob.cli.output import layout, say, show_objects
    from elasticjob.sdk.watch import changed_jobs
    from elasticjob.state import job_state
    from elasticjob.views.jobs import job_table

    for name in names:
        client.get(name)  # raises NotFoundError
    wide, titles, shown = output == Output.WIDE, not no_headers, False
    for jobs in changed_jobs(client.cluster, "" if all_namespaces else client.namespace, names, selector):
        if output is not None and not wide:
            for job in jobs:
                if shown and output == Output.YAML:
                    say("---")
                show_objects([job], output, single=True)
                shown = True
            continue
        states, now = [job_state(job) for job in jobs], client.cluster.api.now()
        lines = job_table(states, now, wide=wide, namespaces=all_namespaces, **layout())
        say(lines[not titles :])
        titles = False


def describe(name: JobName) -> None:
    """Show everything about a job, its problems first, and how to fix them."""
    from elasticjob.cli.output import layout, say

    say(connect().describe(name, **layout()))
