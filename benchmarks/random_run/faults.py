"""What happens next in a random run. Pure."""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Sequence

MOST = 5
"""Agents at a time: four train, and one is a spare."""
LEAST = 2


class Kind(enum.Enum):
    KILL = "a worker process is killed"
    TWO = "two worker processes are killed at once"
    NODE = "an agent is killed with its worker process, and another one starts"
    LEAVE = "a member leaves (SIGTERM)"
    FREEZE = "a worker process is frozen (SIGSTOP)"
    JOIN = "a member joins"
    SUSPEND = "all members leave (SIGTERM), and others continue from storage"


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: Kind
    members: tuple[str, ...] = ()
    """Those that it happens to."""


def draw(chance: random.Random, *, healthy: Sequence[str], frozen: bool, agents: int) -> Fault | None:
    """None: nothing can happen that the training must survive.

    healthy: members that take part in the training, and of which one must remain: it has the state. frozen: whether a
    worker process is frozen now; it is found at the next change. agents: that run, spares and joiners included.
    """
    spare = len(healthy) - 1
    possible = [
        *([Kind.KILL, Kind.NODE] if spare >= 1 else []),
        *([Kind.TWO] if spare >= 2 else []),
        *([Kind.LEAVE] if spare >= 1 and agents > LEAST else []),
        *([Kind.FREEZE] if spare >= 1 and not frozen else []),
        *([Kind.JOIN, Kind.JOIN] if agents < MOST else []),  # as often as members leave
        *([Kind.SUSPEND] if spare >= 0 and not frozen else []),
    ]
    if not possible:
        return None
    kind = chance.choice(possible)
    count = {Kind.JOIN: 0, Kind.SUSPEND: 0, Kind.TWO: 2}.get(kind, 1)
    return Fault(kind, tuple(chance.sample(sorted(healthy), count)))
