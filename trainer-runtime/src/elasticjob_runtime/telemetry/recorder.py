"""Keeps the chronicle of one agent: compares what it sees with what it saw, and writes phases, failures and metrics.

The agent calls `observe` before every decision, and tells what no state shows. Nothing here influences what the agent
does.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable

from elasticjob_runtime.contract import FailureValue, OutcomeState, OutcomeValue, ProgressValue
from elasticjob_runtime.membership.failures import first_failure
from elasticjob_runtime.membership.view import (
    StoreView,
    Suspicion,
    View,
    Workers,
    WorkersState,
)
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics, State
from elasticjob_runtime.telemetry.report import Report
from elasticjob_runtime.telemetry.transitions import Cause, Record, Transitions, cause_of

logger = logging.getLogger(__name__)

_ALIVE = (WorkersState.RUNNING, WorkersState.STOPPING)


class Recorder:
    """On the agent's loop only. Times in its arguments are monotonic, s; what it writes is Unix time."""

    def __init__(
        self,
        timeline: EventLog,
        metrics: Metrics,
        heartbeats: Heartbeats,
        nproc: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._timeline = timeline
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._nproc = nproc
        self._clock = clock
        self._changes = Transitions()
        self._store = StoreView()
        self._workers = Workers()
        self._warm = False
        self._silent: frozenset[str] = frozenset()
        self._suspicions: dict[tuple[str, str], Suspicion] = {}
        """(suspect, by) -> the last word of the current round; outlives the plan that clears them."""
        self._started = 0
        self._cause = Cause.START
        self._said: FailureValue | None = None
        self._began = clock()
        self._write(self._changes.caused(Cause.START, self._began, self._began))

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `observe` that has something to do."""
        due = self._changes.due
        return None if due is None else time.monotonic() + max(0.0, due - self._clock())

    def observe(self, view: View, now: float) -> None:
        wall = self._clock()
        if view.warm and not self._warm:
            self._warm = True
            self._timeline.event("ready", seconds=round(wall - self._began, 4))
        self._observe_workers(view.workers, wall)
        self._observe_members(view, now, wall)
        self._observe_plan(view.store, wall)
        self._write(self._changes.tick(wall))
        self._store, self._workers = view.store, view.workers
        self._show(view)

    # -- what no view shows

    def leaving(self) -> None:
        wall = self._clock()
        self._write(self._changes.caused(Cause.MEMBER_LEFT, wall, wall))

    def starting(self) -> None:
        """The local workers of the current plan are being started."""
        if self._started:
            self._metrics.restarted(self._cause.value)
        self._started += 1
        self._write(self._changes.starting(self._nproc, self._clock()))

    def started(self) -> None:
        """All local workers run: spawned, so that they tell nothing themselves."""
        self._write(self._changes.started(self._clock()))

    def reported(self, report: Report) -> None:
        """A worker of the current round said something."""
        local_rank = report.rank % self._nproc
        if report.phase == "step":
            if report.step is not None:
                self._write(self._changes.progressed(report.step, report.at))
        else:
            self._write(
                self._changes.reported(report.phase, local_rank, report.at, began=report.began, step=report.step)
            )

    def progressed(self, progress: ProgressValue) -> None:
        """Rank 0's word."""
        self._metrics.step = progress.step
        self._metrics.steps_per_second = progress.steps_per_second
        self._metrics.last_checkpoint_step = progress.last_checkpoint_step

    def store_trouble(self, trouble: str) -> None:
        """Empty: it answers."""
        self._metrics.store_up = not trouble
        self._timeline.event("store", up=not trouble, error=trouble)

    def close(self, code: int, reason: str, outcome: OutcomeValue | None) -> None:
        self._write(self._changes.closed(self._clock()))
        if outcome is not None and outcome.state is OutcomeState.FAILED and outcome.failure:
            known = {field.name for field in dataclasses.fields(FailureValue)}
            self._tell_failure(
                FailureValue(**{name: value for name, value in outcome.failure.items() if name in known}), "job"
            )
        self._timeline.event("exit", code=int(code), reason=reason, outcome=outcome.state.value if outcome else None)

    # -- comparisons

    def _observe_workers(self, workers: Workers, wall: float) -> None:
        before = self._workers
        if workers.failure is not None and workers.failure is not before.failure:
            self._tell_failure(workers.failure, "member")
            self._write(self._changes.caused(Cause.WORKER_FAILED, workers.failure.time or None, wall))
        if workers.round != before.round or workers.state is before.state:
            return
        if before.state is WorkersState.RUNNING and workers.state is not WorkersState.SUCCEEDED:
            self._write(self._changes.stopping(wall))
        if before.state in _ALIVE and workers.state in (WorkersState.NONE, WorkersState.FAILED):
            self._write(self._changes.stopped(wall))

    def _observe_members(self, view: View, now: float, wall: float) -> None:
        for suspicion in view.store.suspicions:
            value = suspicion.value
            if (value.suspect, value.by) not in self._suspicions:
                self._write(self._changes.caused(_cause(value.closed), value.heard_at or None, wall))
            self._suspicions[value.suspect, value.by] = suspicion
        for name in sorted(view.silent - self._silent):
            heard_at, closed = self._heartbeats.last_heard(name) or (now, True)
            self._metrics.heartbeats_missed += not closed
            self._write(self._changes.caused(_cause(closed), wall - max(0.0, now - heard_at), wall))
        before = self._silent or self._store.suspicions
        if before and not view.silent and not view.store.suspicions and _attempt(view.store) == _attempt(self._store):
            self._write(self._changes.dismissed(wall))
            self._suspicions.clear()
        self._silent = view.silent
        if view.stop is not None and self._store.stop != view.store.stop:
            coming = view.stop.value
            self._write(self._changes.caused(cause_of(coming.reason, silent=False), coming.caused_at or None, wall))
        if view.store.failures and not self._store.failures:
            first = first_failure(view.store.failures)
            self._write(self._changes.caused(Cause.WORKER_FAILED, first.time or None, wall))

    def _observe_plan(self, store: StoreView, wall: float) -> None:
        plan = store.plan
        if plan is None:
            return
        if _attempt(store) != _attempt(self._store):
            value = plan.value
            self._cause = cause_of(value.reason, silent=self._was_silent(value.caused_at))
            if self._store.failures and self._cause is Cause.WORKER_FAILED:
                self._tell_failure(first_failure(self._store.failures), "job")
            self._suspicions.clear()
            if plan.rank is None and not self._started:
                return  # a newcomer or a spare, and the others' business
            rank = plan.rank.group_rank if plan.rank is not None else None
            self._write(
                self._changes.planned(
                    plan.round,
                    self._cause,
                    value.caused_at or None,
                    wall,
                    size=value.size,
                    world_size=value.world_size,
                    restarts=value.restart_count,
                    group_rank=rank,
                    message=value.message,
                )
            )
        if plan.rank is None and self._workers.state not in _ALIVE:
            self._write(self._changes.spare(wall))

    def _was_silent(self, caused_at: float) -> bool:
        """Was the member that this plan lost given up for its silence? By those whose word the planner went by."""
        words = [one.value for one in self._suspicions.values()]
        exact = [word for word in words if word.heard_at == caused_at]
        return bool(words) and not any(word.closed for word in exact or words)

    # -- output

    def _write(self, records: Iterable[Record]) -> None:
        for name, at, fields in records:
            self._timeline.event(name, at, **fields)
            if name == "change":
                self._metrics.changed(fields["cause"], fields["phases"], fields["steps_lost"])
            elif fields["phase"] == "first-step":
                step = f" is {fields['step']}" if "step" in fields else ""
                logger.info(
                    "plan %s: first step%s, %.2f s after %s", fields["round"], step, fields["since"], fields["cause"]
                )

    def _tell_failure(self, failure: FailureValue, scope: str) -> None:
        if scope == "job" and self._said == failure:
            return
        self._said = failure if scope == "job" else self._said
        code = failure.exit_code
        self._timeline.event(
            "failure",
            failure.time or None,
            scope=scope,
            round=failure.round,
            failed_member=failure.member,
            host=failure.host,
            rank=failure.rank,
            local_rank=failure.local_rank,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            reason=failure.reason,
            message=failure.message,
            traceback=failure.traceback,
        )

    def _show(self, view: View) -> None:
        metrics, plan = self._metrics, view.store.plan
        metrics.state = _state(view)
        metrics.round = plan.round if plan else 0
        metrics.world_size = plan.value.world_size if plan else 0
        metrics.rank = plan.rank.group_rank if plan and plan.rank else None


def _cause(closed: bool) -> Cause:
    return Cause.MEMBER_LOST if closed else Cause.MEMBER_SILENT


def _attempt(store: StoreView) -> str:
    return store.plan.value.attempt if store.plan is not None else ""


def _state(view: View) -> State:
    if view.leaving_since is not None:
        return State.LEAVING
    if view.workers.state is WorkersState.STOPPING:
        return State.STOPPING
    if view.workers.state is WorkersState.RUNNING:
        return State.TRAINING
    if not view.warm:
        return State.WARMING
    plan = view.store.plan
    return State.SPARE if plan is not None and plan.rank is None else State.WAITING
