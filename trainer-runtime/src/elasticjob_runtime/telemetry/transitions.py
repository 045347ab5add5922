"""The phases of every change of the world, as one agent lives through them. Pure: moments go in, records for the
timeline come out.

A change begins with its cause and ends with the first step of the new world. Its phases, in the usual order (stop and
plan overlap):

    detect      cause -> this agent knows (not of its own start)
    stop        first word to stop -> the old workers are gone
    plan        this agent knows -> it has seen the new plan
    fork        start -> all local workers run the script
    connect     -> all local workers have their process group
    restore     a checkpoint is being read
    first-step  -> the first step of a local worker is done

What is not known is left out of the phases, or None in the summary; nothing is guessed. Times are Unix time, s.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from elasticjob_runtime.contract import PlanReason

PHASES = ("detect", "stop", "plan", "fork", "connect", "restore", "first-step")

STEP_NUMBER_SECONDS = 1.0
"""s after the first step within which a worker may still tell its number; then the summary goes without."""


class Cause(str, enum.Enum):
    """PlanReason's words, and one for what only heartbeats tell."""

    START = "Start"
    WORKER_FAILED = "WorkerFailed"
    MEMBER_LOST = "MemberLost"
    MEMBER_SILENT = "MemberSilent"
    MEMBER_LEFT = "MemberLeft"
    MEMBER_JOINED = "MemberJoined"
    RESIZED = "Resized"


class End(str, enum.Enum):
    """How a change ended for this agent."""

    TRAINED = "trained"
    """The new world did its first step, or this agent is a spare of it."""
    SUPERSEDED = "superseded"
    """The next change came first (or no step is ever told: a script that reports nothing, spawned)."""
    FALSE_ALARM = "false-alarm"
    """The member that fell silent is heard again."""
    OVER = "over"
    """The job or this agent ended."""


Record = tuple[str, float, dict[str, Any]]
"""(event, Unix time, fields)."""


@dataclasses.dataclass(slots=True)
class _Change:
    number: int
    cause: Cause
    caused_at: float | None
    known_at: float
    round: int | None = None
    begun: dict[str, float] = dataclasses.field(default_factory=dict)
    ended: dict[str, float] = dataclasses.field(default_factory=dict)
    step: int | None = None
    last_step: int | None = None
    """The last step that a local worker told before this change."""

    @property
    def zero(self) -> float:
        return self.known_at if self.caused_at is None else min(self.caused_at, self.known_at)

    def phase(self, name: str) -> dict[str, float] | None:
        """{"since": s from the cause to its end, "seconds": it took}; None: not known."""
        end = self.ended.get(name)
        if end is None:
            return None
        begin = self.begun.get(name, self._before(name))
        return {"since": round(max(0.0, end - self.zero), 4), "seconds": round(max(0.0, end - begin), 4)}

    def _before(self, name: str) -> float:
        """The end of the known phase before this one."""
        earlier = [self.ended[phase] for phase in PHASES[: PHASES.index(name)] if phase in self.ended]
        return max(earlier, default=self.zero)


class Transitions:
    """One agent's changes, one after the other. Each method returns what there is to tell."""

    def __init__(self) -> None:
        self._count = 0
        self._open: _Change | None = None
        self._last_step: int | None = None
        self._forking = False
        self._workers = 1
        self._reports: dict[str, set[int]] = {}

    @property
    def due(self) -> float | None:
        """When `tick` has something to tell."""
        change = self._open
        done = change.ended.get("first-step") if change is not None else None
        return None if done is None else done + STEP_NUMBER_SECONDS

    def tick(self, now: float) -> list[Record]:
        return self._close(End.TRAINED, now) if self.due is not None and now >= self.due else []

    def caused(self, cause: Cause, caused_at: float | None, now: float) -> list[Record]:
        """This agent knows of a reason for a change. The first one that is known counts, until the plan tells."""
        if self._open is not None and self._open.round is None:
            return []
        return [*self._supersede(now), *self._begin(cause, caused_at, now)]

    def dismissed(self, now: float) -> list[Record]:
        """Whoever fell silent is heard again, before anybody planned without it."""
        change = self._open
        if change is None or change.round is not None or change.cause not in (Cause.MEMBER_LOST, Cause.MEMBER_SILENT):
            return []
        return self._close(End.FALSE_ALARM, now)

    def stopping(self, now: float) -> list[Record]:
        if self._open is not None:
            self._open.begun.setdefault("stop", now)
        return []

    def stopped(self, now: float) -> list[Record]:
        return self._told("stop", now)

    def planned(
        self, round_number: int, cause: Cause, caused_at: float | None, now: float, **fields: Any
    ) -> list[Record]:
        """This agent has seen a new plan. What it says of the cause goes before what this agent thought."""
        records: list[Record] = []
        if self._open is None or self._open.round is not None:
            records = [*self._supersede(now), *self._begin(cause, caused_at, now)]
        change = self._open
        assert change is not None
        if (
            change.cause is Cause.START is not cause and caused_at is not None
        ):  # a newcomer: its warming up was nobody's business
            change.known_at = max(change.known_at, caused_at)
        change.round, change.cause = round_number, cause
        change.caused_at = caused_at if caused_at is not None else change.caused_at
        if change.caused_at is not None and cause is not Cause.START:
            change.ended["detect"] = change.known_at
        change.begun["plan"] = change.known_at
        return [*records, *self._told("plan", now, **fields)]

    def spare(self, now: float) -> list[Record]:
        """The plan has no place for this agent, and nothing of it runs any more."""
        change = self._open
        return self._close(End.TRAINED, now) if change is not None and change.round is not None else []

    def starting(self, workers: int, now: float) -> list[Record]:
        """`workers`: how many are being started."""
        self._workers, self._forking = workers, True
        self._reports = {}
        if self._open is not None:
            self._open.begun.setdefault("fork", now)
        return []

    def started(self, now: float) -> list[Record]:
        """All workers are new programs, which tell nothing of themselves."""
        return self._told("fork", now)

    def reported(
        self, phase: str, local_rank: int, at: float, *, began: float | None = None, step: int | None = None
    ) -> list[Record]:
        """A worker says that it is through `phase`: `fork`, `connect`, `restore` or `first-step`."""
        change = self._open
        if change is None or not self._forking:
            return []
        if phase == "first-step":
            return self._stepped(at, step)
        if "first-step" in change.ended or phase not in PHASES:
            return []
        if phase == "restore":
            if began is not None:
                change.begun[phase] = min(began, change.begun.get(phase, began))
            return self._told(phase, at, again=True, step=step)
        there = self._reports.setdefault(phase, set())
        there.add(local_rank)
        return self._told(phase, at) if len(there) == self._workers else []

    def progressed(self, step: int, at: float) -> list[Record]:
        """A local worker told the number of a step that it has done."""
        records = self._stepped(at, step)
        change = self._open
        if change is not None and change.step is None and "first-step" in change.ended:
            change.step = step
            change.last_step = self._last_step
            records = [*records, *self._close(End.TRAINED, at)]
        self._last_step = step
        return records

    def closed(self, now: float) -> list[Record]:
        """The job or this agent ended."""
        return self._close(End.OVER, now)

    def _begin(self, cause: Cause, caused_at: float | None, now: float) -> list[Record]:
        self._count += 1
        self._open = _Change(self._count, cause, caused_at, now)
        self._forking = False
        return self._told("detect", now) if caused_at is not None and cause is not Cause.START else []

    def _stepped(self, at: float, step: int | None) -> list[Record]:
        if self._open is None or not self._forking:
            return []
        return self._told("first-step", at, step=step)

    def _told(self, phase: str, at: float, *, again: bool = False, **fields: Any) -> list[Record]:
        change = self._open
        if change is None or (phase in change.ended and not again) or (phase == "stop" and "stop" not in change.begun):
            return []
        change.ended[phase] = max(at, change.ended.get(phase, at))
        known = {name: value for name, value in fields.items() if value is not None}
        return [("phase", at, {**_head(change), "phase": phase, **(change.phase(phase) or {}), **known})]

    def _supersede(self, now: float) -> list[Record]:
        change = self._open
        trained = change is not None and "first-step" in change.ended
        return self._close(End.TRAINED if trained else End.SUPERSEDED, now)

    def _close(self, end: End, now: float) -> list[Record]:
        change, self._open = self._open, None
        if change is None:
            return []
        phases: Mapping[str, dict[str, float] | None] = {name: change.phase(name) for name in PHASES}
        return [
            (
                "change",
                now,
                {
                    **_head(change),
                    "end": end.value,
                    "caused_at": change.caused_at,
                    "steps_lost": _steps_lost(change),
                    "phases": phases,
                },
            )
        ]


def cause_of(reason: PlanReason, *, silent: bool) -> Cause:
    """`silent`: the lost member was given up for its silence, not for a closed connection or an expired lease."""
    return Cause.MEMBER_SILENT if reason is PlanReason.MEMBER_LOST and silent else Cause(reason.value)


def _head(change: _Change) -> dict[str, Any]:
    return {"change": change.number, "cause": change.cause.value, "round": change.round}


def _steps_lost(change: _Change) -> int | None:
    """Steps done again; None where no step was told before or after."""
    if change.step is None or change.last_step is None:
        return None
    return max(0, change.last_step - change.step + 1)
