"""What the quick start has seen, and whether it shows what it should, as pure functions. Times are Unix times in s."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

GOOD_ACCURACY = 0.95


class Kind(enum.Enum):
    """What happens to the job: the value is the cause that agents report."""

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

    def __str__(self) -> str:
        return {
            Kind.START: "three agents start",
            Kind.WORKER_KILLED: f"{self.member}'s worker process is killed",
            Kind.AGENT_JOINS: f"{self.member} starts",
        }[self.kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """An agent's summary of a change, after which a round has trained."""

    member: str
    time: float
    cause: str
    round: int
    steps_lost: int
    phases: Mapping[str, float]
    """Phase -> milliseconds from the cause to its end."""


@dataclasses.dataclass(frozen=True)
class StepLine:
    """A line that rank 0 of the example printed."""

    step: int
    world: int
    """0: the line does not say."""
    word: str = ""
    """started, resumed, finished, or empty for an ordinary step."""


@dataclasses.dataclass(frozen=True)
class ProcessLine:
    """A worker process has printed its process ID."""

    pid: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that was observed."""

    changes: Sequence[Change] = ()
    trained: Sequence[Trained] = ()
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

    def has_resumed(self, after: Kind) -> bool:
        """Whether a round with all agents has trained since this change. With a session, the others train without the
        agent whose process was killed until its next process joins."""
        last = Kind.AGENT_JOINS if self.is_session and after is Kind.WORKER_KILLED else after
        since = next((change.time for change in self.changes if change.kind is after), float("inf"))
        return any(each.cause == last.value and each.time >= since for each in self.trained)


_STEP = re.compile(r"^(?:(started|resumed|finished) )?step=(\d+) (?:epoch=\d+(?: world=(\d+))?|with (\d+) workers)")
_PID = re.compile(r"^pid=(\d+) ")
_ACCURACY = re.compile(r"^accuracy=([0-9.]+)")


def parse_event(line: str) -> Trained | None:
    """Parses a line of an agent's --events file. None: it is another event, or incomplete."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    if found.get("event") != "change" or found["end"] != "trained":
        return None
    return Trained(
        member=found["member"],
        time=found["time"],
        cause=found["cause"],
        round=found["round"],
        steps_lost=found["steps_lost"] or 0,
        phases={name: each["since"] * 1000 for name, each in found["phases"].items() if each is not None},
    )


def parse_output(line: str) -> StepLine | ProcessLine | float | None:
    """Parses a line that a worker process wrote: a step, a process ID, an accuracy, or None for anything else.

    >>> parse_output("resumed step=120 epoch=5 world=3")
    StepLine(step=120, world=3, word='resumed')
    """
    if found := _STEP.search(line):
        return StepLine(int(found[2]), int(found[3] or found[4] or 0), found[1] or "")
    if found := _PID.match(line):
        return ProcessLine(int(found[1]))
    if found := _ACCURACY.search(line):
        return float(found[1])
    return None


PHASES = {
    "detect": "detect: an agent notices",
    "plan": "plan: an agent sees the new plan",
    "stop": "stop: the old processes have exited",
    "fork": "fork: all processes run the script",
    "connect": "connect: the process group is up",
    "interrupt": "interrupt: the step is interrupted",
    "form": "form: the new process group is up",
    "agree": "agree: all have the same state",
    "restore": "restore: the checkpoint is loaded",
    "first-step": "first step",
}


def table(seen: Seen) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: a column for each round that has trained, in milliseconds from the cause on the last agent."""
    rounds = sorted({each.round for each in seen.trained})
    columns = [[each for each in seen.trained if each.round == number] for number in rounds]
    rows = []
    for phase, what in PHASES.items():
        ends = [
            max((each.phases[phase] for each in column if phase in each.phases), default=None) for column in columns
        ]
        if any(end is not None for end in ends):
            rows.append([what, *("-" if end is None else f"{end:,.0f}" for end in ends)])
    rows.append(["steps lost (a number)", *(str(max(each.steps_lost for each in column)) for column in columns)])
    return ["milliseconds since:", *(column[0].cause for column in columns)], rows


def problem(seen: Seen, workers: int) -> str:
    """Why the quick start failed; empty if it succeeded. `workers`: expected worker processes at the end."""
    return _unfinished_change(seen) or (_not_in_place(seen) if seen.is_session else "") or _bad_end(seen, workers)


def _unfinished_change(seen: Seen) -> str:
    for member, code in seen.exit_codes.items():
        if code:
            return f"{member} exited with {code}"
    for kind in Kind:
        if not seen.has_resumed(kind):
            return (
                f"training did not resume after {kind.value} before the time was up or all steps were done. If the "
                "machine is busy, use more steps: .venv/bin/python -m hack.quickstart --steps 2000 --time-limit 600"
            )
    return ""


def _not_in_place(seen: Seen) -> str:
    """What restarted or was repeated although the script has a session."""
    killed = {change.member for change in seen.changes if change.kind is Kind.WORKER_KILLED}
    for member, pids in seen.pids.items():
        if member not in killed and len(set(pids)) != 1:
            return f"the worker process of {member} was to continue, but it restarted: {', '.join(map(str, pids))}"
    lost = sum(each.steps_lost for each in seen.trained)
    return f"{lost} steps were taken again" if lost else ""


def _bad_end(seen: Seen, workers: int) -> str:
    if not seen.is_finished or (seen.accuracy is None and not seen.is_session):
        return "training did not finish in time"
    if seen.steps[-1].world != workers:
        return f"{seen.steps[-1].world} worker processes were training at the end, not {workers}"
    if seen.accuracy is not None and seen.accuracy < GOOD_ACCURACY:
        return f"accuracy {seen.accuracy:.4f} is below {GOOD_ACCURACY}"
    return ""
