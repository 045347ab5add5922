"""Records what one agent observes: compares each view with the previous one, and writes events, failures and metrics.

The agent calls `observe` before every decision, and other methods for what no view shows. Nothing here influences what
the agent does.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from elasticjob_runtime.contract import (
    FailureValue,
    OutcomeState,
    OutcomeValue,
    ProgressValue,
    Straggler,
    TransitionValue,
    first_failure,
)
from elasticjob_runtime.membership.view import StoreView, Suspicion, View, Workers, WorkersState
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import AgentState, Metrics
from elasticjob_runtime.telemetry.transitions import (
    Cause,
    EventRecord,
    Transitions,
    WorkerReport,
    cause_of,
    transition_value,
)

logger = logging.getLogger(__name__)

_ALIVE = (WorkersState.RUNNING, WorkersState.STOPPING)


class Recorder:
    """Used on the agent's loop only. Times in arguments are monotonic, in s; those it writes are Unix time."""

    def __init__(
        self,
        event_log: EventLog,
        metrics: Metrics,
        heartbeats: Heartbeats,
        nproc: int,
        clock: Callable[[], float] = time.time,
        on_transition: Callable[[TransitionValue], None] = lambda _transition: None,
    ) -> None:
        """`on_transition`: called on rank 0's agent when a round has begun to train."""
        self._event_log = event_log
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._nproc = nproc
        self._clock = clock
        self._on_transition = on_transition
        self._transitions = Transitions()
        self._store = StoreView()
        self._workers = Workers()
        self._warm = False
        self._silent: frozenset[str] = frozenset()
        self._suspicions: dict[tuple[str, str], Suspicion] = {}
        """(suspect, by) -> the last suspicion of the current round, kept beyond the plan that clears it."""
        self._started = 0
        self._cause = Cause.START
        self._reported_failure: FailureValue | None = None
        self._began = clock()
        self._write(self._transitions.caused(Cause.START, self._began, self._began))

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `observe` that has something to do."""
        due = self._transitions.due
        return None if due is None else time.monotonic() + max(0.0, due - self._clock())

    def observe(self, view: View, now: float) -> None:
        wall = self._clock()
        if view.warm and not self._warm:
            self._warm = True
            self._event_log.event("ready", seconds=round(wall - self._began, 4))
        self._observe_workers(view.workers, wall)
        self._observe_members(view, now, wall)
        self._observe_plan(view.store, wall)
        self._write(self._transitions.tick(wall))
        self._store, self._workers = view.store, view.workers
        self._update_metrics(view)

    # -- what no view shows

    def leaving(self) -> None:
        wall = self._clock()
        self._write(self._transitions.caused(Cause.MEMBER_LEFT, wall, wall))

    def starting(self) -> None:
        """The local workers of the current plan are being started."""
        if self._started:
            self._metrics.add_restart(self._cause.value)
        self._started += 1
        self._write(self._transitions.starting(self._nproc, self._clock()))

    def moving(self) -> None:
        """The local workers continue under the current plan."""
        self._write(self._transitions.moving(self._clock()))

    def started(self) -> None:
        """All local workers run. Called only if they were spawned: forked ones report this themselves."""
        self._write(self._transitions.started(self._clock()))

    def reported(self, report: WorkerReport) -> None:
        """Handles a report of a worker of the current round."""
        local_rank = report.rank % self._nproc
        if report.phase == "step":
            if report.step is not None:
                self._write(self._transitions.progressed(report.step, report.at))
        else:
            self._write(
                self._transitions.reported(report.phase, local_rank, report.at, began=report.began, step=report.step)
            )

    def progressed(self, progress: ProgressValue) -> None:
        """Handles a progress report of rank 0."""
        self._metrics.step = progress.step
        self._metrics.steps_per_second = progress.steps_per_second
        self._metrics.last_checkpoint_step = progress.last_checkpoint_step

    def counted(self, steps: int, passes: int, per_second: float) -> None:
        """Handles the optimizer steps of local workers that report no progress, or their backward passes if they take
        none. `per_second`: steps."""
        metrics = self._metrics
        metrics.optimizer_steps, metrics.backward_passes = (steps, None) if steps else (None, passes)
        metrics.steps_per_second = per_second if steps else None

    def paced(self, own_seconds: Mapping[int, float]) -> None:
        """Handles the own time of the local ranks in the last window, s."""
        self._metrics.own_seconds = dict(own_seconds)

    def named_stragglers(self, found: Sequence[Straggler]) -> None:
        """Handles the ranks that are slow now. Called on rank 0's agent."""
        named = [{"rank": one.rank, "member": one.member, "message": one.text} for one in found]
        self._event_log.event("stragglers", round=self._workers.round, stragglers=named)

    def hung(self, text: str, ranks: Sequence[int], *, restarts: bool) -> None:
        """Handles what was found out about a hang."""
        self._event_log.event("hang", round=self._workers.round, ranks=ranks, message=text, restarts=restarts)

    def store_trouble(self, trouble: str) -> None:
        """Empty if the store responds."""
        self._metrics.store_up = not trouble
        self._event_log.event("store", up=not trouble, error=trouble)

    def close(self, code: int, reason: str, outcome: OutcomeValue | None) -> None:
        self._write(self._transitions.closed(self._clock()))
        if outcome is not None and outcome.state is OutcomeState.FAILED and outcome.failure:
            known = {field.name for field in dataclasses.fields(FailureValue)}
            self._write_failure(
                FailureValue(**{name: value for name, value in outcome.failure.items() if name in known}), "job"
            )
        self._event_log.event("exit", code=int(code), reason=reason, outcome=outcome.state.value if outcome else None)

    # -- comparisons

    def _observe_workers(self, workers: Workers, wall: float) -> None:
        before = self._workers
        if workers.failure is not None and workers.failure is not before.failure:
            self._write_failure(workers.failure, "member")
            self._write(self._transitions.caused(Cause.WORKER_FAILED, workers.failure.time or None, wall))
        if workers.round != before.round or workers.state is before.state:
            return
        if before.state is WorkersState.RUNNING and workers.state is not WorkersState.SUCCEEDED:
            self._write(self._transitions.stopping(wall))
        if before.state in _ALIVE and workers.state in (WorkersState.NONE, WorkersState.FAILED):
            self._write(self._transitions.stopped(wall))

    def _observe_members(self, view: View, now: float, wall: float) -> None:
        for suspicion in view.store.suspicions:
            value = suspicion.value
            if (value.suspect, value.by) not in self._suspicions:
                self._write(self._transitions.caused(_cause(value.closed), value.heard_at or None, wall))
            self._suspicions[value.suspect, value.by] = suspicion
        for name in sorted(view.silent - self._silent):
            heard_at, closed = self._heartbeats.last_heartbeat(name) or (now, True)
            self._metrics.heartbeats_missed += not closed
            self._write(self._transitions.caused(_cause(closed), wall - max(0.0, now - heard_at), wall))
        before = self._silent or self._store.suspicions
        if before and not view.silent and not view.store.suspicions and _attempt(view.store) == _attempt(self._store):
            self._write(self._transitions.dismissed(wall))
            self._suspicions.clear()
        self._silent = view.silent
        if view.stop is not None and self._store.stop != view.store.stop:
            stop = view.stop.value
            self._write(self._transitions.caused(cause_of(stop.reason, silent=False), stop.caused_at or None, wall))
        if view.store.failures and not self._store.failures:
            first = first_failure(view.store.failures)
            self._write(self._transitions.caused(Cause.WORKER_FAILED, first.time or None, wall))

    def _observe_plan(self, store: StoreView, wall: float) -> None:
        plan = store.plan
        if plan is None:
            return
        if _attempt(store) != _attempt(self._store):
            value = plan.value
            self._cause = cause_of(value.reason, silent=self._was_silent(value.caused_at))
            if self._store.failures and self._cause is Cause.WORKER_FAILED:
                self._write_failure(first_failure(self._store.failures), "job")
            self._suspicions.clear()
            before = self._store.plan.value.finished if self._store.plan is not None else ()
            if new := sorted(set(value.finished) - set(before)):
                self._event_log.event("finished-early", round=plan.round, members=new)
                logger.warning(
                    "worker processes of %s ended with code 0 while others were training. Those continue, and the job "
                    "ends when they end. Let all ranks decide alike when to stop: see session.values",
                    ", ".join(new),
                )
            if plan.rank is None and not self._started:
                return  # this member is a joiner or a spare: the change belongs to the others
            rank = plan.rank.group_rank if plan.rank is not None else None
            self._write(
                self._transitions.planned(
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
            self._write(self._transitions.spare(wall))

    def _was_silent(self, caused_at: float) -> bool:
        """Whether the member that this plan lost was suspected for missed heartbeats only, judging by the suspicions
        that the planner used."""
        suspicions = [suspicion.value for suspicion in self._suspicions.values()]
        used = [one for one in suspicions if one.heard_at == caused_at]
        return bool(suspicions) and not any(one.closed for one in used or suspicions)

    # -- output

    @property
    def _leads(self) -> bool:
        plan = self._store.plan
        return plan is not None and plan.rank is not None and plan.rank.group_rank == 0

    def _write(self, records: Iterable[EventRecord]) -> None:
        for record in records:
            name, at, fields = record
            self._event_log.event(name, at, **fields)
            if self._leads and (value := transition_value(record)) is not None:
                self._on_transition(value)
            if name == "change":
                self._metrics.add_transition(fields["cause"], fields["phases"], fields["steps_lost"])
            elif fields["phase"] == "first-step":
                step = f" is {fields['step']}" if "step" in fields else ""
                logger.info(
                    "round %s: first step%s, %.2f s after %s", fields["round"], step, fields["since"], fields["cause"]
                )

    def _write_failure(self, failure: FailureValue, scope: str) -> None:
        if scope == "job" and self._reported_failure == failure:
            return
        self._reported_failure = failure if scope == "job" else self._reported_failure
        code = failure.exit_code
        self._event_log.event(
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

    def _update_metrics(self, view: View) -> None:
        metrics, plan = self._metrics, view.store.plan
        metrics.state = _state(view)
        metrics.round = plan.round if plan else 0
        metrics.world_size = plan.value.world_size if plan else 0
        metrics.rank = plan.rank.group_rank if plan and plan.rank else None


def _cause(closed: bool) -> Cause:
    return Cause.MEMBER_LOST if closed else Cause.MEMBER_SILENT


def _attempt(store: StoreView) -> str:
    return store.plan.value.attempt if store.plan is not None else ""


def _state(view: View) -> AgentState:
    if view.leaving_since is not None:
        return AgentState.LEAVING
    if view.workers.state is WorkersState.STOPPING:
        return AgentState.STOPPING
    if view.workers.state is WorkersState.RUNNING:
        return AgentState.TRAINING
    if not view.warm:
        return AgentState.WARMING
    plan = view.store.plan
    return AgentState.SPARE if plan is not None and plan.rank is None else AgentState.WAITING
