"""One transition to a new round, as one agent observes it: its cause, its phases, and what is written of it. Pure.

A transition begins with its cause and ends with the first step of the new round. Its phases, in the usual order (stop
and plan overlap):

    detect      cause -> this agent knows (of causes other than its own start)
    stop        this agent starts to stop the old workers -> they are gone
    plan        this agent knows the cause -> it has seen the new plan
    fork        start -> all local workers run the script
    connect     -> all local workers have their process group
    interrupt   the plan is sent to workers that continue in place -> all local ones have left their world
    form        -> all local workers have the process group of the new world
    agree       -> all have the same state
    restore     a checkpoint is read
    first-step  -> a local worker has done its first step

Unknown phases are left out, or None in the summary; nothing is guessed. Times are Unix time, s. The event log calls a
transition a `change`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from elasticjob_runtime.contract import PlanReason, TransitionValue

PHASES = ("detect", "stop", "plan", "fork", "connect", "interrupt", "form", "agree", "restore", "first-step")


class Cause(str, enum.Enum):
    """The values of PlanReason, and one that only heartbeats reveal."""

    START = "Start"
    WORKER_FAILED = "WorkerFailed"
    MEMBER_LOST = "MemberLost"
    MEMBER_SILENT = "MemberSilent"
    MEMBER_LEFT = "MemberLeft"
    MEMBER_JOINED = "MemberJoined"
    RESIZED = "Resized"


class TransitionEnd(str, enum.Enum):
    """How a transition ended for this agent."""

    TRAINED = "trained"
    """The new round did its first step, or this agent is a spare in it."""
    SUPERSEDED = "superseded"
    """The next transition came first, or no step is ever reported: a spawned script without report_progress."""
    FALSE_ALARM = "false-alarm"
    """The silent member responds again."""
    OVER = "over"
    """The job or this agent ended."""


EventRecord = tuple[str, float, dict[str, Any]]
"""(event, Unix time, fields)."""


@dataclasses.dataclass(slots=True)
class Transition:
    """Times are Unix time, s."""

    number: int
    cause: Cause
    caused_at: float | None
    known_at: float
    round: int | None = None
    began: dict[str, float] = dataclasses.field(default_factory=dict)
    ended: dict[str, float] = dataclasses.field(default_factory=dict)
    step: int | None = None
    last_step: int | None = None
    """The last step that a local worker reported before this transition."""

    @property
    def zero(self) -> float:
        return self.known_at if self.caused_at is None else min(self.caused_at, self.known_at)

    def phase(self, name: str) -> dict[str, float] | None:
        """{"since": s from the cause to the end of the phase, "seconds": its duration}; None if unknown."""
        end = self.ended.get(name)
        if end is None:
            return None
        begin = self.began.get(name, self._before(name))
        return {"since": round(max(0.0, end - self.zero), 4), "seconds": round(max(0.0, end - begin), 4)}

    def _before(self, name: str) -> float:
        """The end of the last known phase before this one."""
        earlier = [self.ended[phase] for phase in PHASES[: PHASES.index(name)] if phase in self.ended]
        return max(earlier, default=self.zero)

    @property
    def head(self) -> dict[str, Any]:
        """The fields that all its records begin with."""
        return {"change": self.number, "cause": self.cause.value, "round": self.round}

    def summary(self, end: TransitionEnd, now: float) -> EventRecord:
        """What is written when it ends."""
        phases: Mapping[str, dict[str, float] | None] = {name: self.phase(name) for name in PHASES}
        return (
            "change",
            now,
            {
                **self.head,
                "end": end.value,
                "caused_at": self.caused_at,
                "step": self.step,
                "steps_lost": self._steps_lost(),
                "phases": phases,
            },
        )

    def _steps_lost(self) -> int | None:
        """Steps that are repeated; None if no step was reported before or after."""
        if self.step is None or self.last_step is None:
            return None
        return max(0, self.last_step - self.step + 1)


def cause_of(reason: PlanReason, *, silent: bool) -> Cause:
    """`silent`: the member was lost because of missed heartbeats, not a closed connection or an expired lease."""
    return Cause.MEMBER_SILENT if reason is PlanReason.MEMBER_LOST and silent else Cause(reason.value)


def transition_value(record: EventRecord) -> TransitionValue | None:
    """What a finished transition is published as; None: the record is another one, or the round has not trained."""
    name, _, fields = record
    if name != "change" or fields["end"] != TransitionEnd.TRAINED or fields["phases"]["first-step"] is None:
        return None
    phases: Mapping[str, dict[str, float] | None] = fields["phases"]
    return TransitionValue(
        round=fields["round"],
        seconds=fields["phases"]["first-step"]["since"],
        phases={name: figures["seconds"] for name, figures in phases.items() if figures is not None},
        step=fields["step"],
        steps_lost=fields["steps_lost"],
    )
