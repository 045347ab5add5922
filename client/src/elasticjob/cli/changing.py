"""`scale`, `suspend`, `resume`, `delete` and `wait`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli.options import JobName, JobNames, Timeout, connect, given, namespace
from elasticjob.decisions.flag_values import seconds
from elasticjob.decisions.waiting import Target, target_of
from elasticjob.errors import ElasticJobError, Exit, UsageError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient

Wait = Annotated[bool, typer.Option("--wait", help="Wait for it to take effect.")]


def scale(
    name: JobName,
    workers: Annotated[int | None, typer.Argument(metavar="WORKERS", help="Number of worker pods.")] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", help="As WORKERS.", metavar="N")] = None,
) -> None:
    """Set the number of worker pods of a job, while it trains."""
    from elasticjob.cli.output import say

    wanted = workers if replicas is None else replicas
    if wanted is None or None not in (workers, replicas):
        raise UsageError("scale needs the number of worker pods.", f"For example: elasticjob scale {name} 4")
    client = connect()
    before = client.get(name).state.replicas
    client.scale(name, wanted)
    say(f"{name}: {before} -> {wanted} worker pods" if before != wanted else f"{name} has {wanted} worker pods already")


def suspend(
    name: JobName,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Stop a job's worker pods and keep the job; `resume` continues from its last checkpoint."""
    from elasticjob.cli.output import progress, say

    client = connect()
    client.suspend(name)
    if wait:
        with progress(f"Suspending {name}") as report:
            client.wait(name, Target.SUSPENDED, timeout=_limit(timeout), on_wait=report)
    say(f"{name} {'is' if wait else 'is being'} suspended. Resume it: elasticjob resume {name}")


def resume(
    name: JobName,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Continue a suspended job."""
    from elasticjob.cli.output import progress, say
    from elasticjob.decisions.commands import addressed
    from elasticjob.decisions.waiting import said_of_resume

    client = connect()
    resumed = client.resume(name).state
    if wait:
        with progress(f"Resuming {name}") as report:
            _wait_until_running(client, name, _limit(timeout), report)
    say(addressed(said_of_resume(resumed, runs=wait), given))


def delete(
    names: JobNames = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all jobs of the namespace.")] = False,
    file: Annotated[
        list[Path] | None,
        typer.Option("--filename", "-f", help="Delete the jobs of a manifest. Repeatable.", metavar="FILE"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the worker pods are gone.")] = True,
    timeout: Timeout = None,
) -> None:
    """Delete jobs with their worker pods. Checkpoints are kept."""
    from elasticjob.cli.output import Errors, progress, say
    from elasticjob.cli.submit import manifests_of

    if bool(names) + everything + bool(file) != 1:
        raise UsageError("delete needs the names of jobs, --all or --filename.", "For example: elasticjob delete bert")
    client = connect()
    jobs: list[tuple[str, str | None]]
    jobs = [(name, namespace()) for name in names or (client.cluster.names() if everything else ())]
    for manifest in manifests_of(file or [], namespace()):
        jobs.append((manifest["metadata"]["name"], manifest["metadata"].get("namespace") or namespace()))
    limit, errors = _limit(timeout), Errors()
    deleted: list[tuple[str, str | None, str]] = []
    for name, where in jobs:
        with errors:
            deleted.append((name, where, client.start_deletion(name, namespace=where)))
            if not wait:
                say(f"{name} is being deleted.")
    for name, where, uid in deleted if wait else ():
        with errors, progress(f"Deleting {name}") as report:
            client.wait_for_deletion(name, uid, timeout=limit, on_wait=report, namespace=where)
            say(f"{name} is deleted.")
    errors.exit()


def wait(
    name: JobName,
    until: Annotated[
        str,
        typer.Option(
            "--for", help=f"{', '.join(Target)}, or condition=TYPE, or delete.", metavar="STATE", show_default=True
        ),
    ] = Target.SUCCEEDED.value,
    timeout: Timeout = None,
) -> None:
    """Wait until a job has succeeded, or is in another state."""
    from elasticjob.cli.output import progress, say

    target = target_of(until)
    client = connect()
    with progress(f"Waiting for {name}") as report:
        job = client.wait(name, target, timeout=_limit(timeout), on_wait=report)
    say(f"{name} is {target}." if target is not Target.FINISHED else f"{name} has {job.summary.lower()}.")


def _wait_until_running(
    client: ElasticJobClient, name: str, limit: float | None, report: Callable[[str], None]
) -> None:
    """Or until it has succeeded, which a short job may have by now."""
    try:
        client.wait(name, Target.RUNNING, timeout=limit, on_wait=report)
    except ElasticJobError as error:
        if error.code is not Exit.ERROR or not client.get(name).state.is_true("Succeeded"):
            raise


def _limit(timeout: str | None) -> float | None:
    return None if timeout is None else seconds("--timeout", timeout)
