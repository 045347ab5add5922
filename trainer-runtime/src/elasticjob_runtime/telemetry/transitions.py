"""The transitions of one agent to new rounds, one after the other: times go in, event records come out. Pure.

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """What a worker reported about its start or its training."""

    rank: int
    round: int
    """0: unknown."""
    at: float
    """Unix time, s."""
    phase: str
    """One of PHASES that a worker sees, or checkpoint; `step`: a step is done; `pause`: expect no step for a while."""
    began: float | None = None
    step: int | None = None
    seconds: float = 0.0
    """Of a pause."""
    why: str = ""
    """Of a pause."""


_LAST_OF_ALL = ("interrupt", "form", "agree", "restore")
"""Phases that some local workers may not have: they end with the last report."""

STEP_NUMBER_SECONDS = 1.0
"""s after the first step to wait for a worker to report its number. After that, the summary is written without."""


class Transitions:
    """The transitions of one agent, one after the other. Each method returns the records to write."""

    def __init__(self) -> None:
        self._count = 0
        self._open: Transition | None = None
        self._last_step: int | None = None
        self._forking = False
        self._workers = 1
        self._reports: dict[str, set[int]] = {}

    @property
    def due(self) -> float | None:
        """Unix time of the next `tick` that has something to do."""
        transition = self._open
        done = transition.ended.get("first-step") if transition is not None else None
        return None if done is None else done + STEP_NUMBER_SECONDS

    def tick(self, now: float) -> list[EventRecord]:
        return self._close(TransitionEnd.TRAINED, now) if self.due is not None and now >= self.due else []

    def caused(self, cause: Cause, caused_at: float | None, now: float) -> list[EventRecord]:
        """This agent has learned of a cause. The first one counts until the plan names it."""
        if self._open is not None and self._open.round is None:
            return []
        return [*self._supersede(now), *self._begin(cause, caused_at, now)]

    def dismissed(self, now: float) -> list[EventRecord]:
        """The silent member responds again, before a plan left it out."""
        transition = self._open
        if (
            transition is None
            or transition.round is not None
            or transition.cause not in (Cause.MEMBER_LOST, Cause.MEMBER_SILENT)
        ):
            return []
        return self._close(TransitionEnd.FALSE_ALARM, now)

    def stopping(self, now: float) -> list[EventRecord]:
        if self._open is not None:
            self._open.began.setdefault("stop", now)
        return []

    def stopped(self, now: float) -> list[EventRecord]:
        return self._finished("stop", now)

    def planned(
        self, round_number: int, cause: Cause, caused_at: float | None, now: float, **fields: Any
    ) -> list[EventRecord]:
        """This agent has seen a new plan, whose cause takes precedence over what this agent assumed."""
        records: list[EventRecord] = []
        if self._open is None or self._open.round is not None:
            records = [*self._supersede(now), *self._begin(cause, caused_at, now)]
        transition = self._open
        assert transition is not None
        if transition.cause is Cause.START is not cause and caused_at is not None:
            # A joiner: its warm-up is not part of the transition.
            transition.known_at = max(transition.known_at, caused_at)
        transition.round, transition.cause = round_number, cause
        transition.caused_at = caused_at if caused_at is not None else transition.caused_at
        if transition.caused_at is not None and cause is not Cause.START:
            transition.ended["detect"] = transition.known_at
        transition.began["plan"] = transition.known_at
        return [*records, *self._finished("plan", now, **fields)]

    def spare(self, now: float) -> list[EventRecord]:
        """The plan does not include this agent, and its workers have ended."""
        transition = self._open
        return (
            self._close(TransitionEnd.TRAINED, now) if transition is not None and transition.round is not None else []
        )

    def starting(self, workers: int, now: float) -> list[EventRecord]:
        """`workers`: how many local workers are being started."""
        self._workers, self._forking = workers, True
        self._reports = {}
        if self._open is not None:
            self._open.began.setdefault("fork", now)
        return []

    def moving(self, now: float) -> list[EventRecord]:
        """The local workers continue in place."""
        records = self.starting(self._workers, now)
        if self._open is not None:
            self._open.began.pop("fork", None)
            self._open.began["interrupt"] = now
        return records

    def started(self, now: float) -> list[EventRecord]:
        """All workers were spawned, so they do not report `fork` themselves."""
        return self._finished("fork", now)

    def reported(
        self, phase: str, local_rank: int, at: float, *, began: float | None = None, step: int | None = None
    ) -> list[EventRecord]:
        """A worker has finished a phase."""
        transition = self._open
        if transition is None or not self._forking:
            return []
        if phase == "first-step":
            return self._stepped(at, step)
        if "first-step" in transition.ended or phase not in PHASES:
            return []
        if phase in _LAST_OF_ALL:
            if began is not None:
                transition.began[phase] = min(began, transition.began.get(phase, began))
            return self._finished(phase, at, again=True, step=step)
        there = self._reports.setdefault(phase, set())
        there.add(local_rank)
        return self._finished(phase, at) if len(there) == self._workers else []

    def progressed(self, step: int, at: float) -> list[EventRecord]:
        """A local worker has reported the number of a finished step."""
        records = self._stepped(at, step)
        transition = self._open
        if transition is not None and transition.step is None and "first-step" in transition.ended:
            transition.step = step
            transition.last_step = self._last_step
            records = [*records, *self._close(TransitionEnd.TRAINED, at)]
        self._last_step = step
        return records

    def closed(self, now: float) -> list[EventRecord]:
        """The job or this agent ended."""
        return self._close(TransitionEnd.OVER, now)

    def _begin(self, cause: Cause, caused_at: float | None, now: float) -> list[EventRecord]:
        self._count += 1
        self._open = Transition(self._count, cause, caused_at, now)
        self._forking = False
        return self._finished("detect", now) if caused_at is not None and cause is not Cause.START else []

    def _stepped(self, at: float, step: int | None) -> list[EventRecord]:
        if self._open is None or not self._forking:
            return []
        return self._finished("first-step", at, step=step)

    def _finished(self, phase: str, at: float, *, again: bool = False, **fields: Any) -> list[EventRecord]:
        transition = self._open
        if (
            transition is None
            or (phase in transition.ended and not again)
            or (phase == "stop" and "stop" not in transition.began)
        ):
            return []
        transition.ended[phase] = max(at, transition.ended.get(phase, at))
        known = {name: value for name, value in fields.items() if value is not None}
        return [("phase", at, {**transition.head, "phase": phase, **(transition.phase(phase) or {}), **known})]

    def _supersede(self, now: float) -> list[EventRecord]:
        transition = self._open
        trained = transition is not None and "first-step" in transition.ended
        return self._close(TransitionEnd.TRAINED if trained else TransitionEnd.SUPERSEDED, now)

    def _close(self, end: TransitionEnd, now: float) -> list[EventRecord]:
        transition, self._open = self._open, None
        if transition is None:
            return []
        return [transition.summary(end, now)]


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
