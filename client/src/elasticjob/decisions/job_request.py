"""From what a user asks for to the manifest of an ElasticJob. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticjob.errors import UsageError
from elasticjob.names import API_VERSION, KIND

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
CONTAINER = "trainer"
MAX_NAME = 47
"""Names of worker pods are longer than their job's, and have to be names of hosts."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


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
class Mount:
    """A volume and where it is mounted."""

    path: str
    source: Mapping[str, Any]
    """A volume source of the pod: {"persistentVolumeClaim": {...}}."""
    read_only: bool = False


@dataclass(frozen=True)
class JobRequest:
    """What `elasticjob submit` and `ElasticJobClient.submit` take."""

    name: str
    image: str
    command: Sequence[str] = ()
    workers: WorkerRange = WorkerRange(1, 1, 1)
    procs_per_worker: str | int = ""
    gpus: int = 0
    gpu_resource: str = GPU
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    shared_memory: str = ""
    """Size of /dev/shm; "unlimited" for half of the node's memory."""
    env: Mapping[str, str] = field(default_factory=dict)
    env_from_secrets: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    ports: Sequence[int] = ()
    checkpoint_claim: str = ""
    checkpoint_directory: str = ""
    working_directory: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: Sequence[str] = ()
    service_account: str = ""
    run_as: tuple[int, int] | None = None
    """User and group ID."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int | None = None
    deadline_seconds: int | None = None
    ttl_seconds: int | None = None
    suspend: bool = False


def manifest_of(request: JobRequest, namespace: str | None = None) -> Json:
    """The ElasticJob; fields that the user did not ask for keep the API's defaults. Raises UsageError."""
    check_name(request.name)
    if not request.image:
        raise UsageError("The job needs an image: --image my-company/train:1.4")
    if not request.command:
        raise UsageError("The job needs a command: write it after --, such as: -- python train.py")
    metadata: Json = {"name": request.name}
    if namespace:
        metadata["namespace"] = namespace
    metadata |= _present(labels=dict(request.labels), annotations=dict(request.annotations))
    spec: Json = {"workers": _workers(request)}
    spec |= _present(
        checkpoint=_checkpoint(request),
        restartPolicy=_present(maxRestarts=request.max_restarts),
        scheduling=_present(priorityClassName=request.priority_class),
        lifecycle=_present(
            suspend=request.suspend or None,
            activeDeadlineSeconds=request.deadline_seconds,
            ttlSecondsAfterFinished=request.ttl_seconds,
        ),
    )
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def check_name(name: str) -> None:
    """Raises UsageError that suggests a valid name."""
    if _NAME.fullmatch(name) and len(name) <= MAX_NAME:
        return
    better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:MAX_NAME].strip("-")
    raise UsageError(
        f"{name!r} cannot be the name of a job: use up to {MAX_NAME} lower-case letters, digits and hyphens.",
        f"For example: {better}" if better else "",
    )


def _present(**values: Any) -> Json:
    """The values that are set."""
    return {key: value for key, value in values.items() if value not in (None, "", {}, [], ())}


def _workers(request: JobRequest) -> Json:
    sizes = request.workers
    bounds = {"minReplicas": sizes.least, "maxReplicas": sizes.most} if sizes.least != sizes.most else {}
    return {
        "replicas": sizes.replicas,
        **bounds,
        **_present(procsPerWorker=request.procs_per_worker),
        "template": {**_present(metadata=_present(labels=dict(request.labels))), "spec": _pod(request)},
    }


def _pod(request: JobRequest) -> Json:
    volumes, mounts = _volumes(request)
    run_as = request.run_as
    return {
        "containers": [_container(request, mounts)],
        **_present(
            volumes=volumes,
            imagePullSecrets=[{"name": each} for each in request.image_pull_secrets],
            serviceAccountName=request.service_account,
            securityContext={"runAsUser": run_as[0], "runAsGroup": run_as[1]} if run_as else None,
            nodeSelector=dict(request.node_selector),
            tolerations=[dict(each) for each in request.tolerations],
        ),
    }


def _container(request: JobRequest, mounts: list[Json]) -> Json:
    limits = dict(request.limits)
    if request.gpus:
        limits[request.gpu_resource] = str(request.gpus)
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": list(request.command),
        **_present(
            workingDir=request.working_directory,
            imagePullPolicy=request.image_pull_policy,
            env=[{"name": name, "value": value} for name, value in request.env.items()],
            envFrom=[{"secretRef": {"name": each}} for each in request.env_from_secrets],
            ports=[{"containerPort": each} for each in request.ports],
            resources=_present(requests=dict(request.requests), limits=limits),
            volumeMounts=mounts,
        ),
    }


def _volumes(request: JobRequest) -> tuple[list[Json], list[Json]]:
    """(volumes of the pod, mounts of the container)."""
    wanted = list(request.mounts)
    if request.shared_memory:
        size = {} if request.shared_memory == "unlimited" else {"sizeLimit": request.shared_memory}
        wanted.append(Mount("/dev/shm", {"emptyDir": {"medium": "Memory", **size}}))  # noqa: S108 a mount
    volumes, mounts = [], []
    for number, mount in enumerate(wanted):
        name = f"volume-{number}"
        volumes.append({"name": name, **mount.source})
        mounts.append({"name": name, "mountPath": mount.path, **({"readOnly": True} if mount.read_only else {})})
    return volumes, mounts


def _checkpoint(request: JobRequest) -> Json:
    claim = request.checkpoint_claim
    volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else None
    return _present(directory=request.checkpoint_directory, volume=volume)
