"""Options of a job, as Python users write them, turned into a JobRequest. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TypedDict

from elasticjob.decisions.flag_values import claim_mount
from elasticjob.decisions.job_request import GPU, JobRequest, Mount, WorkerRange


class JobOptions(TypedDict, total=False):
    """What `submit` and `train` take by name. All are optional."""

    workers: int | tuple[int, int] | str
    """Number of worker pods, or (least, most) for an elastic job, which starts with as many as possible. Default: 1."""
    replicas: int
    """Number of worker pods to start an elastic job with."""
    procs_per_worker: int | str
    """Worker processes in each worker pod: a number, cpu, gpu or auto. Default: one per GPU."""
    gpus: int
    """GPUs of each worker pod."""
    gpu_resource: str
    """Name of the GPU resource. Default: nvidia.com/gpu."""
    cpu: str | int
    """CPU request of each worker pod."""
    memory: str
    """Memory request of each worker pod, such as 16Gi."""
    shared_memory: str
    """Size of /dev/shm, such as 8Gi; "unlimited" for what the node allows."""
    env: Mapping[str, str]
    checkpoint_claim: str
    """PersistentVolumeClaim for checkpoints; all nodes must be able to mount it."""
    checkpoint_directory: str
    """Where it is mounted. Default: /checkpoints."""
    volumes: Sequence[str | Mount]
    """More volumes: CLAIM:/path[:ro]."""
    working_directory: str
    image_pull_policy: str
    image_pull_secrets: Sequence[str]
    service_account: str
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, str]]
    priority_class: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    max_restarts: int
    suspend: bool
    """Whether to create the job suspended."""


def job_request(name: str, image: str, command: str | Sequence[str], options: JobOptions) -> JobRequest:
    """Raises UsageError."""
    named = ("cpu", options.get("cpu")), ("memory", options.get("memory"))
    return JobRequest(
        name=name,
        image=image,
        command=shlex.split(command) if isinstance(command, str) else list(command),
        workers=WorkerRange.of(options.get("workers", 1), options.get("replicas")),
        procs_per_worker=options.get("procs_per_worker", ""),
        gpus=options.get("gpus", 0),
        gpu_resource=options.get("gpu_resource", GPU),
        requests={key: str(value) for key, value in named if value is not None},
        shared_memory=options.get("shared_memory", ""),
        env={key: str(value) for key, value in options.get("env", {}).items()},
        mounts=[claim_mount(each) if isinstance(each, str) else each for each in options.get("volumes", ())],
        checkpoint_claim=options.get("checkpoint_claim", ""),
        checkpoint_directory=options.get("checkpoint_directory", ""),
        working_directory=options.get("working_directory", ""),
        image_pull_policy=options.get("image_pull_policy", ""),
        image_pull_secrets=options.get("image_pull_secrets", ()),
        service_account=options.get("service_account", ""),
        node_selector=options.get("node_selector", {}),
        tolerations=options.get("tolerations", ()),
        priority_class=options.get("priority_class", ""),
        labels=options.get("labels", {}),
        annotations=options.get("annotations", {}),
        max_restarts=options.get("max_restarts"),
        suspend=options.get("suspend", False),
    )
