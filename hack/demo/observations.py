"""What the demo observes: a job's status and lines of its log, parsed. Pure."""

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
    group: int = 0
    """Rendezvous round of the worker group (`status.round`)."""
    step: int | None = None
    accuracy: float | None = None
    succeeded: bool = False
    failed: str = ""
    """Why the job failed; empty unless it has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSeen:
    """A line that rank 0 printed about its progress."""

    word: str = ""
    """started, resumed, finished, or empty for an ordinary step."""
    step: int | None = None
    epoch: int | None = None
    world: int | None = None
    loss: float | None = None
    accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class PodDeleted:
    """The demo itself has deleted a worker pod."""

    name: str


Observation = JobSeen | LineSeen | PodDeleted


_STEP = re.compile(
    r"(?:\b(started|resumed|finished) )?\bstep=(\d+) epoch=(\d+) world=(\d+)(?: loss=([0-9.eE+-]+|nan|inf))?"
)
_ACCURACY = re.compile(r"\baccuracy=([0-9.]+)")


def parse_line(text: str) -> LineSeen | None:
    """Parses a line of the example's log, with any prefix from the launcher. None if it is another kind of line.

    >>> parse_line("[rank0]: step=120 epoch=5 world=4 loss=0.1234")
    LineSeen(word='', step=120, epoch=5, world=4, loss=0.1234, accuracy=None)
    """
    found = _STEP.search(text)
    if found:
        word, step, epoch, world, loss = found.groups()
        return LineSeen(
            word=word or "", step=int(step), epoch=int(epoch), world=int(world), loss=float(loss) if loss else None
        )
    found = _ACCURACY.search(text)
    return LineSeen(accuracy=float(found[1])) if found else None


def parse_job(job: dict[str, Any]) -> JobSeen:
    """Parses an ElasticJob as kubectl prints it."""
    status = job.get("status", {})
    progress = status.get("progress", {})
    conditions = {each["type"]: each for each in status.get("conditions", []) if each["status"] == "True"}
    failed = conditions.get("Failed")
    accuracy = progress.get("metrics", {}).get("accuracy")
    return JobSeen(
        ready=status.get("readyReplicas", 0),
        wanted=job["spec"]["workers"].get("replicas", 1),
        world=status.get("worldSize", 0),
        group=status.get("round", 0),
        step=progress.get("step"),
        accuracy=float(accuracy) if accuracy is not None else None,
        succeeded="Succeeded" in conditions,
        failed=f"{failed.get('reason', '')}: {failed.get('message', '')}" if failed else "",
    )
