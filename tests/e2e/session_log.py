"""What the session example prints: which process trains in which world, and each step."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re


@dataclasses.dataclass(frozen=True)
class Entered:
    """A process of the session example has entered a world."""

    pid: int
    rank: int
    workers: int
    step: int


def entered(log: str) -> list[Entered]:
    """By one worker pod, in order."""
    found = re.findall(r"^pid=(\d+) rank=(\d+) trains with (\d+) workers after step=(\d+)$", log, re.MULTILINE)
    return [Entered(*map(int, numbers)) for numbers in found]


def steps_of(log: str) -> list[int]:
    """The steps that the leader printed, in order."""
    return [int(step) for step in re.findall(r"^step=(\d+) ", log, re.MULTILINE)]


def longest_pause(log: str) -> float:
    """Seconds, at most, between two steps in a log with timestamps (`kubectl logs --timestamps`)."""
    moments = [datetime.datetime.fromisoformat(at) for at in re.findall(r"^(\S{26})\S*Z step=", log, re.MULTILINE)]
    return max(((later - earlier).total_seconds() for earlier, later in itertools.pairwise(moments)), default=0.0)
