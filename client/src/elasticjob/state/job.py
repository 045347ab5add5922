"""An ElasticJob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob.state.values import Json, Time, int_or, object_at, parse_time


@dataclass(frozen=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    since: Time | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


@dataclass(frozen=True)
class Progress:
    step: int
    steps_per_second: float | None = None
    checkpoint_step: int | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    observed_at: Time | None = None


@dataclass(frozen=True)
class Failure:
    worker: str
    reason: str
    message: str
    exit_code: int | None = None
    rank: int | None = None
    round: int | None = None
    time: Time | None = None


@dataclass(frozen=True)
class Change:
    """One of `status.history.changes`."""

    time: Time | None
    type: str
    reason: str
    message: str = ""
    round: int | None = None
    world_size_before: int = 0
    world_size: int = 0
    step: int | None = None
    """Last reported before it."""
    steps_lost: int | None = None
    resume_seconds: float | None = None


@dataclass(frozen=True)
class JobState:
    """An ElasticJob as the API server has it."""

    name: str
    namespace: str
    uid: str = ""
    created: Time | None = None
    deleting: bool = False
    generation: int = 0
    observed_generation: int | None = None
    replicas: int = 1
    least: int = 1
    most: int = 1
    procs: str = "auto"
    image: str = ""
    command: tuple[str, ...] = ()
    container: str = ""
    suspend: bool = False
    managed_by: str = ""
    max_restarts: int = 10
    checkpoint: str = ""
    keeps_files: bool = True
    """Whether it mounts a volume that outlives its worker pods."""
    reported: str = ""
    """The summary that the operator has written."""
    ready: int = 0
    existing: int = 0
    desired: int | None = None
    world_size: int = 0
    round: int = 0
    restarts: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    progress: Progress | None = None
    failure: Failure | None = None
    failing_nodes: tuple[tuple[str, int], ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    rendezvous: str = ""
    history: tuple[Change, ...] = ()
    """Oldest first; empty with an operator that keeps none."""
    started: Time | None = None
    finished: Time | None = None

    def is_true(self, type_: str) -> bool:
        found = self.conditions.get(type_)
        return found is not None and found.is_true

    @property
    def is_finished(self) -> bool:
        return self.is_true("Succeeded") or self.is_true("Failed")

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
        """Ready and wanted worker pods: 3/4."""
        return f"{self.ready}/{self.desired if self.desired is not None else self.replicas}"

    @property
    def range_text(self) -> str:
        """Sizes that the job can run with: 2:4; 3 for a fixed size."""
        return f"{self.least}:{self.most}" if self.least != self.most else str(self.most)


def job_state(body: Json) -> JobState:
    """`body`: the ElasticJob from the API server."""
    metadata, spec, status = (object_at(body, part) for part in ("metadata", "spec", "status"))
    workers, restarts = object_at(spec, "workers"), object_at(status, "restarts")
    pod = object_at(object_at(workers, "template"), "spec")
    container = training_container(body)
    replicas = max(int_or(workers.get("replicas"), 1), int_or(workers.get("minReplicas"), 1))
    rendezvous = object_at(status, "rendezvous")
    return JobState(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        uid=str(metadata.get("uid", "")),
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        generation=int_or(metadata.get("generation"), 0),
        observed_generation=status.get("observedGeneration"),
        replicas=replicas,
        least=int_or(workers.get("minReplicas"), replicas),
        most=int_or(workers.get("maxReplicas"), replicas),
        procs=str(workers.get("procsPerWorker", "auto")),
        image=str(container.get("image", "")),
        command=tuple(map(str, [*(container.get("command") or ()), *(container.get("args") or ())])),
        container=str(container.get("name", "")),
        suspend=bool(object_at(spec, "lifecycle").get("suspend")),
        managed_by=str(spec.get("managedBy") or object_at(spec, "lifecycle").get("managedBy") or ""),
        max_restarts=int_or(object_at(spec, "restartPolicy").get("maxRestarts"), 10),
        checkpoint=_checkpoint(object_at(spec, "checkpoint")),
        keeps_files=_keeps_files(object_at(object_at(spec, "checkpoint"), "volume"), pod, container),
        reported=str(status.get("summary", "")),
        ready=int_or(status.get("readyReplicas"), 0),
        existing=int_or(status.get("replicas"), 0),
        desired=status.get("desiredReplicas"),
        world_size=int_or(status.get("worldSize"), 0),
        round=int_or(status.get("round"), 0),
        restarts=int_or(restarts.get("total"), 0),
        causes=dict(object_at(restarts, "byCause")),
        progress=_progress(status.get("progress")),
        failure=_failure(status.get("lastFailure")),
        failing_nodes=tuple((each["name"], each["failures"]) for each in status.get("failingNodes") or ()),
        conditions={each["type"]: _condition(each) for each in status.get("conditions") or ()},
        rendezvous=" ".join(filter(None, (rendezvous.get("backend"), rendezvous.get("endpoint")))),
        history=tuple(map(_change, object_at(status, "history").get("changes") or ())),
        started=parse_time(status.get("startTime")),
        finished=parse_time(status.get("completionTime")),
    )


def training_container(body: Json) -> Json:
    """Of the template of an ElasticJob."""
    workers = object_at(object_at(body, "spec"), "workers")
    pod = object_at(object_at(workers, "template"), "spec")
    containers = [each for each in pod.get("containers") or () if isinstance(each, Mapping)]
    named = [each for each in containers if each.get("name") == workers.get("container")]
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
    mounted = {each.get("name") for each in container.get("volumeMounts") or ()}
    volumes = [checkpoints, *(each for each in pod.get("volumes") or () if each.get("name") in mounted)]
    return any(kind != "name" and kind not in _LOST_WITH_THE_POD for volume in volumes for kind in volume)


def _progress(value: object) -> Progress | None:
    if not isinstance(value, Mapping):
        return None
    rate = value.get("stepsPerSecond")
    return Progress(
        step=int_or(value.get("step"), 0),
        steps_per_second=float(rate) if isinstance(rate, int | float) else None,
        checkpoint_step=value.get("lastCheckpointStep"),
        metrics={str(key): str(each) for key, each in (value.get("metrics") or {}).items()},
        observed_at=parse_time(value.get("observedAt")) or parse_time(value.get("updatedAt")),
    )


def _failure(value: object) -> Failure | None:
    if not isinstance(value, Mapping):
        return None
    return Failure(
        worker=str(value.get("worker", "")),
        reason=str(value.get("reason", "")),
        message=str(value.get("message", "")),
        exit_code=value.get("exitCode"),
        rank=value.get("rank"),
        round=value.get("round"),
        time=parse_time(value.get("time")),
    )


def _change(value: Json) -> Change:
    return Change(
        time=parse_time(value.get("time")),
        type=str(value.get("type", "")),
        reason=str(value.get("reason", "")),
        message=str(value.get("message", "")),
        round=value.get("round"),
        world_size_before=int_or(value.get("worldSizeBefore"), 0),
        world_size=int_or(value.get("worldSize"), 0),
        step=value.get("step"),
        steps_lost=value.get("stepsLost"),
        resume_seconds=value.get("resumeSeconds"),
    )


def _condition(value: Json) -> Condition:
    return Condition(
        type=value["type"],
        status=str(value.get("status", "Unknown")),
        reason=str(value.get("reason", "")),
        message=str(value.get("message", "")),
        since=parse_time(value.get("lastTransitionTime")),
    )
