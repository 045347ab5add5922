"""An ElasticJob. `at` says where in its body a field is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob.names import QUEUE
from elasticjob.state.values import Json, Time, at, int_or, object_at, parse_time, part, read


@dataclass(frozen=True)
class Condition:
    type: str = at("type", "")
    status: str = at("status", "Unknown")
    reason: str = at("reason", "")
    message: str = at("message", "")
    since: Time | None = at("lastTransitionTime", None, parse_time)

    @property
    def is_true(self) -> bool:
        return self.status == "True"


def _metrics(value: object) -> Mapping[str, str]:
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, Mapping) else {}


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Progress:
    step: int = at("step", 0)
    steps_per_second: float | None = at("stepsPerSecond", None, _rate)
    checkpoint_step: int | None = at("lastCheckpointStep", None)
    metrics: Mapping[str, str] = at("metrics", {}, _metrics)
    observed_at: Time | None = at("observedAt", None, parse_time)


@dataclass(frozen=True)
class OptimizerSteps:
    """Of a script that reports no progress."""

    count: int = at("count", 0)
    per_second: float | None = at("perSecond", None, _rate)
    updated_at: Time | None = at("updatedAt", None, parse_time)
    backward_passes: int | None = at("backwardPasses", None)


@dataclass(frozen=True)
class Failure:
    worker: str = at("worker", "")
    reason: str = at("reason", "")
    message: str = at("message", "")
    exit_code: int | None = at("exitCode", None)
    rank: int | None = at("rank", None)
    round: int | None = at("round", None)
    time: Time | None = at("time", None, parse_time)


@dataclass(frozen=True)
class Change:
    """One of `status.history.changes`."""

    time: Time | None = at("time", None, parse_time)
    type: str = at("type", "")
    reason: str = at("reason", "")
    message: str = at("message", "")
    round: int | None = at("round", None)
    world_size_before: int = at("worldSizeBefore", 0)
    world_size: int = at("worldSize", 0)
    workers: int = at("workers", 0)
    step: int | None = at("step", None)
    """Last reported before it."""
    steps_lost: int | None = at("stepsLost", None)
    resume_seconds: float | None = at("resumeSeconds", None)


def _replica_workers(value: object) -> Mapping[int, tuple[int, ...]]:
    return {item["replica"]: tuple(item["workers"]) for item in value} if isinstance(value, list) else {}


def _queue(labels: object) -> str:
    return str(labels.get(QUEUE) or "") if isinstance(labels, Mapping) else ""


@dataclass(frozen=True)
class JobState:
    """An ElasticJob as the API server has it."""

    name: str = at("metadata.name", "")
    namespace: str = at("metadata.namespace", "")
    uid: str = at("metadata.uid", "")
    created: Time | None = at("metadata.creationTimestamp", None, parse_time)
    deleting: bool = at("metadata.deletionTimestamp", False, bool)
    generation: int = at("metadata.generation", 0)
    observed_generation: int | None = at("status.observedGeneration", None)
    replicas: int = 1
    """0: not known."""
    least: int = 1
    most: int = 1
    replica_size: int = at("spec.workers.replicaSize", 0)
    replica_workers: Mapping[int, tuple[int, ...]] = at("status.replicaWorkers", {}, _replica_workers)
    """By the number of a replica, the indices of its worker pods in the order of their ranks."""
    procs: str = at("spec.workers.procsPerWorker", "auto", lambda value: None if value is None else str(value))
    image: str = ""
    command: tuple[str, ...] = ()
    container: str = ""
    managed_by: str = at("spec.managedBy", "")
    queue: str = at("metadata.labels", "", _queue)
    """Kueue's LocalQueue in which it waits."""
    max_restarts: int = at("spec.failurePolicy.maxRestarts", 10)
    checkpoint: str = ""
    keeps_files: bool = True
    """Whether it mounts a volume that outlives its worker pods."""
    reported: str = at("status.summary", "")
    """The summary that the operator has written."""
    ready: int = at("status.readyReplicas", 0)
    existing: int = at("status.replicas", 0)
    desired: int | None = at("status.desiredReplicas", None)
    world_size: int = at("status.worldSize", 0)
    round: int = at("status.round", 0)
    restarts: int = at("status.restarts.total", 0)
    causes: Mapping[str, int] = at("status.restarts.byCause", {})
    progress: Progress | None = at("status.progress", None, part(Progress))
    optimizer_steps: OptimizerSteps | None = at("status.optimizerSteps", None, part(OptimizerSteps))
    failure: Failure | None = at("status.lastFailure", None, part(Failure))
    failing_nodes: tuple[tuple[str, int], ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    rendezvous: str = ""
    history: tuple[Change, ...] = ()
    """Oldest first; empty with an operator that keeps none."""
    stored_history: Json = field(default_factory=dict)
    """`status.history` as it is."""
    started: Time | None = at("status.startTime", None, parse_time)
    finished: Time | None = at("status.completionTime", None, parse_time)

    def is_true(self, type_: str) -> bool:
        found = self.conditions.get(type_)
        return found is not None and found.is_true

    @property
    def is_finished(self) -> bool:
        return self.is_true("Succeeded") or self.is_true("Failed")

    @property
    def is_queued(self) -> bool:
        """Its queue does not let it run. The operator plans it like a suspended one, and so Suspended may be True."""
        return self.is_true("Queued")

    @property
    def is_seen(self) -> bool:
        """Whether an operator has ever written its status."""
        return bool(self.conditions)

    @property
    def summary(self) -> str:
        """One word, which kubectl shows too: Running, Succeeded ... or why it is not running."""
        if self.deleting:
            return "Deleting"
        return self.reported or ("Pending" if not self.is_seen else "Accepted")

    @property
    def workers_text(self) -> str:
        """Ready and wanted worker pods: 3/4; empty if that is not known."""
        wanted = self.desired if self.desired is not None else self.replicas or None
        return "" if wanted is None else f"{self.ready}/{wanted}"

    @property
    def range_text(self) -> str:
        """Sizes that the job can run with: 2:4; 3 for a fixed size."""
        return f"{self.least}:{self.most}" if self.least != self.most else str(self.most)


def job_state(body: Json) -> JobState:
    """`body`: the ElasticJob from the API server, or the part of it that a list has."""
    spec, status = object_at(body, "spec"), object_at(body, "status")
    workers, rendezvous = object_at(spec, "workers"), object_at(status, "rendezvous")
    pod = object_at(object_at(workers, "template"), "spec")
    container = training_container(body)
    replicas = max(int_or(workers.get("replicas"), 1), int_or(workers.get("minReplicas"), 1)) if spec else 0
    return read(
        JobState,
        body,
        replicas=replicas,
        least=int_or(workers.get("minReplicas"), replicas),
        most=int_or(workers.get("maxReplicas"), replicas),
        image=str(container.get("image", "")),
        command=tuple(map(str, [*(container.get("command") or ()), *(container.get("args") or ())])),
        container=str(container.get("name", "")),
        checkpoint=_checkpoint(object_at(spec, "checkpoint")),
        keeps_files=_keeps_files(object_at(object_at(spec, "checkpoint"), "volume"), pod, container),
        failing_nodes=tuple(
            (failing_node["name"], failing_node["failures"]) for failing_node in status.get("failingNodes") or ()
        ),
        conditions={condition["type"]: read(Condition, condition) for condition in status.get("conditions") or ()},
        rendezvous=" ".join(filter(None, (rendezvous.get("backend"), rendezvous.get("endpoint")))),
        stored_history=object_at(status, "history"),
        history=tuple(read(Change, change) for change in object_at(status, "history").get("changes") or ()),
    )


def training_container(body: Json) -> Json:
    """Of the template of an ElasticJob."""
    workers = object_at(object_at(body, "spec"), "workers")
    pod = object_at(object_at(workers, "template"), "spec")
    containers = [container for container in pod.get("containers") or () if isinstance(container, Mapping)]
    named = [container for container in containers if container.get("name") == workers.get("container")]
    return (named or containers or [{}])[0]


def _checkpoint(checkpoint: Json) -> str:
    if not checkpoint:
        return ""
    volume = object_at(checkpoint, "volume")
    claim = object_at(volume, "persistentVolumeClaim").get("claimName")
    kind = next(iter(volume), "")
    where = f" (claim {claim})" if claim else f" ({kind})" if kind else ""
    return f"{checkpoint.get('directory', '/checkpoints')}{where}"


_LOST_WITH_THE_POD = {"emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "image"}


def _keeps_files(checkpoints: Json, pod: Json, container: Json) -> bool:
    """`checkpoints`: the volume for checkpoints. Other volumes count too: the script may write there."""
    mounted = {volume_mount.get("name") for volume_mount in container.get("volumeMounts") or ()}
    volumes = [checkpoints, *(volume for volume in pod.get("volumes") or () if volume.get("name") in mounted)]
    return any(kind != "name" and kind not in _LOST_WITH_THE_POD for volume in volumes for kind in volume)
