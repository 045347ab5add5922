"""What was observed of a job, its worker pods and its Events. Pure.

It is read leniently, because the operator may be older or newer than this client.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticjob.names import LABEL_INDEX

Json = Mapping[str, Any]
Time = datetime.datetime


def parse_time(value: object) -> Time | None:
    """RFC 3339; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.timezone.utc)


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
    summary: str = ""
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
    def status_word(self) -> str:
        """One word for a table."""
        if self.deleting:
            return "Deleting"
        return self.summary or ("Pending" if not self.is_seen else "Accepted")

    @property
    def workers_text(self) -> str:
        """Ready and wanted worker pods: 3/4."""
        return f"{self.ready}/{self.desired if self.desired is not None else self.replicas}"

    @property
    def range_text(self) -> str:
        """Sizes that the job can run with: 2:4; 3 for a fixed size."""
        return f"{self.least}:{self.most}" if self.least != self.most else str(self.most)


@dataclass(frozen=True)
class WorkerState:
    """A worker pod."""

    name: str
    uid: str
    index: int
    phase: str
    ready: bool = False
    node: str = ""
    created: Time | None = None
    deleting: bool = False
    problem: str = ""
    """Why it does not run, in one word: Unschedulable, ImagePullBackOff, OOMKilled ..."""
    detail: str = ""
    exit_code: int | None = None

    @property
    def status_word(self) -> str:
        if self.deleting:
            return "Terminating"
        if self.problem:
            return self.problem
        return "Ready" if self.ready else "Starting" if self.phase == "Running" else self.phase

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class EventState:
    time: Time | None
    warning: bool
    reason: str
    message: str
    count: int = 1


def job_state(body: Json) -> JobState:
    """`body`: the ElasticJob from the API server."""
    metadata, spec, status = (_object(body, part) for part in ("metadata", "spec", "status"))
    workers, restarts = _object(spec, "workers"), _object(status, "restarts")
    pod = _object(_object(workers, "template"), "spec")
    container = _training_container(workers, pod)
    replicas = _int(workers.get("replicas"), 1)
    rendezvous = _object(status, "rendezvous")
    return JobState(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        uid=str(metadata.get("uid", "")),
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        generation=_int(metadata.get("generation"), 0),
        observed_generation=status.get("observedGeneration"),
        replicas=replicas,
        least=_int(workers.get("minReplicas"), replicas),
        most=_int(workers.get("maxReplicas"), replicas),
        procs=str(workers.get("procsPerWorker", "auto")),
        image=str(container.get("image", "")),
        command=tuple(map(str, [*(container.get("command") or ()), *(container.get("args") or ())])),
        container=str(container.get("name", "")),
        suspend=bool(_object(spec, "lifecycle").get("suspend")),
        managed_by=str(spec.get("managedBy") or _object(spec, "lifecycle").get("managedBy") or ""),
        max_restarts=_int(_object(spec, "restartPolicy").get("maxRestarts"), 10),
        checkpoint=_checkpoint(_object(spec, "checkpoint")),
        summary=str(status.get("summary", "")),
        ready=_int(status.get("readyReplicas"), 0),
        existing=_int(status.get("replicas"), 0),
        desired=status.get("desiredReplicas"),
        world_size=_int(status.get("worldSize"), 0),
        round=_int(status.get("round"), 0),
        restarts=_int(restarts.get("total"), 0),
        causes=dict(_object(restarts, "byCause")),
        progress=_progress(status.get("progress")),
        failure=_failure(status.get("lastFailure")),
        failing_nodes=tuple((each["name"], each["failures"]) for each in status.get("failingNodes") or ()),
        conditions={each["type"]: _condition(each) for each in status.get("conditions") or ()},
        rendezvous=" ".join(filter(None, (rendezvous.get("backend"), rendezvous.get("endpoint")))),
        history=tuple(map(_change, _object(status, "history").get("changes") or ())),
        started=parse_time(status.get("startTime")),
        finished=parse_time(status.get("completionTime")),
    )


def worker_state(pod: Json) -> WorkerState:
    metadata, spec, status = (_object(pod, part) for part in ("metadata", "spec", "status"))
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    problem, detail, code = _problem(status, conditions, containers)
    index = _object(metadata, "labels").get(LABEL_INDEX, "")
    return WorkerState(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        index=int(index) if str(index).isdigit() else -1,
        phase=str(status.get("phase", "Pending")),
        ready=_object(conditions, "Ready").get("status") == "True",
        node=str(spec.get("nodeName", "")),
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        problem=problem,
        detail=detail,
        exit_code=code,
    )


def worker_states(pods: Iterable[Json]) -> list[WorkerState]:
    return in_index_order(map(worker_state, pods))


def in_index_order(workers: Iterable[WorkerState]) -> list[WorkerState]:
    """Of two pods with one index, the older first."""
    oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    return sorted(workers, key=lambda each: (each.index, each.created or oldest))


def event_states(events: Sequence[Json]) -> list[EventState]:
    """Oldest first."""
    found = [
        EventState(
            time=parse_time(_object(each, "series").get("lastObservedTime"))
            or parse_time(each.get("lastTimestamp"))
            or parse_time(each.get("eventTime"))
            or parse_time(_object(each, "metadata").get("creationTimestamp")),
            warning=each.get("type") == "Warning",
            reason=str(each.get("reason", "")),
            message=str(each.get("message") or each.get("note") or ""),
            count=_int(each.get("count") or _object(each, "series").get("count"), 1),
        )
        for each in events
    ]
    oldest = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    return sorted(found, key=lambda each: each.time or oldest)


def in_rank_order(workers: Sequence[WorkerState]) -> list[WorkerState]:
    """The worker pods that train, in the order of their ranks, then those that are starting.

    Those that stay in a new round keep their order, and those that join come last: the oldest has the first ranks.
    """
    alive = [each for each in workers if not each.is_over and not each.deleting]
    newest = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
    return sorted(alive, key=lambda each: (not each.ready, each.created or newest, each.index))


def _object(body: Json, key: str) -> Json:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _int(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _training_container(workers: Json, pod: Json) -> Json:
    containers = [each for each in pod.get("containers") or () if isinstance(each, Mapping)]
    named = [each for each in containers if each.get("name") == workers.get("container")]
    return (named or containers or [{}])[0]


def _checkpoint(checkpoint: Json) -> str:
    if not checkpoint:
        return ""
    volume = _object(checkpoint, "volume")
    claim = _object(volume, "persistentVolumeClaim").get("claimName")
    kind = next(iter(volume), "")
    where = f" (claim {claim})" if claim else f" ({kind})" if kind else ""
    return f"{checkpoint.get('directory', '/checkpoints')}{where}"


def _progress(value: object) -> Progress | None:
    if not isinstance(value, Mapping):
        return None
    rate = value.get("stepsPerSecond")
    return Progress(
        step=_int(value.get("step"), 0),
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
        world_size_before=_int(value.get("worldSizeBefore"), 0),
        world_size=_int(value.get("worldSize"), 0),
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


def _problem(status: Json, conditions: Json, containers: Sequence[Json]) -> tuple[str, str, int | None]:
    """(word, detail, exit code) of what keeps a pod from running, or ended it."""
    if status.get("phase") == "Failed" and status.get("reason"):
        return str(status["reason"]), str(status.get("message", "")), None
    for container in containers:
        state = _object(container, "state")
        ended, waiting = _object(state, "terminated"), _object(state, "waiting")
        if _int(ended.get("exitCode"), 0):
            reason = str(ended.get("reason") or "Error")
            return reason, str(ended.get("message", "")).strip(), ended["exitCode"]
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return str(waiting["reason"]), str(waiting.get("message", "")), None
    scheduled = _object(conditions, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message", "")), None
    return ("Completed", "", 0) if status.get("phase") == "Succeeded" else ("", "", None)
