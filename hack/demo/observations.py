"""What the demo observes: a job's status and lines of its worker pods' logs, parsed. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSeen:
    """The job's status as the API server has it."""

    ready: int = 0
    wanted: int = 0
    world: int = 0
    succeeded: bool = False
    failed: str = ""
    """Why the job failed; empty unless it has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldSeen:
    """A worker process has printed that it trains in a new world."""

    pod: str
    """UID: a replacement may have the name of a lost pod."""
    pid: int
    rank: int
    world: int
    step: int
    """The last committed one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSeen:
    """A step that rank 0 has printed; it may not be committed yet."""

    step: int
    epoch: int
    loss: float


@dataclasses.dataclass(frozen=True)
class Finished:
    """Rank 0 has printed that all steps are done."""

    step: int


@dataclasses.dataclass(frozen=True)
class PodDeleted:
    """The demo itself has deleted a worker pod."""

    name: str
    uid: str


LineSeen = WorldSeen | StepSeen | Finished
Observation = JobSeen | LineSeen | PodDeleted


_WORLD = re.compile(r"\bpid=(\d+) rank=(\d+) trains with (\d+) workers after step=(\d+)")
_STEP = re.compile(r"\bstep=(\d+) epoch=(\d+) loss=([0-9.eE+-]+|nan|inf)")
_FINISHED = re.compile(r"\bfinished step=(\d+)")


def parse_line(text: str, pod: str) -> LineSeen | None:
    """Parses a line of the example's log, with any prefix from the launcher. None if it is another kind of line.

    pod: the UID of the worker pod that printed it.

    >>> parse_line("[rank0]: step=120 epoch=1 loss=0.1234", "a")
    StepSeen(step=120, epoch=1, loss=0.1234)
    """
    if found := _WORLD.search(text):
        pid, rank, world, step = map(int, found.groups())
        return WorldSeen(pod=pod, pid=pid, rank=rank, world=world, step=step)
    if found := _STEP.search(text):
        return StepSeen(step=int(found[1]), epoch=int(found[2]), loss=float(found[3]))
    if found := _FINISHED.search(text):
        return Finished(int(found[1]))
    return None


def parse_job(job: dict[str, Any]) -> JobSeen:
    """Parses an ElasticJob as kubectl prints it."""
    status = job.get("status", {})
    conditions = {
        condition["type"]: condition for condition in status.get("conditions", []) if condition["status"] == "True"
    }
    failed = conditions.get("Failed")
    return JobSeen(
        ready=status.get("readyReplicas", 0),
        wanted=job["spec"]["workers"].get("replicas", 1),
        world=status.get("worldSize", 0),
        succeeded="Succeeded" in conditions,
        failed=f"{failed.get('reason', '')}: {failed.get('message', '')}" if failed else "",
    )
