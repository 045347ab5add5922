"""What `elasticjob doctor` finds, and what to do about it. Pure."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticjob.decisions.obstacles import obstacles
from elasticjob.decisions.queues import obstacles_of_queue
from elasticjob.errors import ElasticJobError, NotFoundError
from elasticjob.names import GROUP, INSTALL, VERSION
from elasticjob.state import JobState, WorkerState

Json = Mapping[str, Any]
MOST_SKEW = 30.0
"""Clocks further apart than this are mentioned, s."""
RIGHTS: tuple[tuple[str, str, str, str], ...] = (
    ("list", "elasticjobs", GROUP, "list jobs"),
    ("get", "elasticjobs", GROUP, "read jobs"),
    ("create", "elasticjobs", GROUP, "submit jobs"),
    ("patch", "elasticjobs", GROUP, "suspend and resume jobs"),
    ("patch", "elasticjobs/scale", GROUP, "scale jobs"),
    ("delete", "elasticjobs", GROUP, "delete jobs"),
    ("watch", "elasticjobs", GROUP, "wait for jobs"),
    ("list", "pods", "", "list worker pods"),
    ("watch", "pods", "", "follow worker pods"),
    ("get", "pods/log", "", "read logs"),
    ("list", "events", "", "read Events"),
)
"""(verb, resource, API group, what it is needed for)."""


class Result(enum.Enum):
    GOOD = "✓"
    WARNING = "!"
    BAD = "✗"
    UNKNOWN = "?"


@dataclass(frozen=True)
class Finding:
    result: Result
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Observed:
    """What could be read; an error where it could not."""

    server: str
    namespace: str
    client_version: str
    version: Json | ElasticJobError
    skew: float = 0.0
    crd: Json | ElasticJobError | None = None
    """None: there is none."""
    operators: Sequence[Json] | ElasticJobError = ()
    nodes: Sequence[Json] | ElasticJobError = ()
    rights: Mapping[str, bool] = field(default_factory=dict)
    """What a right is needed for -> whether the user has it."""
    job: JobState | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU resource -> how many each worker pod of the job asks for."""
    workers: Sequence[WorkerState] = ()
    queue: Json | ElasticJobError | None = None
    """The ClusterQueue that admits the job. None: it is in no queue."""
    requested: Mapping[str, decimal.Decimal] = field(default_factory=dict)
    """What its minReplicas worker pods and its own etcd ask for."""


def findings(seen: Observed, now: datetime.datetime) -> list[Finding]:
    """From the bottom up: a problem explains those that follow."""
    if isinstance(seen.version, ElasticJobError):
        return [Finding(Result.BAD, seen.version.message, seen.version.remedy)]
    found = [Finding(Result.GOOD, f"API server {seen.server}, Kubernetes {seen.version.get('gitVersion', '?')}")]
    found += [*_clock(seen), *_crd(seen), *_operator(seen), *_rights(seen), *_nodes(seen)]
    if seen.job is not None:
        queue = [*_queue(seen, seen.job)]
        fine = all(finding.result is Result.GOOD for finding in queue)
        found += [
            *queue,
            *(finding for finding in _job(seen, seen.job, now) if fine or finding.result is not Result.GOOD),
        ]
    return found


def _clock(seen: Observed) -> Iterator[Finding]:
    if abs(seen.skew) > MOST_SKEW:
        ahead = "behind" if seen.skew > 0 else "ahead of"
        yield Finding(
            Result.WARNING,
            f"This machine's clock is {abs(seen.skew):.0f} s {ahead} the API server's; ages are shown by the latter.",
            "Synchronize it, for example: sudo timedatectl set-ntp true",
        )


def _crd(seen: Observed) -> Iterator[Finding]:
    if isinstance(seen.crd, ElasticJobError):
        if seen.rights.get("list jobs"):
            yield Finding(Result.GOOD, "The cluster has ElasticJobs; you may not read their definition.")
        else:
            yield Finding(Result.UNKNOWN, "Could not check whether ElasticJobs are installed: " + seen.crd.message)
        return
    if seen.crd is None:
        yield Finding(Result.BAD, "The CustomResourceDefinition of ElasticJobs is not installed.", f"Run: {INSTALL}")
        return
    conditions = {
        condition["type"]: condition["status"] for condition in seen.crd.get("status", {}).get("conditions") or ()
    }
    served = [version["name"] for version in seen.crd["spec"]["versions"] if version.get("served")]
    if conditions.get("Established") != "True":
        yield Finding(
            Result.BAD, "The CustomResourceDefinition is not established yet.", "Wait, then look at its status."
        )
    elif VERSION not in served:
        yield Finding(
            Result.BAD,
            f"The cluster serves ElasticJobs as {', '.join(served)}, this client needs {VERSION}.",
            f"Install the client of the operator's release: pip install elasticjob=={seen.client_version}",
        )
    else:
        yield Finding(Result.GOOD, f"CustomResourceDefinition {GROUP}/{VERSION}")


def _operator(seen: Observed) -> Iterator[Finding]:
    if isinstance(seen.operators, ElasticJobError):
        yield Finding(Result.UNKNOWN, "You may not read Deployments, so the operator was not checked.")
        return
    if not seen.operators:
        yield Finding(Result.BAD, "There is no operator: no Deployment has its labels.", f"Run: {INSTALL}")
        return
    for operator in seen.operators:
        metadata = operator["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        version = (metadata.get("labels") or {}).get("app.kubernetes.io/version", "?")
        ready = (operator.get("status") or {}).get("readyReplicas") or 0
        if not ready:
            yield Finding(
                Result.BAD,
                f"The operator {where} is not ready.",
                f"See why: kubectl describe pods -n {metadata['namespace']} -l app.kubernetes.io/component=operator",
            )
            continue
        yield Finding(Result.GOOD, f"Operator {version} is ready ({where})")
        if _number(version) and _number(version) < _number(seen.client_version):
            yield Finding(
                Result.WARNING,
                f"The operator ({version}) is older than this client ({seen.client_version}): it ignores newer fields.",
                "An administrator upgrades it: helm upgrade elasticjob ...",
            )


def _number(version: str) -> tuple[int, ...]:
    """Comparable; empty if it is not a version."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _rights(seen: Observed) -> Iterator[Finding]:
    missing = [what for what, allowed in seen.rights.items() if not allowed]
    if missing:
        yield Finding(
            Result.BAD if "list jobs" in missing else Result.WARNING,
            f"In namespace {seen.namespace} you have no right to {', '.join(missing)}.",
            "Ask your cluster administrator: kubectl create rolebinding NAME --clusterrole=edit --user=YOU "
            f"--namespace={seen.namespace}",
        )
    elif seen.rights:
        yield Finding(Result.GOOD, f"You have all rights in namespace {seen.namespace}")


def _nodes(seen: Observed) -> Iterator[Finding]:
    if isinstance(seen.nodes, ElasticJobError):
        yield Finding(Result.UNKNOWN, "You may not read nodes, so they were not checked.")
        return
    ready = [node for node in seen.nodes if _is_ready(node)]
    if not ready:
        yield Finding(Result.BAD, f"None of {len(seen.nodes)} nodes is ready.", "See why: kubectl get nodes")
        return
    gpus = sum(count for node in ready for count in _gpus(node).values())
    shown = f"{len(ready)} of {len(seen.nodes)} nodes are ready" + (f", with {gpus} GPUs" if gpus else ", without GPUs")
    unready = len(seen.nodes) - len(ready)
    yield Finding(Result.WARNING if unready else Result.GOOD, shown, "See why: kubectl get nodes" if unready else "")
    for resource, wanted in seen.gpus.items():
        most = max((_gpus(node).get(resource, 0) for node in ready), default=0)
        if wanted > most:
            yield Finding(
                Result.BAD,
                f"Each worker pod asks for {wanted} {resource}, but no node has more than {most}.",
                f"Submit the job with --gpus {most} and more worker pods." if most else "Add nodes with GPUs.",
            )


def _is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any((condition.get("type"), condition.get("status")) == ("Ready", "True") for condition in conditions)


def _gpus(node: Json) -> dict[str, int]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {key: int(value) for key, value in allocatable.items() if is_gpu(key) and str(value).isdigit()}


def is_gpu(resource: str) -> bool:
    """Whether a resource name is that of a GPU: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915 ..."""
    return "gpu" in resource and "/" in resource


def _queue(seen: Observed, job: JobState) -> Iterator[Finding]:
    if seen.queue is None or job.is_finished:
        return
    if isinstance(seen.queue, NotFoundError):
        trains = "trains" if job.is_true("Running") else "waits"
        yield Finding(
            Result.WARNING if job.is_true("Running") else Result.BAD,
            f"{job.name} {trains} as a job of LocalQueue {job.queue}: {seen.queue.message}",
            f"List the queues of the namespace: kubectl get localqueues -n {job.namespace}",
        )
    elif isinstance(seen.queue, ElasticJobError):
        yield Finding(Result.UNKNOWN, f"Could not check the quota of queue {job.queue}: {seen.queue.message}")
    else:
        found = list(obstacles_of_queue(seen.requested, seen.queue))
        for what, remedy in found:
            yield Finding(Result.BAD, what, remedy)
        if not found:
            yield Finding(Result.GOOD, f"Queue {job.queue} has enough quota for the job, once it is free")


def _job(seen: Observed, job: JobState, now: datetime.datetime) -> Iterator[Finding]:
    found = obstacles(job, seen.workers, now)
    if not found:
        yield Finding(Result.GOOD, f"{job.name} has no problems: {job.summary}, {job.workers_text} ready")
    for finding in found:
        yield Finding(Result.BAD if finding.serious else Result.WARNING, f"{job.name}: {finding.what}", finding.remedy)
