"""`list`, `get` and `describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticjob.cli.options import (
    AllNamespaces,
    Context,
    JobName,
    Kubeconfig,
    Namespace,
    Output,
    OutputFormat,
    complete_job,
    connect,
)
from elasticjob.errors import ForbiddenError, UsageError


def list_jobs(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Only jobs with these labels.")] = "",
    output: OutputFormat = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs."""
    from elasticjob.cli.output import layout, note, say, show_objects
    from elasticjob.views.jobs import job_table

    client = connect(namespace, context, kubeconfig)
    jobs = client.list(all_namespaces=all_namespaces, selector=selector)
    if output in (Output.JSON, Output.YAML, Output.NAME):
        show_objects([job.manifest for job in jobs], output, single=False)
    elif jobs:
        states = [job.state for job in jobs]
        now, wide = client.cluster.api.now(), output is Output.WIDE
        say(job_table(states, now, wide=wide, namespaces=all_namespaces, **layout()))
    else:
        where = "in any namespace" if all_namespaces else f"in namespace {client.namespace}"
        note(f"There are no ElasticJobs {where}." + ("" if all_namespaces else " All namespaces: elasticjob list -A"))


def get(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of jobs.", autocompletion=complete_job)
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: OutputFormat = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show jobs with their worker pods; without a name, list all jobs."""
    from elasticjob.cli.output import layout, note, say, show_objects
    from elasticjob.views.jobs import job_table, worker_table

    if not names:
        list_jobs(namespace, all_namespaces, "", output, context, kubeconfig)
        return
    if all_namespaces:
        raise UsageError("A job of a given name is in one namespace: use -n instead of -A.")
    client = connect(namespace, context, kubeconfig)
    jobs = [client.get(name.removeprefix("elasticjob/").removeprefix("ej/")) for name in names]
    if output in (Output.JSON, Output.YAML, Output.NAME):
        show_objects([job.manifest for job in jobs], output, single=len(jobs) == 1)
        return
    now, wide = client.cluster.api.now(), output is Output.WIDE
    say(job_table([job.state for job in jobs], now, wide=wide, **layout()))
    for job in jobs:
        try:
            workers = job.workers()
        except ForbiddenError as error:
            note(f"Worker pods are not shown: {error.message}")
            return
        if workers:
            say(["", *worker_table(workers, now, wide=wide, **layout())])


def describe(
    name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Show everything about a job: what is in its way, and what to do about it."""
    from elasticjob.cli.output import layout, say

    say(connect(namespace, context, kubeconfig).describe(name, **layout()))
