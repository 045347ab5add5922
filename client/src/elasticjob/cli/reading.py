"""`list`, `get` and `describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticjob.cli.options import (
    AllNamespaces,
    Context,
    JobName,
    JobNames,
    Kubeconfig,
    Namespace,
    NoHeaders,
    Output,
    OutputFormat,
    connect,
)
from elasticjob.errors import ForbiddenError, UsageError

Selector = Annotated[str, typer.Option("--selector", "-l", help="Only jobs with these labels.")]


def list_jobs(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    output: OutputFormat = None,
    no_headers: NoHeaders = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs."""
    from elasticjob.cli.output import layout, note, say, show_objects
    from elasticjob.views.jobs import job_table

    client = connect(namespace, context, kubeconfig)
    jobs = client.list(all_namespaces=all_namespaces, selector=selector)
    if output is not None and output != Output.WIDE:
        show_objects([job.manifest for job in jobs], output, single=False)
    elif jobs:
        states = [job.state for job in jobs]
        now, wide = client.cluster.api.now(), output == Output.WIDE
        say(job_table(states, now, wide=wide, namespaces=all_namespaces, **layout())[no_headers:])
    else:
        where = "in any namespace" if all_namespaces else f"in namespace {client.namespace}"
        note(f"There are no ElasticJobs {where}." + ("" if all_namespaces else " All namespaces: elasticjob list -A"))


def get(
    names: JobNames = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    output: OutputFormat = None,
    no_headers: NoHeaders = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show jobs with their worker pods; without a name, list all jobs."""
    from elasticjob.cli.output import Errors, layout, note, say, show_objects
    from elasticjob.views.jobs import job_table, worker_table

    if not names:
        list_jobs(namespace, all_namespaces, selector, output, no_headers, context, kubeconfig)
        return
    if all_namespaces or selector:
        raise UsageError("Names, and -A or -l, exclude each other.", "Choose the namespace of a job with -n.")
    client = connect(namespace, context, kubeconfig)
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
        say(job_table([job.state for job in jobs], now, wide=wide, **layout())[no_headers:])
    for job in jobs:
        try:
            workers = job.workers()
        except ForbiddenError as error:
            note(f"Worker pods are not shown: {error.message}")
            break
        if workers:
            say(["", *worker_table(workers, now, wide=wide, **layout())[no_headers:]])
    errors.exit()


def describe(
    name: JobName, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Show everything about a job: what is in its way, and what to do about it."""
    from elasticjob.cli.output import layout, say

    say(connect(namespace, context, kubeconfig).describe(name, **layout()))
