"""`scale`, `suspend`, `resume`, `delete` and `wait`."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticjob.cli.options import Context, JobName, Kubeconfig, Namespace, Timeout, complete_job, connect
from elasticjob.decisions.flag_values import seconds
from elasticjob.decisions.waiting import Target

Wait = Annotated[bool, typer.Option("--wait", help="Wait for it to take effect.")]


def scale(
    name: JobName,
    workers: Annotated[int, typer.Argument(metavar="WORKERS", help="Number of worker pods.")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Set the number of worker pods of a job, while it trains."""
    from elasticjob.cli.output import say

    client = connect(namespace, context, kubeconfig)
    before = client.get(name).state.replicas
    client.scale(name, workers)
    say(
        f"{name}: {before} -> {workers} worker pods"
        if before != workers
        else f"{name} has {workers} worker pods already"
    )


def suspend(
    name: JobName,
    wait: Wait = False,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Stop a job's worker pods and keep the job; `resume` continues from its last checkpoint."""
    from elasticjob.cli.output import progress, say

    client = connect(namespace, context, kubeconfig)
    client.suspend(name)
    if wait:
        with progress(f"Suspending {name}") as report:
            client.wait(name, Target.SUSPENDED, timeout=_limit(timeout), on_wait=report)
    say(f"{name} {'is' if wait else 'is being'} suspended. Continue: elasticjob resume {name}")


def resume(
    name: JobName,
    wait: Wait = False,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Continue a suspended job."""
    from elasticjob.cli.output import progress, say

    client = connect(namespace, context, kubeconfig)
    client.resume(name)
    if wait:
        with progress(f"Resuming {name}") as report:
            client.wait(name, Target.RUNNING, timeout=_limit(timeout), on_wait=report)
    say(f"{name} is {'running' if wait else 'being resumed'}.")


def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of jobs.", autocompletion=complete_job)],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the worker pods are gone.")] = True,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete jobs with their worker pods. Checkpoints are kept."""
    from elasticjob.cli.output import progress, say

    client = connect(namespace, context, kubeconfig)
    for name in names:
        with progress(f"Deleting {name}") as report:
            client.delete(name, wait=wait, timeout=_limit(timeout), on_wait=report)
        say(f"{name} is {'deleted' if wait else 'being deleted'}.")


def wait(
    name: JobName,
    until: Annotated[
        Target, typer.Option("--for", help="State to wait for.", case_sensitive=False, show_default=True)
    ] = Target.SUCCEEDED,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until a job has succeeded, or is in another state."""
    from elasticjob.cli.output import progress, say

    client = connect(namespace, context, kubeconfig)
    with progress(f"Waiting for {name}") as report:
        job = client.wait(name, until, timeout=_limit(timeout), on_wait=report)
    say(f"{name} is {until}." if until is not Target.FINISHED else f"{name} has {job.summary.lower()}.")


def _limit(timeout: str | None) -> float | None:
    return None if timeout is None else seconds("--timeout", timeout)
