"""What the examples with a session print: which process trains in which world, and each step."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
import statistics


@dataclasses.dataclass(frozen=True)
class Entered:
    """A process has entered a world."""

    pid: int
    replica: int
    """Its place among the replicas; 0 without them."""
    rank: int
    """Within its replica."""
    workers: int
    """Or replicas, if there are any."""
    step: int


def entered(log: str) -> list[Entered]:
    """By one worker pod, in order. Two of its processes may write into one line."""
    pattern = r"pid=(\d+)(?: replica=(\d+))? rank=(\d+) trains with (\d+) (?:workers|replicas) after step=(\d+)"
    return [Entered(*(int(number or 0) for number in found)) for found in re.findall(pattern, log)]


def steps_of(log: str) -> list[int]:
    """The steps that the leader printed, in order."""
    return [int(step) for step in re.findall(r"^step=(\d+) ", log, re.MULTILINE)]


def steps_lost(log: str) -> int:
    """Steps that its process took again after a change. The newest one may have been interrupted before its commit."""
    lost = reached = 0
    for step, committed in re.findall(r"^(?:step=(\d+) |pid=.* after step=(\d+)$)", log, re.MULTILINE):
        lost += max(0, reached - 1 - int(committed)) if committed else 0
        reached = int(step or committed)
    return lost


def pause_above_step(log: str, workers: int) -> tuple[float, float]:
    """(seconds from the last step before this pod entered its newest world of that size to the first one after, in
    addition to a step; seconds of a median step), from a log with timestamps (`kubectl logs --timestamps`)."""
    change = log.rindex(f" trains with {workers} workers ")
    before, after = _moments(log[:change]), _moments(log[change:])
    step = statistics.median(later - earlier for earlier, later in itertools.pairwise(after))
    return after[0] - before[-1] - step, step


def _moments(log: str) -> list[float]:
    """When each step was printed, s (Unix time)."""
    found = re.findall(r"^(\S{26})\S*Z step=", log, re.MULTILINE)
    return [datetime.datetime.fromisoformat(f"{moment}+00:00").timestamp() for moment in found]
