"""The transitions of one agent to new rounds, one after the other: times go in, event records come out. Pure.

`transition` describes one transition and its phases. Times are Unix time, s.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticjob_runtime.telemetry.transition import PHASES, Cause, EventRecord, Transition, TransitionEnd


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
