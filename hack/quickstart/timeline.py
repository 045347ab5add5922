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
    """What happens to the job."""

    START = "Start"
    WORKER_KILLED = "WorkerFailed"
    REPLACEMENT_JOINS = "ReplacementJoined"
    """With a session, the others continue before the replacement of the killed process is ready."""
    AGENT_JOINS = "MemberJoined"

    @property
    def cause(self) -> str:
        """As agents report it."""
        return Kind.AGENT_JOINS.value if self is Kind.REPLACEMENT_JOINS else self.value


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
    is_session: bool = False
    """The script has an ElasticSession: its processes continue in place."""
    pids: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Agent -> its worker processes, in order, as a script with a session prints them."""

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
            event.round for event in self.events if event.event == "plan" and event.fields.get("cause") == kind.cause
        }
        return next((event for event in self.events if event.event == "first-step" and event.round in rounds), None)


@dataclasses.dataclass(frozen=True)
class StepLine:
    """A line that rank 0 of the example printed."""

    round: int
    step: int
    world: int
    """0: the line does not say."""
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


_STEP = re.compile(
    r"^(?:(started|resumed|finished) )?step=(\d+) (?:epoch=\d+(?: world=(\d+))?|with (\d+) workers)", re.MULTILINE
)
_PID = re.compile(r"^pid=(\d+) ")
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


@dataclasses.dataclass(frozen=True)
class ProcessLine:
    """A worker process has printed its process ID."""

    pid: int


def parse_output(round_number: int, line: str) -> StepLine | ProcessLine | float | None:
    """Parses a line that a worker process started in this round wrote: a step, a process ID, an accuracy, or None for
    anything else.

    >>> parse_output(2, "resumed step=120 epoch=5 world=3")
    StepLine(round=2, step=120, world=3, word='resumed')
    """
    if found := _STEP.search(line):
        return StepLine(round_number, int(found[2]), int(found[3] or found[4] or 0), found[1] or "")
    if found := _PID.match(line):
        return ProcessLine(int(found[1]))
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
        if e.event == "plan" and e.fields.get("cause") == change.kind.cause and e.time >= change.time
    ]
    if not plans:
        return Row(what=_what(change))
    plan = min(plans, key=lambda event: event.time)
    round_number = plan.round
    since = _since(seen, change, plan)
    # A joiner with a session has started its process in a world of its own before.
    phases = _phases(seen, round_number, since if seen.is_session and since is not None else 0.0)
    begun = [
        event.time - float(event.fields.get("seconds", 0.0))
        for event in _of(seen, round_number)
        if event.event in ("stop", "interrupt")
    ]
    stopped = change.time if change.kind is Kind.WORKER_KILLED else min(begun, default=None)
    return Row(
        what=_what(change),
        world=plan.fields.get("world_size")
        or next((line.world for line in seen.steps if line.round == round_number), None),
        phases={name: (time - since) * 1000 for name, time in phases.items()} if since is not None else {},
        paused=_ms(None if change.kind is Kind.START else stopped, phases.get("first-step")),
        steps_lost=_reported_loss(seen, round_number) if seen.is_session else _steps_lost(seen.steps, round_number),
        warm_up=_ms(change.time, since) if change.kind in (Kind.AGENT_JOINS, Kind.REPLACEMENT_JOINS) else None,
    )


def _of(seen: Seen, round_number: int) -> list[AgentEvent]:
    """The phases of the change to this round, including those before its plan."""
    changes = {event.change for event in seen.events if event.event == "plan" and event.round == round_number}
    return [event for event in seen.events if event.event in PHASES and event.change in changes]


def _phases(seen: Seen, round_number: int, after: float) -> dict[str, float]:
    """Phase -> time at which it was complete, of those that ended after a time."""
    found: dict[str, float] = {}
    for event in _of(seen, round_number):
        if event.time < after:
            continue
        best = min if event.event in _FIRST else max
        found[event.event] = best(event.time, found.get(event.event, event.time))
    return {name: found[name] for name in PHASES if name in found}


def _since(seen: Seen, change: Change, plan: AgentEvent) -> float | None:
    """When a change starts to affect the others. A joining agent does not until it is ready to start worker processes,
    or with a session, until they wait for a plan."""
    if seen.is_session and change.kind in (Kind.AGENT_JOINS, Kind.REPLACEMENT_JOINS):
        return plan.time - float(plan.fields.get("since", 0.0))
    return _ready(seen).get(change.member) if change.kind is Kind.AGENT_JOINS else change.time


def _ready(seen: Seen) -> dict[str, float]:
    return {event.member: event.time for event in seen.events if event.event == "ready"}


def _what(change: Change) -> str:
    if change.kind is Kind.START:
        return "all agents started"
    if change.kind is Kind.WORKER_KILLED:
        return f"{change.member}'s process killed"
    replaced = "'s new process" if change.kind is Kind.REPLACEMENT_JOINS else ""
    return f"{change.member}{replaced} ready to join"


def _steps_lost(steps: Sequence[StepLine], round_number: int) -> int | None:
    """Number of steps that were trained before this round and are trained again in it."""
    begun = next(
        (line.step for line in steps if line.round == round_number and line.word in ("started", "resumed")), None
    )
    if begun is None:
        return None
    return max(0, max((line.step for line in steps if line.round < round_number), default=0) - begun)


def _reported_loss(seen: Seen, round_number: int) -> int | None:
    """The largest number of steps that an agent says are taken again in this round."""
    reports = [event for event in seen.events if event.event == "change" and event.round == round_number]
    return max(
        (int(event.fields["steps_lost"] or 0) for event in reports if "steps_lost" in event.fields), default=None
    )


def _ms(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else (until - since) * 1000


def problem(seen: Seen, workers: int) -> str:
    """Why the quick start failed; empty if it succeeded. `workers`: expected worker processes at the end."""
    return _unfinished_change(seen) or (_not_in_place(seen) if seen.is_session else "") or _bad_end(seen, workers)


def _unfinished_change(seen: Seen) -> str:
    for member, code in seen.exit_codes.items():
        if code:
            return f"{member} exited with {code}"
    for row in rows(seen):
        if "first-step" not in row.phases:
            return (
                f"{row.what}, but training did not resume before the time was up or all steps were done. If the "
                "machine is busy, use more steps: .venv/bin/python -m hack.quickstart --steps 2000 --time-limit 600"
            )
    expected = set(Kind) if seen.is_session else set(Kind) - {Kind.REPLACEMENT_JOINS}
    missing = expected - {change.kind for change in seen.changes}
    if missing:
        return f"training finished too early; this did not happen: {', '.join(sorted(kind.name for kind in missing))}"
    return ""


def _not_in_place(seen: Seen) -> str:
    """What restarted or was repeated although the script has a session."""
    killed = {change.member for change in seen.changes if change.kind is Kind.WORKER_KILLED}
    for member, pids in seen.pids.items():
        if member not in killed and len(set(pids)) != 1:
            return f"the worker process of {member} was to continue, but it restarted: {', '.join(map(str, pids))}"
    lost = sum(row.steps_lost or 0 for row in rows(seen))
    return f"{lost} steps were taken again" if lost else ""


def _bad_end(seen: Seen, workers: int) -> str:
    if not seen.is_finished or (seen.accuracy is None and not seen.is_session):
        return "training did not finish in time"
    if seen.steps[-1].world != workers:
        return f"{seen.steps[-1].world} worker processes were training at the end, not {workers}"
    if seen.accuracy is not None and seen.accuracy < GOOD_ACCURACY:
        return f"accuracy {seen.accuracy:.4f} is below {GOOD_ACCURACY}"
    return ""
