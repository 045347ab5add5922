"""What the state machine of a worker group (state_machine.py) asks the group to do. Pure. Processes are known by their
local rank."""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.membership.view import Plan


@dataclasses.dataclass(frozen=True, slots=True)
class StartProcesses:
    plan: Plan
    local_ranks: tuple[int, ...]
    alone: bool
    """Each in a world of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class CancelStarts:
    """Drop the starts that are under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class SendPlan:
    """Tell a process the plan under which it continues, or that it is not in it."""

    local_rank: int
    plan: Plan
    step_grace: float


@dataclasses.dataclass(frozen=True, slots=True)
class SendEnd:
    """Tell a process that its world is the last one, and ends at the end of the step."""

    local_rank: int
    plan: Plan
    saves: bool
    """It saves for all."""


@dataclasses.dataclass(frozen=True, slots=True)
class AskToSave:
    rank: int
    seconds: float
    """Until it is killed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signal:
    number: int
    local_ranks: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestStacks:
    """Ask processes to write the stacks of their threads."""

    local_ranks: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class GiveUp:
    """Kill a process; its end is this failure."""

    local_rank: int
    reason: str
    message: str


Effect = StartProcesses | CancelStarts | SendPlan | SendEnd | AskToSave | Signal | RequestStacks | GiveUp
