"""`submit`: from flags or a file to a running job. Flags that Run:ai's CLI has too are named as there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticjob.cli.options import Context, Kubeconfig, Namespace, Output, OutputFormat, Timeout, connect
from elasticjob.errors import UsageError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient

Json = dict[str, Any]


def _several(*names: str, help: str, metavar: str) -> Any:  # noqa: A002 typer's word
    return typer.Option(*names, help=help + " Repeatable.", metavar=metavar)


def submit(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the new job.")] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="What each worker pod runs.")
    ] = None,
    image: Annotated[str, typer.Option("--image", "-i", help="Image with Python and torch.")] = "",
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", help="Send this script and run it; what follows -- are its arguments.", metavar="FILE"
        ),
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", help="Worker pods: 4, or 2:4 for an elastic job.", metavar="N|MIN:MAX")
    ] = "",
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="Worker pods to start with. Default: the most.", metavar="N")
    ] = None,
    min_replicas: Annotated[int | None, typer.Option("--min-replicas", help="As in --workers MIN:MAX.")] = None,
    max_replicas: Annotated[int | None, typer.Option("--max-replicas", help="As in --workers MIN:MAX.")] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", "--gpu-devices-request", "-g", help="GPUs of each worker pod.", metavar="N")
    ] = 0,
    gpu_resource: Annotated[str, typer.Option("--gpu-resource", help="Name of the GPU resource.")] = "nvidia.com/gpu",
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
    large_shm: Annotated[bool, typer.Option("--large-shm", help="A large /dev/shm, for data loaders.")] = False,
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
        list[str] | None, _several("--existing-pvc", "--volume", "-v", help="Volume.", metavar="CLAIM:/PATH[:ro]")
    ] = None,
    host_path: Annotated[
        list[str] | None,
        _several("--host-path", help="Directory of each node, read-only.", metavar="path=...,mount=...[,readwrite]"),
    ] = None,
    nfs: Annotated[
        list[str] | None,
        _several("--nfs", help="NFS export, read-only.", metavar="server=...,path=...,mountpath=...[,readwrite]"),
    ] = None,
    port: Annotated[list[str] | None, _several("--port", help="Port of the container.", metavar="PORT")] = None,
    working_dir: Annotated[str, typer.Option("--working-dir", help="Working directory of the command.")] = "",
    image_pull_policy: Annotated[str, typer.Option("--image-pull-policy", help="Always, IfNotPresent or Never.")] = "",
    image_pull_secret: Annotated[
        list[str] | None, _several("--image-pull-secret", help="Secret of the registry.", metavar="SECRET")
    ] = None,
    service_account: Annotated[str, typer.Option("--service-account", help="ServiceAccount of the worker pods.")] = "",
    run_as_user: Annotated[bool, typer.Option("--run-as-user", help="Run with your own user and group ID.")] = False,
    node_selector: Annotated[
        list[str] | None, _several("--node-selector", help="Label of the nodes.", metavar="KEY=VALUE")
    ] = None,
    toleration: Annotated[
        list[str] | None, _several("--toleration", help="Taint to tolerate.", metavar="KEY[=VALUE][:EFFECT]")
    ] = None,
    priority: Annotated[str, typer.Option("--priority", help="PriorityClass of the worker pods.")] = "",
    label: Annotated[list[str] | None, _several("--label", help="Label.", metavar="KEY=VALUE")] = None,
    annotation: Annotated[list[str] | None, _several("--annotation", help="Annotation.", metavar="KEY=VALUE")] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts", "--backoff-limit", help="Failures until the job fails. Default: 10.", metavar="N"
        ),
    ] = None,
    deadline: Annotated[str, typer.Option("--deadline", help="Longest run time, such as 24h.", metavar="TIME")] = "",
    ttl: Annotated[
        str, typer.Option("--ttl", help="Delete the job this long after it finishes, for example 24h.", metavar="TIME")
    ] = "",
    suspended: Annotated[bool, typer.Option("--suspended", help="Create it suspended, as a queue expects.")] = False,
    file: Annotated[
        Path | None, typer.Option("--filename", "-f", help="Manifest instead of flags; - for standard input.")
    ] = None,
    _: Annotated[
        bool, typer.Option("--command", help="No effect: what follows -- is the command.", hidden=True)
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the manifest.")] = False,
    output: OutputFormat = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until the job has finished.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show its log until it has finished.")] = False,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Submit a job: elasticjob submit bert --image IMAGE --workers 2:4 -- python train.py --lr 0.1"""
    from elasticjob.cli.output import note
    from elasticjob.decisions import flag_values as values
    from elasticjob.decisions.job_request import JobRequest, WorkerRange, manifest_of
    from elasticjob.names import LABEL_INDEX, LABEL_JOB

    if file is not None:
        if name or image or command or script:
            raise UsageError("--filename takes everything from the manifest: leave out NAME, --image and the command.")
        manifests = _read(file)
        for manifest in manifests:
            _check_namespace(manifest, namespace)
    else:
        if name is None:
            raise UsageError(
                "The job needs a name.", "For example: elasticjob submit bert --image IMAGE -- python train.py"
            )
        ports = [values.port(each) for each in port or ()]
        request = JobRequest(
            name=name,
            image=image,
            command=_sent(script, command or []) if script else command or (),
            workers=_sizes(workers, replicas, min_replicas, max_replicas, WorkerRange),
            procs_per_worker=int(procs_per_worker) if procs_per_worker.isdigit() else procs_per_worker,
            gpus=gpus,
            gpu_resource=gpu_resource,
            requests=_resources(cpu, memory),
            limits=_resources(cpu_limit, memory_limit),
            shared_memory="unlimited" if large_shm else "",
            env=values.pairs("--env", env or ()),
            env_from_secrets=env_secret or (),
            mounts=[
                *map(values.claim_mount, claim or ()),
                *map(values.host_mount, host_path or ()),
                *map(values.nfs_mount, nfs or ()),
            ],
            ports=[number for number, _ in ports],
            checkpoint_claim=checkpoint_claim,
            checkpoint_directory=checkpoint_directory,
            working_directory=working_dir,
            image_pull_policy=image_pull_policy,
            image_pull_secrets=image_pull_secret or (),
            service_account=service_account,
            run_as=_own_ids() if run_as_user else None,
            node_selector=values.pairs("--node-selector", node_selector or ()),
            tolerations=[values.toleration(each) for each in toleration or ()],
            priority_class=priority,
            labels=values.pairs("--label", label or ()),
            annotations=values.pairs("--annotation", annotation or ()),
            max_restarts=max_restarts,
            deadline_seconds=values.seconds("--deadline", deadline) if deadline else None,
            ttl_seconds=values.seconds("--ttl", ttl) if ttl else None,
            suspend=suspended,
        )
        manifests = [manifest_of(request, namespace)]
        for number, service in ports:
            if service and service != "ClusterIP":
                note(
                    f"Port {number} is open in the worker pods, but no Service of type {service} is made. To make one: "
                    f"kubectl expose service {name} --name={name}-{number} --type={service} --port={number} "
                    f"--selector={LABEL_JOB}={name},{LABEL_INDEX}=0"
                )
    if dry_run:
        _show(manifests, output)
        return
    client = connect(namespace, context, kubeconfig)
    for manifest in manifests:
        _create(client, manifest, output, wait=wait, follow=follow, timeout=timeout)


def _check_namespace(manifest: Json, namespace: str | None) -> None:
    """As kubectl does. Raises UsageError."""
    own = manifest["metadata"].get("namespace")
    if namespace and own and own != namespace:
        name = manifest["metadata"]["name"]
        raise UsageError(
            f"The manifest of {name} says namespace {own}, but -n says {namespace}.", "Leave out one of them."
        )


def _show(manifests: list[Json], output: Output | None) -> None:
    from elasticjob.cli.output import say, show_objects, to_yaml
    from elasticjob.sdk.models import check

    for manifest in manifests:
        check(manifest)
    if output in (Output.JSON, Output.NAME):
        show_objects(list(manifests), output, single=len(manifests) == 1)
    else:
        say("---\n".join(map(to_yaml, manifests)).rstrip())


def _create(
    client: ElasticJobClient,
    manifest: Json,
    output: Output | None,
    *,
    wait: bool,
    follow: bool,
    timeout: str | None,
) -> None:
    from elasticjob.cli.logs import print_logs
    from elasticjob.cli.output import note, progress, say, show_objects
    from elasticjob.decisions.flag_values import seconds
    from elasticjob.decisions.obstacles import nothing_survives
    from elasticjob.decisions.waiting import Target

    job = client.create(manifest)
    if output is not None:
        show_objects([job.manifest], output, single=True)
    else:
        hint = "" if wait or follow else f"\nSee its log: elasticjob logs {job.name} --follow -n {job.namespace}"
        say(f"{job.name} is submitted to namespace {job.namespace}.{hint}")
    for warning in nothing_survives(job.state):
        note(f"Warning: {warning.what}\n{warning.remedy}")
    limit = seconds("--timeout", timeout) if timeout else None
    here = connected(client, job.namespace)
    if follow:
        with progress(f"Starting {job.name}") as report:
            started = here.wait(job.name, Target.STARTED, timeout=limit, on_wait=report)
        if not started.is_finished:
            note(f"{job.name} is training; Ctrl-C stops the log, not the job.")
        print_logs(here, job.name, follow=True)
    if wait or follow:
        with progress(f"Waiting for {job.name}") as report:
            finished = here.wait(job.name, Target.SUCCEEDED, timeout=limit, on_wait=report)
        note(f"{finished.name} has succeeded.")


def connected(client: ElasticJobClient, namespace: str) -> ElasticJobClient:
    """The same client, with another default namespace."""
    client.cluster.namespace = namespace
    return client


def _sent(script: Path, arguments: list[str]) -> list[str]:
    """The command that runs a script of this machine."""
    from elasticjob.sdk.function import command_of

    return command_of(_text(script), arguments)


def _read(file: Path) -> list[Json]:
    from elasticjob.decisions.manifests import parse_manifests

    return parse_manifests(_text(file), "standard input" if str(file) == "-" else str(file))


def _text(file: Path) -> str:
    """Raises UsageError."""
    import sys

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"Cannot read {file}: {reason}.") from error


def _sizes(workers: str, replicas: int | None, least: int | None, most: int | None, kind: Any) -> Any:
    """`--workers 2:4`, or Run:ai's `--workers 2 --min-replicas 1 --max-replicas 4`."""
    if least is None and most is None:
        return kind.of(workers or 1, replicas)
    if ":" in workers:
        raise UsageError("--workers MIN:MAX and --min-replicas or --max-replicas exclude each other.")
    wanted = int(workers) if workers.isdigit() else replicas or most or least or 1
    return kind.of((least or wanted, most or wanted), wanted)


def _resources(cpu: str, memory: str) -> dict[str, str]:
    return {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}


def _own_ids() -> tuple[int, int]:
    import os

    return os.getuid(), os.getgid()
