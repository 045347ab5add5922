"""From what a user asks for to the manifest of an ElasticJob. Pure."""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from elasticjob.decisions.flag_values import Mount, claim_mount
from elasticjob.errors import UsageError
from elasticjob.names import API_VERSION, KIND, QUEUE, QUEUE_PRIORITY

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
CONTAINER = "trainer"
MAX_NAME = 47
"""Names of worker pods are longer than their job's, and have to be names of hosts."""

T = TypeVar("T")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class WorkerRange:
    """How many worker pods: wanted, and between which sizes training runs."""

    replicas: int
    least: int
    most: int

    @classmethod
    def of(cls, value: int | Sequence[int] | str, replicas: int | None = None) -> WorkerRange:
        """`value`: a number, (least, most), or one of them as text: 4, 2:4. Starts with as many as possible, unless
        `replicas` says otherwise. Raises UsageError.

        >>> WorkerRange.of("2:4")
        WorkerRange(replicas=4, least=2, most=4)
        """
        least, most = _bounds(value)
        if least < 1:
            raise UsageError(f"--workers {_shown(value)}: a job needs at least one worker pod.")
        if least > most:
            raise UsageError(
                f"--workers {_shown(value)}: {least} is above {most}.", f"Did you mean --workers {most}:{least}?"
            )
        wanted = most if replicas is None else replicas
        if not least <= wanted <= most:
            raise UsageError(f"--replicas {wanted} is not between {least} and {most} (--workers {_shown(value)}).")
        return cls(wanted, least, most)


def _shown(value: int | Sequence[int] | str) -> str:
    return value if isinstance(value, str | int) else ":".join(map(str, value))  # type: ignore[return-value]


def _bounds(value: int | Sequence[int] | str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if not isinstance(value, str):
        if len(value) != 2:
            raise UsageError(f"workers={tuple(value)}: write a number, or (least, most).")
        return int(value[0]), int(value[1])
    found = re.fullmatch(r"\s*(\d+)\s*(?:(?::|-|\.\.|,)\s*(\d+)\s*)?", value)
    if found is None:
        raise UsageError(f"--workers {value!r} is not a number of worker pods.", "Write 4, or 2:4 for two to four.")
    return int(found[1]), int(found[2] or found[1])


@dataclass(frozen=True)
class JobOptions:
    """What a job can be submitted with, from Python as from the command line."""

    name: str
    image: str
    command: str | Sequence[str] = ()
    """Text is split as a shell does."""
    workers: int | Sequence[int] | str = 1
    """Number of worker pods, or (least, most) for an elastic job, which starts with as many as possible."""
    replicas: int | None = None
    """Number of worker pods to start an elastic job with."""
    replica_size: int | None = None
    """Worker pods of each replica of a sharded model. None: all worker processes are one world."""
    procs_per_worker: str | int = ""
    """Worker processes in each worker pod: a number, cpu, gpu or auto. Default: one per GPU."""
    gpus: int = 0
    """GPUs of each worker pod."""
    gpu_resource: str = GPU
    cpu: str | int = ""
    """CPU request of each worker pod."""
    cpu_limit: str | int = ""
    memory: str = ""
    """Memory request of each worker pod, such as 16Gi."""
    memory_limit: str = ""
    shared_memory: str = ""
    """Size of /dev/shm, such as 8Gi; "unlimited" for half of the node's memory."""
    env: Mapping[str, object] = field(default_factory=dict)
    env_from_secrets: Sequence[str] = ()
    """Names of Secrets: every key becomes an environment variable."""
    volumes: Sequence[str | Mount] = ()
    """CLAIM:/path[:ro]."""
    ports: Sequence[int] = ()
    checkpoint_claim: str = ""
    """PersistentVolumeClaim for checkpoints; all nodes must be able to mount it."""
    checkpoint_directory: str = ""
    """Where it is mounted. Default: /checkpoints."""
    working_directory: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: Sequence[str] = ()
    service_account: str = ""
    run_as: tuple[int, int] | None = None
    """User and group ID."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    priority_class: str = ""
    queue: str = ""
    """Kueue's LocalQueue in which the job waits."""
    queue_priority: str = ""
    """Its WorkloadPriorityClass there."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int | None = None
    deadline_seconds: int | None = None
    ttl_seconds: int | None = None
    suspend: bool = False
    """Whether to create the job suspended."""


def options_of(name: str, image: str, command: str | Sequence[str], options: Mapping[str, Any]) -> JobOptions:
    """Raises UsageError for an option that does not exist."""
    known = {field.name for field in fields(JobOptions)}
    for unknown in options.keys() - known:
        similar = difflib.get_close_matches(unknown, known, n=1)
        remedy = f"Did you mean {similar[0]}?" if similar else "All options: help(elasticjob.JobOptions)"
        raise UsageError(f"submit has no option {unknown}.", remedy)
    return JobOptions(name, image, command, **options)


def shows_options(method: Callable[..., T]) -> Callable[..., T]:
    """Replaces `**options` by the fields of JobOptions in a function's signature, which help and notebooks show."""
    shown = inspect.signature(method)
    own = [parameter for parameter in shown.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    names = {known.name for known in own}
    added = [
        parameter for parameter in inspect.signature(JobOptions).parameters.values() if parameter.name not in names
    ]
    added = [known.replace(kind=known.KEYWORD_ONLY) for known in added if known.name != "command"]
    method.__signature__ = shown.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    return method


def manifest_of(request: JobOptions, namespace: str | None = None) -> Json:
    """The ElasticJob; fields that the user did not ask for keep the API's defaults. Raises UsageError."""
    check_name(request.name)
    if not request.image:
        raise UsageError("The job needs an image: --image my-company/train:1.4")
    if not _command(request):
        raise UsageError("The job needs a command: write it after --, such as: -- python train.py")
    _check_labels(request.labels)
    metadata: Json = {"name": request.name}
    if namespace:
        metadata["namespace"] = namespace
    labels = dict(request.labels) | _present(**{QUEUE: request.queue, QUEUE_PRIORITY: request.queue_priority})
    metadata |= _present(labels=labels, annotations=dict(request.annotations))
    spec: Json = {"workers": _workers(request)}
    spec |= _present(
        checkpoint=_checkpoint(request),
        failurePolicy=_present(maxRestarts=request.max_restarts),
        scheduling=_present(priorityClassName=request.priority_class),
        suspend=request.suspend or None,
        lifecycle=_present(
            activeDeadlineSeconds=request.deadline_seconds,
            ttlSecondsAfterFinished=request.ttl_seconds,
        ),
    )
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def check_name(name: str) -> None:
    """Raises UsageError that suggests a valid name."""
    if _NAME.fullmatch(name) and len(name) <= MAX_NAME:
        return
    better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    better = (f"job-{better}" if better[:1].isdigit() else better)[:MAX_NAME].strip("-")
    raise UsageError(
        f"{name!r} cannot be the name of a job: use up to {MAX_NAME} lower-case letters, digits and hyphens, and begin "
        "with a letter.",
        f"For example: {better}" if better else "",
    )


def _check_labels(labels: Mapping[str, str]) -> None:
    """Labels of the request are those of the worker pods too, and Kueue would queue each pod on its own. Raises
    UsageError."""
    for label, flag in ((QUEUE, "--queue"), (QUEUE_PRIORITY, "--priority")):
        if label in labels:
            raise UsageError(
                f"The label {label} belongs on the job only, and --label sets it on the worker pods too: Kueue would "
                "queue each of them on its own.",
                f"Use {flag} {labels[label]}",
            )


def _present(**values: Any) -> Json:
    """The values that are set."""
    return {key: value for key, value in values.items() if value not in (None, "", {}, [], ())}


def sizes_of(options: JobOptions) -> Json:
    """`replicas` and its bounds. Raises UsageError."""
    workers, replicas = options.workers, options.replicas
    sizes = WorkerRange.of(replicas if workers == 1 and replicas is not None else workers, replicas)
    bounds = {"minReplicas": sizes.least, "maxReplicas": sizes.most} if sizes.least != sizes.most else {}
    return {"replicas": sizes.replicas, **bounds}


def _workers(request: JobOptions) -> Json:
    return {
        **sizes_of(request),
        **_present(replicaSize=request.replica_size, procsPerWorker=request.procs_per_worker),
        "template": {**_present(metadata=_present(labels=dict(request.labels))), "spec": _pod(request)},
    }


def _pod(request: JobOptions) -> Json:
    volumes, mounts = _volumes(request)
    run_as = request.run_as
    return {
        "containers": [_container(request, mounts)],
        **_present(
            volumes=volumes,
            imagePullSecrets=[{"name": image_pull_secret} for image_pull_secret in request.image_pull_secrets],
            serviceAccountName=request.service_account,
            securityContext={"runAsUser": run_as[0], "runAsGroup": run_as[1]} if run_as else None,
            nodeSelector=dict(request.node_selector),
            tolerations=[dict(toleration) for toleration in request.tolerations],
        ),
    }


def _container(request: JobOptions, mounts: list[Json]) -> Json:
    limits = _present(cpu=str(request.cpu_limit), memory=request.memory_limit)
    if request.gpus:
        limits[request.gpu_resource] = str(request.gpus)
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": _command(request),
        **_present(
            workingDir=request.working_directory,
            imagePullPolicy=request.image_pull_policy,
            env=[{"name": name, "value": str(value)} for name, value in request.env.items()],
            envFrom=[{"secretRef": {"name": env_from_secret}} for env_from_secret in request.env_from_secrets],
            ports=[{"containerPort": port} for port in request.ports],
            resources=_present(requests=_present(cpu=str(request.cpu), memory=request.memory), limits=limits),
            volumeMounts=mounts,
        ),
    }


def _volumes(request: JobOptions) -> tuple[list[Json], list[Json]]:
    """(volumes of the pod, mounts of the container)."""
    wanted = [claim_mount(volume) if isinstance(volume, str) else volume for volume in request.volumes]
    if request.shared_memory:
        size = {} if request.shared_memory == "unlimited" else {"sizeLimit": request.shared_memory}
        wanted.append(Mount("/dev/shm", {"emptyDir": {"medium": "Memory", **size}}))  # noqa: S108 a mount
    volumes, mounts = [], []
    for number, mount in enumerate(wanted):
        name = f"volume-{number}"
        volumes.append({"name": name, **mount.source})
        mounts.append({"name": name, "mountPath": mount.path, **({"readOnly": True} if mount.read_only else {})})
    return volumes, mounts


def _command(request: JobOptions) -> list[str]:
    return shlex.split(request.command) if isinstance(request.command, str) else list(request.command)


def _checkpoint(request: JobOptions) -> Json:
    claim = request.checkpoint_claim
    volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else None
    return _present(directory=request.checkpoint_directory, volume=volume)
