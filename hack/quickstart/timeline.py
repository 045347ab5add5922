"""The quick start's timeline, as pure functions: observations go in; the table and the result come out.

Times are Unix times in seconds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

GOOD_ACCURACY = 0.95


class Kind(enum.Enum):
    """What happens to the job, with the cause that the agents report."""

    START = "Start"
    WORKER_KILLED = "WorkerFailed"
    AGENT_JOINS = "MemberJoined"


@dataclasses.dataclass(frozen=True)
class Change:
    """Something that the quick start did."""

    kind: Kind
    member: str
    """The agent whose worker process was killed, or that joins. Empty: all agents."""
    time: float


@dataclasses.dataclass(frozen=True)
class AgentEvent:
    """A line of an agent's --events file."""

    time: float
    member: str
    event: str
    """The name of a phase (see `PHASES`), or ready, change, failure, exit ..."""
    round: int
    """0: unknown."""
    fields: Mapping[str, Any]

    @property
    def change(self) -> tuple[str, int]:
        """Identifies the change: each agent numbers its own."""
        return self.member, int(self.fields.get("change", 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that was observed."""

    changes: Sequence[Change] = ()
    events: Sequence[AgentEvent] = ()
    steps: Sequence[StepLine] = ()
    """Rank 0's lines, in order."""
    accuracy: float | None = None
    """Accuracy of the trained model."""
    exit_codes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    @property
    def is_finished(self) -> bool:
        """All steps are done."""
        return bool(self.steps) and self.steps[-1].word == "finished"

    def first_step_of(self, kind: Kind) -> AgentEvent | None:
        """The first step after a change of this kind, if it has happened."""
        rounds = {
            event.round for event in self.events if event.event == "plan" and event.fields.get("cause") == kind.value
        }
        return next((event for event in self.events if event.event == "first-step" and event.round in rounds), None)


@dataclasses.dataclass(frozen=True)
class StepLine:
    """A line that rank 0 of the example printed."""

    round: int
    step: int
    world: int
    word: str = ""
    """started, resumed, finished, or empty for an ordinary step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One change. Times are in milliseconds; None: not observed."""

    what: str
    world: int | None = None
    phases: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Phase -> time from the change to its end: on the first agent for `_FIRST`, on the last one for the others."""
    paused: float | None = None
    """From the end of the old worker processes (the stop, or the death of the first) to the first step of the new
    ones."""
    steps_lost: int | None = None
    """Steps that are trained again."""
    warm_up: float | None = None
    """Time that a joining agent needs until it is ready. The others continue to train."""


_STEP = re.compile(r"(?:\b(started|resumed|finished) )?\bstep=(\d+) epoch=\d+ world=(\d+)")
_ACCURACY = re.compile(r"^accuracy=([0-9.]+)")


def parse_event(line: str) -> AgentEvent | None:
    """Returns None if the line is incomplete."""
    try:
        found: dict[str, Any] = json.loads(line)
        time, member, event = float(found.pop("time")), str(found.pop("member")), str(found.pop("event"))
        name = str(found.pop("phase")) if event == "phase" else event
        return AgentEvent(time, member, name, int(found.pop("round", 0) or 0), found)
    except (ValueError, KeyError, AttributeError):
        return None


def parse_output(round_number: int, line: str) -> StepLine | float | None:
    """Parses a line that a worker process of this round wrote: a step, an accuracy, or None for anything else.

    >>> parse_output(2, "resumed step=120 epoch=5 world=3")
    StepLine(round=2, step=120, world=3, word='resumed')
    """
    if found := _STEP.search(line):
        return StepLine(round_number, int(found[2]), int(found[3]), found[1] or "")
    if found := _ACCURACY.search(line):
        return float(found[1])
    return None


def rows(seen: Seen) -> list[Row]:
    """One row per change, in order."""
    return [_row(seen, change) for change in seen.changes]


PHASES = ("detect", "stop", "plan", "fork", "connect", "interrupt", "form", "agree", "restore", "first-step")

_FIRST = ("detect", "plan", "first-step")
"""Phases that count as complete with the first agent; the others need all agents."""


def _row(seen: Seen, change: Change) -> Row:
    plans = [
        e
        for e in seen.events
        if e.event == "plan" and e.fields.get("cause") == change.kind.value and e.time >= change.time
    ]
    if not plans:
        return Row(what=_what(change))
    round_number = min(plans, key=lambda event: event.time).round
    since = _since(seen, change)
    phases = _phases(seen, round_number)
    begun = [
        event.time - float(event.fields.get("seconds", 0.0))
        for event in _of(seen, round_number)
        if event.event == "stop"
    ]
    stopped = change.time if change.kind is Kind.WORKER_KILLED else min(begun, default=None)
    return Row(
        what=_what(change),
        world=next((line.world for line in seen.steps if line.round == round_number), None),
        phases={name: (time - since) * 1000 for name, time in phases.items()} if since is not None else {},
        paused=_ms(None if change.kind is Kind.START else stopped, phases.get("first-step")),
        steps_lost=_steps_lost(seen.steps, round_number),
        warm_up=_ms(change.time, since) if change.kind is Kind.AGENT_JOINS else None,
    )


def _of(seen: Seen, round_number: int) -> list[AgentEvent]:
    """The phases of the change to this round, including those before its plan."""
    changes = {event.change for event in seen.events if event.event == "plan" and event.round == round_number}
    return [event for event in seen.events if event.event in PHASES and event.change in changes]


def _phases(seen: Seen, round_number: int) -> dict[str, float]:
    """Phase -> time at which it was complete."""
    found: dict[str, float] = {}
    for event in _of(seen, round_number):
        best = min if event.event in _FIRST else max
        found[event.event] = best(event.time, found.get(event.event, event.time))
    return {name: found[name] for name in PHASES if name in found}


def _since(seen: Seen, change: Change) -> float | None:
    """When a change starts to affect the others. A joining agent does not until it is ready to start worker
    processes."""
    return _ready(seen).get(change.member) if change.kind is Kind.AGENT_JOINS else change.time


def _ready(seen: Seen) -> dict[str, float]:
    return {event.member: event.time for event in seen.events if event.event == "ready"}


def _what(change: Change) -> str:
    if change.kind is Kind.START:
        return "all agents started"
    return (
        f"{change.member}'s process killed" if change.kind is Kind.WORKER_KILLED else f"{change.member} ready to join"
    )


def _steps_lost(steps: Sequence[StepLine], round_number: int) -> int | None:
    """Number of steps that were trained before this round and are trained again in it."""
    begun = next(
        (line.step for line in steps if line.round == round_number and line.word in ("started", "resumed")), None
    )
    if begun is None:
        return None
    return max(0, max((line.step for line in steps if line.round < round_number), default=0) - begun)


def _ms(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else (until - since) * 1000


def problem(seen: Seen, workers: int) -> str:
    """Why the quick start failed; empty if it succeeded. `workers`: expected worker processes at the end."""
    for member, code in seen.exit_codes.items():
        if code:
            return f"{member} exited with {code}"
    for row in rows(seen):
        if "first-step" not in row.phases:
            return (
                f"{row.what}, but training did not resume before the time was up or all steps were done. If the "
                "machine is busy, use more steps: .venv/bin/python -m hack.quickstart --steps 2000 --time-limit 600"
            )
    kinds = {change.kind for change in seen.changes}
    if kinds != set(Kind):
        return (
            "training finished too early; this did not happen: "
            f"{', '.join(sorted(kind.name for kind in set(Kind) - kinds))}"
        )
    if not seen.is_finished or seen.accuracy is None:
        return "training did not finish in time"
    if seen.steps[-1].world != workers:
        return f"{seen.steps[-1].world} worker processes were training at the end, not {workers}"
    if seen.accuracy < GOOD_ACCURACY:
        return f"accuracy {seen.accuracy:.4f} is below {GOOD_ACCURACY}"
    return ""
