"""`submit`: from flags or a file to a running job. Flags that Run:ai's CLI has too are named as there."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from elasticjob.cli import files
from elasticjob.cli.options import GLOBAL, Output, OutputFormat, Timeout, connect, given, namespace
from elasticjob.errors import UsageError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient
    from elasticjob.sdk.job import Job

Json = dict[str, Any]
_WITH_MANIFEST = frozenset(
    {"file", "workers", "gpus", "env", "queue", "priority", "suspended"}
    | {"dry_run", "output", "wait", "follow", "timeout", *GLOBAL}
)
"""Parameters that are clear together with a manifest."""


class DryRun(str, enum.Enum):
    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class Submit(TyperCommand):
    """Keeps apart what is before and after `--`, and lets `--dry-run` do without a value, as kubectl does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[end + 1 :]
        for flag, value in itertools.pairwise(args[:end]):
            if flag == "--dry-run" and value in tuple(DryRun):
                raise UsageError(f"--dry-run {value}: write --dry-run={value}, as for kubectl.")
        own = ["--dry-run=client" if arg == "--dry-run" else arg for arg in args[:end]]
        return super().parse_args(ctx, own + args[end:])


def _several(*names: str, help: str, metavar: str) -> Any:  # noqa: A002 typer's word
    return typer.Option(*names, help=help + " Repeatable.", metavar=metavar)


def submit(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the new job.")] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="Command that each worker pod runs.")
    ] = None,
    image: Annotated[str, typer.Option("--image", "-i", help="Image with Python and torch.")] = "",
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", help="Script on this machine to send and run; its arguments follow --.", metavar="FILE"
        ),
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", help="Worker pods: 4, or 2:4 for an elastic job.", metavar="N|MIN:MAX")
    ] = "",
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="Worker pods to start with. Default: the maximum.", metavar="N")
    ] = None,
    min_replicas: Annotated[int | None, typer.Option("--min-replicas", help="As in --workers MIN:MAX.")] = None,
    max_replicas: Annotated[int | None, typer.Option("--max-replicas", help="As in --workers MIN:MAX.")] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", "--gpu-devices-request", "-g", help="GPUs of each worker pod.", metavar="N")
    ] = 0,
    gpu_resource: Annotated[str, typer.Option("--gpu-resource", help="Name of the GPU resource.")] = "nvidia.com/gpu",
    replica_size: Annotated[
        int | None,
        typer.Option("--replica-size", help="Worker pods of each replica of a sharded model.", metavar="N"),
    ] = None,
    procs_per_worker: Annotated[
        str, typer.Option("--procs-per-worker", help="Processes in each worker pod. Default: one per GPU.")
    ] = "",
    cpu: Annotated[str, typer.Option("--cpu", "--cpu-core-request", help="CPUs of each worker pod, such as 4.")] = "",
    cpu_limit: Annotated[
        str, typer.Option("--cpu-limit", "--cpu-core-limit", help="CPU limit of each worker pod.")
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", "--cpu-memory-request", help="Memory of each worker pod, such as 16Gi.")
    ] = "",
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", "--cpu-memory-limit", help="Memory limit of each worker pod.")
    ] = "",
    large_shm: Annotated[bool, typer.Option("--large-shm", help="Mount a large /dev/shm, for data loaders.")] = False,
    checkpoint_claim: Annotated[
        str, typer.Option("--checkpoint-claim", help="PersistentVolumeClaim for checkpoints.", metavar="CLAIM")
    ] = "",
    checkpoint_directory: Annotated[
        str, typer.Option("--checkpoint-directory", help="Where it is mounted. Default: /checkpoints.", metavar="PATH")
    ] = "",
    env: Annotated[
        list[str] | None,
        _several("--env", "--environment-variable", "-e", help="Environment variable.", metavar="NAME=VALUE"),
    ] = None,
    env_secret: Annotated[
        list[str] | None,
        _several("--env-secret", help="Expose every key of this Secret as an environment variable.", metavar="SECRET"),
    ] = None,
    claim: Annotated[
        list[str] | None,
        _several("--existing-pvc", "--volume", "-v", help="Mount a PersistentVolumeClaim.", metavar="CLAIM:/PATH[:ro]"),
    ] = None,
    host_path: Annotated[
        list[str] | None,
        _several(
            "--host-path",
            help="Mount a directory of the node (hostPath), read-only by default.",
            metavar="path=...,mount=...[,readwrite]",
        ),
    ] = None,
    nfs: Annotated[
        list[str] | None,
        _several(
            "--nfs",
            help="Mount an NFS export, read-only by default.",
            metavar="server=...,path=...,mountpath=...[,readwrite]",
        ),
    ] = None,
    port: Annotated[list[str] | None, _several("--port", help="Port that the container opens.", metavar="PORT")] = None,
    working_dir: Annotated[str, typer.Option("--working-dir", help="Working directory of the command.")] = "",
    image_pull_policy: Annotated[str, typer.Option("--image-pull-policy", help="Always, IfNotPresent or Never.")] = "",
    image_pull_secret: Annotated[
        list[str] | None, _several("--image-pull-secret", help="Secret for pulling the image.", metavar="SECRET")
    ] = None,
    service_account: Annotated[str, typer.Option("--service-account", help="ServiceAccount of the worker pods.")] = "",
    run_as_user: Annotated[bool, typer.Option("--run-as-user", help="Run with your own user and group ID.")] = False,
    node_selector: Annotated[
        list[str] | None, _several("--node-selector", help="Label that nodes must have.", metavar="KEY=VALUE")
    ] = None,
    toleration: Annotated[
        list[str] | None, _several("--toleration", help="Taint to tolerate.", metavar="KEY[=VALUE][:EFFECT]")
    ] = None,
    priority: Annotated[
        str,
        typer.Option("--priority", help="PriorityClass of the worker pods; with --queue, of the job in that queue."),
    ] = "",
    label: Annotated[list[str] | None, _several("--label", help="Label.", metavar="KEY=VALUE")] = None,
    annotation: Annotated[list[str] | None, _several("--annotation", help="Annotation.", metavar="KEY=VALUE")] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts", "--backoff-limit", help="Restarts before the job fails. Default: 10.", metavar="N"
        ),
    ] = None,
    deadline: Annotated[
        str, typer.Option("--deadline", help="Maximum run time of the job, for example 24h.", metavar="TIME")
    ] = "",
    ttl: Annotated[
        str, typer.Option("--ttl", help="Delete the job this long after it finishes, for example 24h.", metavar="TIME")
    ] = "",
    queue: Annotated[
        str, typer.Option("--queue", help="Kueue's LocalQueue, which starts the job once it has quota.")
    ] = "",
    suspended: Annotated[
        bool,
        typer.Option(
            "--suspended", help="Create the job suspended: it starts, or joins its queue, when it is resumed."
        ),
    ] = False,
    file: Annotated[
        list[Path] | None, _several("--filename", "-f", help="Manifest; - for standard input.", metavar="FILE")
    ] = None,
    _: Annotated[
        bool, typer.Option("--command", help="No effect: what follows -- is the command.", hidden=True)
    ] = False,
    dry_run: Annotated[
        DryRun,
        typer.Option(
            "--dry-run",
            help="Print the manifest without creating the job; server: after the API server has validated it.",
        ),
    ] = DryRun.NONE,
    output: OutputFormat = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has finished.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the job's log until it has finished.")] = False,
    timeout: Timeout = None,
) -> None:
    """Submit a job: elasticjob submit bert --image IMAGE --workers 2:4 -- python train.py --lr 0.1"""
    from elasticjob.decisions import flag_values as values
    from elasticjob.decisions.flag_values import seconds
    from elasticjob.decisions.job_request import GPU, JobOptions, manifest_of
    from elasticjob.decisions.manifests import with_flags

    limit = seconds("--timeout", timeout) if timeout else None
    if ctx.meta["command"] and ctx.meta["command"] == [name, *(command or ())]:  # no NAME before the --
        name, command = None, ctx.meta["command"]
    ports = [values.port(word) for word in port or ()]
    options = JobOptions(
        name=name or "",
        image=image,
        command=_sent(script, command or []) if script else command or (),
        **_sizes(workers, replicas, min_replicas, max_replicas),
        replica_size=replica_size,
        procs_per_worker=int(procs_per_worker) if values.is_number(procs_per_worker) else procs_per_worker,
        gpus=gpus,
        gpu_resource=gpu_resource or GPU,
        cpu=cpu,
        cpu_limit=cpu_limit,
        memory=memory,
        memory_limit=memory_limit,
        shared_memory="unlimited" if large_shm else "",
        env=values.pairs("--env", env or ()),
        env_from_secrets=env_secret or (),
        volumes=(
            *map(values.claim_mount, claim or ()),
            *map(values.host_mount, host_path or ()),
            *map(values.nfs_mount, nfs or ()),
        ),
        ports=tuple(number for number, _ in ports),
        checkpoint_claim=checkpoint_claim,
        checkpoint_directory=checkpoint_directory,
        working_directory=working_dir,
        image_pull_policy=image_pull_policy,
        image_pull_secrets=image_pull_secret or (),
        service_account=service_account,
        run_as=_own_ids() if run_as_user else None,
        node_selector=values.pairs("--node-selector", node_selector or ()),
        tolerations=tuple(values.toleration(word) for word in toleration or ()),
        priority_class="" if queue or file else priority,
        queue=queue,
        queue_priority=priority if queue or file else "",
        labels=values.pairs("--label", label or ()),
        annotations=values.pairs("--annotation", annotation or ()),
        max_restarts=max_restarts,
        deadline_seconds=seconds("--deadline", deadline) if deadline else None,
        ttl_seconds=seconds("--ttl", ttl) if ttl else None,
        suspend=suspended,
    )
    if file:
        _check_flags(ctx)
        manifests = with_flags(manifests_of(file, namespace()), options, resize=bool(workers))
    elif name is None:
        raise UsageError(
            "The job needs a name.", "For example: elasticjob submit bert --image IMAGE -- python train.py"
        )
    else:
        manifests = [manifest_of(options, namespace())]
        _note_missing_services(name, ports)
    if dry_run is DryRun.NONE:
        _submit(manifests, output, wait=wait, follow=follow, limit=limit)
    elif dry_run is DryRun.SERVER:
        client = connect()
        _show([dict(client.create(manifest, dry_run=True).manifest) for manifest in manifests], output)
    else:
        _show(manifests, output)


def _submit(manifests: Sequence[Json], output: OutputFormat, *, wait: bool, follow: bool, limit: float | None) -> None:
    """Creates all jobs, and then waits for one after the other."""
    client = connect()
    jobs = [_create(client, manifest, output, quiet=wait or follow) for manifest in manifests]
    for job in jobs if wait or follow else ():
        _attend(client, job, follow=follow, limit=limit)


def _note_missing_services(name: str, ports: Sequence[tuple[int, str]]) -> None:
    """Says how to make the Services that flags of other launchers ask for."""
    from elasticjob.cli.output import note
    from elasticjob.names import LABEL_INDEX, LABEL_JOB

    for number, service in ports:
        if service and service != "ClusterIP":
            note(
                f"Port {number} is open in the worker pods, but no Service of type {service} is made. To make one: "
                f"kubectl expose service {name} --name={name}-{number} --type={service} --port={number} "
                f"--selector={LABEL_JOB}={name},{LABEL_INDEX}=0"
            )


def _check_flags(ctx: typer.Context) -> None:
    """Raises UsageError for what a manifest says itself."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in _WITH_MANIFEST:
            flag = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.name.upper()
            raise UsageError(
                f"{flag} and --filename cannot be used together: set it in the manifest.",
                "Edit the manifest, or use flags without --filename.",
            )


def _check_namespace(manifest: Json, where: str | None) -> None:
    """As kubectl does. Raises UsageError."""
    own = manifest["metadata"].get("namespace")
    if where and own and own != where:
        name = manifest["metadata"]["name"]
        raise UsageError(f"The manifest of {name} says namespace {own}, but -n says {where}.", "Leave out one of them.")


def _show(manifests: list[Json], output: str | None) -> None:
    from elasticjob.cli.output import say, show_objects, to_yaml
    from elasticjob.sdk.models import check

    for manifest in manifests:
        check(manifest)
    if output is not None and output != Output.YAML:
        show_objects(list(manifests), output, single=len(manifests) == 1)
    else:
        say("---\n".join(map(to_yaml, manifests)).rstrip())


def _create(client: ElasticJobClient, manifest: Json, output: str | None, *, quiet: bool) -> Job:
    from elasticjob.cli.output import note, say, show_objects
    from elasticjob.decisions.commands import addressed
    from elasticjob.decisions.obstacles import nothing_survives

    job = client.create(manifest)
    if output is not None:
        show_objects([job.manifest], output, single=True)
    else:
        hint = "" if quiet else f"\nSee its log: elasticjob logs {job.name} --follow -n {job.namespace}"
        say(addressed(f"{job.name} is submitted to namespace {job.namespace}.{hint}", given))
    for warning in () if client.is_local else nothing_survives(job.state):
        note(f"Warning: {warning.what}\n{warning.remedy}")
    return job


def _attend(client: ElasticJobClient, job: Job, *, follow: bool, limit: float | None) -> None:
    """Waits for one job, with its log if wanted."""
    import time

    from elasticjob.cli.logs import print_logs
    from elasticjob.cli.output import note, progress
    from elasticjob.decisions.log_selection import Selection
    from elasticjob.decisions.waiting import Target
    from elasticjob.errors import JobDeletedError, NotFoundError

    end = None if limit is None else time.monotonic() + limit

    def left() -> float | None:
        return None if end is None else max(0.0, end - time.monotonic())

    try:
        if follow:
            with progress(f"Starting {job.name}") as report:
                job.wait(Target.STARTED, timeout=left(), on_wait=report)
            if not job.is_finished:
                note(f"{job.name} is training; Ctrl-C stops the log, not the job.")
            print_logs(client, [job.name], Selection(), follow=True, namespace=job.namespace, timeout=left())
        with progress(f"Waiting for {job.name}") as report:
            job.wait(timeout=left(), on_wait=report)
    except NotFoundError:
        raise JobDeletedError(f"{job.name} was deleted while it was waited for.") from None
    note(f"{job.name} has succeeded.")


def _sent(script: Path, arguments: list[str]) -> list[str]:
    """The command that runs a script of this machine."""
    from elasticjob.sdk.function import command_of

    return command_of(files.read(str(script))[0], arguments)


def manifests_of(names: Sequence[Path], where: str | None) -> list[Json]:
    """Of files. Raises ElasticJobError."""
    from elasticjob.decisions.manifests import parse_manifests

    found = [manifest for file in names for manifest in parse_manifests(*files.read(str(file)))]
    for manifest in found:
        _check_namespace(manifest, where)
    return found


def _sizes(workers: str, replicas: int | None, least: int | None, most: int | None) -> Any:
    """`--workers 2:4`, or Run:ai's `--workers 2 --min-replicas 1 --max-replicas 4`."""
    if least is None and most is None:
        return {"workers": workers or 1, "replicas": replicas}
    if ":" in workers:
        raise UsageError("--workers MIN:MAX and --min-replicas or --max-replicas cannot be used together.")
    wanted = int(workers) if workers.isdecimal() else replicas or most or least or 1
    return {"workers": (least or wanted, most or wanted), "replicas": wanted}


def _own_ids() -> tuple[int, int]:
    import os

    return os.getuid(), os.getgid()
