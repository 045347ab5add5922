"""Worker pods."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticjob.names import LABEL_INDEX
from elasticjob.state.values import Json, Time, int_or, object_at, parse_time


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
    def summary(self) -> str:
        if self.deleting:
            return "Terminating"
        if self.problem:
            return self.problem
        return "Ready" if self.ready else "Starting" if self.phase == "Running" else self.phase

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


def worker_state(pod: Json) -> WorkerState:
    metadata, spec, status = (object_at(pod, part) for part in ("metadata", "spec", "status"))
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    problem, detail, code = _problem(status, conditions, containers)
    index = object_at(metadata, "labels").get(LABEL_INDEX, "")
    return WorkerState(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        index=int(index) if str(index).isdigit() else -1,
        phase=str(status.get("phase", "Pending")),
        ready=object_at(conditions, "Ready").get("status") == "True",
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
    return sorted(workers, key=lambda worker: (worker.index, worker.created or oldest))


def in_rank_order(workers: Sequence[WorkerState]) -> list[WorkerState]:
    """The worker pods that train, in the order of their ranks, then those that are starting.

    Those that stay in a new round keep their order, and those that join come last: the oldest has the first ranks.
    """
    alive = [worker for worker in workers if not worker.is_over and not worker.deleting]
    newest = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
    return sorted(alive, key=lambda worker: (not worker.ready, worker.created or newest, worker.index))


def _problem(status: Json, conditions: Json, containers: Sequence[Json]) -> tuple[str, str, int | None]:
    """(word, detail, exit code) of what keeps a pod from running, or ended it."""
    if status.get("phase") == "Failed" and status.get("reason"):
        return str(status["reason"]), str(status.get("message", "")), None
    for container in containers:
        state = object_at(container, "state")
        ended, waiting = object_at(state, "terminated"), object_at(state, "waiting")
        if int_or(ended.get("exitCode"), 0):
            reason = str(ended.get("reason") or "Error")
            return reason, str(ended.get("message", "")).strip(), ended["exitCode"]
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return str(waiting["reason"]), str(waiting.get("message", "")), None
    scheduled = object_at(conditions, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message", "")), None
    return ("Completed", "", 0) if status.get("phase") == "Succeeded" else ("", "", None)
