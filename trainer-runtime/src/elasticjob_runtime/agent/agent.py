"""The agent: observes, lets `membership.decide` decide, executes. One loop on one thread.

Observations come from the store (rendezvous.py, its own thread), the workers (pidfds), signals, peers (peers.py) and
the workers' reports. Each wakes the loop; the loop asks `decide` until the answer is to wait.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Mapping

from elasticjob_runtime.agent import signals
from elasticjob_runtime.agent.config import AgentConfig
from elasticjob_runtime.agent.processes import Processes
from elasticjob_runtime.agent.progress import Progress
from elasticjob_runtime.contract import ExitCode, ImportsValue, MemberValue, OutcomeValue, ProgressValue
from elasticjob_runtime.etcd.interface import Store
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership import View, decide
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    ProbeWitnesses,
    PublishFailure,
    PublishSuspicion,
    StartWorkers,
    StopWorkers,
    Wait,
)
from elasticjob_runtime.membership.view import (
    Probe,
    StoreView,
    WorkersState,
)
from elasticjob_runtime.rendezvous.executor import StoreExecutor
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.rendezvous.peers import PeerServer, probe_in_background
from elasticjob_runtime.rendezvous.session import Rendezvous
from elasticjob_runtime.rendezvous.witnesses import ask_in_background
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.telemetry.recorder import Recorder
from elasticjob_runtime.telemetry.report import Report
from elasticjob_runtime.workers import async_writer

logger = logging.getLogger(__name__)

_NEVER = float("inf")


class Agent:
    """Runs one member of a job until the job ends, or this member leaves."""

    def __init__(
        self,
        config: AgentConfig,
        store: Store,
        environment: Mapping[str, str],
        timeline: EventLog,
        metrics: Metrics | None = None,
    ) -> None:
        """`metrics`: where to keep them; None: nobody looks."""
        self._config = config
        settings = config.member.settings
        self._event_loop = EventLoop()
        self._peers = PeerServer(settings.me, settings.incarnation, config.member.port_range)
        self._heartbeats = Heartbeats(self._event_loop)
        self._recorder = Recorder(timeline, metrics or Metrics(), self._heartbeats, config.group.nproc)
        self._processes = Processes(
            config,
            self._event_loop,
            environment,
            on_progress=self._progressed,
            on_report=self._reported,
            on_learned=self._publish_imports,
        )
        member = MemberValue(
            address=config.member.address,
            ports=self._processes.ports,
            nproc=config.group.nproc,
            incarnation=settings.incarnation,
            peer_port=self._peers.port,
            started_at=time.time(),
        )
        self._rendezvous = Rendezvous(
            store,
            config.member.keys,
            settings.me,
            member,
            lease_ttl=config.member.lease_ttl,
            on_view=lambda view: self._event_loop.call_soon(lambda: self._saw(view)),
            on_done=lambda action, error: self._event_loop.call_soon(
                lambda: self._executor.done(action, error, started=self._processes.workers.round > 0)
            ),
            on_trouble=lambda error: self._event_loop.call_soon(lambda: self._executor.tell_trouble(error)),
            on_imports=lambda imports, running: self._event_loop.call_soon(
                lambda: self._processes.tell_imports(imports, running=running)
            ),
        )
        self._executor = StoreExecutor(self._rendezvous.submit, self._recorder.store_trouble)
        self._progress = Progress(config.hang_limits, self._rendezvous.publish_progress)
        self._store_view = StoreView()
        self._published_imports: ImportsValue | None = None
        self._probes: dict[str, Probe] = {}
        self._probing = False
        self._witnesses_probed_at: float | None = None
        self._witness_answered_at: float | None = None
        self._leaving: tuple[float, signal.Signals] | None = None
        self._said = ""
        self._decided: tuple[View, Action] | None = None
        """The last decision to wait, and on what."""
        self._starting = False
        self._started_at = time.monotonic()

    @property
    def outcome(self) -> OutcomeValue | None:
        """How the job ended; None: it has not, as far as this agent knows."""
        return self._store_view.outcome

    def run(self) -> Exit:
        """Returns why and with which code the agent ends. Workers are gone then, and the lease is given back."""
        restore = signals.take(
            self._event_loop.wakeup_fd,
            leave_on=self._config.leave_on,
            on_leave=self._leave,
            on_forward=self._processes.group.signal,
            on_child=lambda: self._event_loop.call_soon(self._processes.reap_orphans),
        )
        self._event_loop.add_reader(self._peers.fileno(), self._greet)
        self._rendezvous.start()
        try:
            exit_ = self._loop()
            self._recorder.observe(self.view(), time.monotonic())
            self._recorder.close(exit_.code, exit_.reason, self.outcome)
            return exit_
        finally:
            self._processes.end()
            self._rendezvous.close()
            self._heartbeats.close()
            self._peers.close()
            restore()
            self._processes.close()
            self._event_loop.close()
            async_writer.flush()

    def view(self) -> View:
        leaving, heard = self._leaving, self._heartbeats.heard()
        return View(
            settings=self._config.member.settings,
            store=self._store_view,
            workers=self._processes.workers,
            probes=self._probes,
            lease_expires_at=self._rendezvous.lease_expires_at,
            silent=self._heartbeats.silent(self._event_loop.now()),
            silent_since=self._heartbeats.silent_since(self._event_loop.now()),
            witnesses_probed_at=self._witnesses_probed_at,
            witness_answered_at=self._witness_answered_at,
            peer_round=heard[0],
            peer_round_at=heard[1],
            warm=self._processes.warm,
            stores=self._processes.stores,
            reported_failure=self._executor.reported_failure,
            step=self._progress.step,
            leaving_since=leaving[0] if leaving else None,
            leaving_code=signals.LEAVE[leaving[1]] if leaving else ExitCode.TERMINATED,
        )

    def _loop(self) -> Exit:
        while True:
            now = time.monotonic()
            self._processes.tick(now)
            self._heartbeats.tick(now)
            self._tick_progress(now)
            view = self.view()
            self._recorder.observe(view, now)
            action = self._executor.fatal or self._gave_up(now) or self._decide(view, now)
            self._say(action)
            if isinstance(action, Exit):
                return action
            wait_until = self._execute(action, now)
            if wait_until is not None:
                timers = (
                    self._processes.deadline,
                    self._heartbeats.deadline,
                    self._progress.deadline,
                    self._recorder.deadline,
                    self._join_deadline(),
                )
                deadlines = [wait_until, *timers]
                until = min(deadline for deadline in deadlines if deadline is not None)
                self._event_loop.wait(None if until == _NEVER else max(0.0, until - time.monotonic()))

    def _decide(self, view: View, now: float) -> Action:
        """Where nothing has changed, nothing has to be thought over: with thousands of members that costs milliseconds,
        and beats and workers' reports wake the loop many times a second."""
        seen = dataclasses.replace(view, step=None) if view.workers.state is WorkersState.RUNNING else view
        said = self._decided
        if said is not None and said[0] == seen and (said[1].until is None or now < said[1].until):
            return said[1]
        action = decide(view, now)
        self._decided = (seen, action) if isinstance(action, Wait) else None
        return action

    def _execute(self, action: Action, now: float) -> float | None:
        """Does it. Returns until when to wait for what comes; None: decide again at once."""
        until = _NEVER if action.until is None else action.until
        match action:
            case Wait():
                return until
            case StartWorkers():
                self._start(action, now)
                return None
            case StopWorkers():
                self._processes.group.stop(action.grace, now, self._leaving[1] if self._leaving else signal.SIGTERM)
                return None
            case ProbePeers():
                if not self._probing:
                    self._probing = True
                    probe_in_background(
                        action.members, lambda found: self._event_loop.call_soon(lambda: self._probed(found))
                    )
                return until
            case ProbeWitnesses():
                self._probe_witnesses(now)
                return until
            case _:
                return self._to_store(action, now, until)

    def _start(self, action: StartWorkers, now: float) -> None:
        self._progress.starting(now)
        self._starting = True
        self._recorder.starting()
        self._processes.start(action.plan, now)

    def _to_store(self, action: Action, now: float, until: float) -> float:
        if isinstance(action, PublishFailure):
            ran = self._progress.ran_seconds(now)
            action = dataclasses.replace(
                action, failure=dataclasses.replace(action.failure, step=self._progress.step, ran_seconds=ran)
            )
        elif isinstance(action, PublishSuspicion) and (heard := self._heartbeats.last_heard(action.suspicion.suspect)):
            at = round(time.time() - (now - heard[0]), 4)
            action = dataclasses.replace(
                action, suspicion=dataclasses.replace(action.suspicion, heard_at=at, closed=heard[1])
            )
        return self._executor.execute(action, now, until)  # type: ignore[arg-type]  # everything else is handled above

    # -- observations, all on the loop's thread

    def _greet(self) -> None:
        for connection in self._peers.greet():
            self._heartbeats.add_listener(connection)

    def _saw(self, view: StoreView) -> None:
        before, stopped = self._store_view.plan, self._store_view.stop
        self._store_view = view
        if view.stop is not stopped:
            self._processes.group.look_for_handlers()
        if view.plan is not None and (before is None or before.round != view.plan.round):
            self._processes.group.look_for_handlers()
            self._processes.tell_plan(view.plan)
            self._publish_imports()
        self._heartbeats.round = self._peers.round = view.plan.round if view.plan is not None else 0
        rank = view.plan.rank if view.plan is not None else None
        if rank is not None:
            self._heartbeats.follow(rank.neighbours, self._event_loop.now())

    def _publish_imports(self) -> None:
        """Rank 0's agent tells what the script imports: all members learn the same, and one is enough to tell those to
        come."""
        plan, imports = self._store_view.plan, self._processes.imports
        me = self._config.member.settings.me
        if plan is None or plan.value.leader != me or imports in (None, self._published_imports):
            return
        self._published_imports = imports
        self._rendezvous.publish_imports(imports)
        self._processes.keep_imports(imports)

    def _probe_witnesses(self, now: float) -> None:
        self._witnesses_probed_at = now

        def told(answered: bool) -> None:
            if answered:
                self._witness_answered_at = now

        witnesses = self._config.member.witnesses
        ask_in_background(witnesses, lambda answered: self._event_loop.call_soon(lambda: told(answered)))

    def _probed(self, found: Mapping[str, Probe]) -> None:
        self._probing = False
        self._probes = {**self._probes, **found}  # a new one: what was decided on the old one is out of date
        for name, probe in found.items():
            if not probe.reachable:
                logger.info("%s does not answer", name)

    def _progressed(self, progress: ProgressValue) -> None:
        self._progress.told(progress, self._processes.workers.round)
        self._recorder.progressed(progress)

    def _reported(self, report: Report) -> None:
        if report.round in (0, self._processes.workers.round):  # not of workers that are gone
            self._progress.reported(report, time.monotonic())
            self._recorder.reported(report)

    def _tick_progress(self, now: float) -> None:
        running = self._processes.workers.state is WorkersState.RUNNING
        if not running:
            self._processes.hear_last_words()  # the last word must be out before the job's end is told
            self._progress.ended()
        elif why := self._progress.hang(now):
            self._processes.group.hung(why, now)
        self._progress.publish(now, at_once=not running)
        if self._starting and self._processes.all_spawned:
            self._starting = False
            self._recorder.started()

    # -- the start: how long to try

    def _join_deadline(self) -> float | None:
        waits = not self._processes.workers.round and self._store_view.plan is None
        return self._started_at + self._config.member.join_timeout if waits else None

    def _gave_up(self, now: float) -> Exit | None:
        deadline = self._join_deadline()
        if deadline is None or now < deadline:
            return None
        why = self._executor.trouble or self._said
        timeout = self._config.member.join_timeout
        return Exit(code=ExitCode.UNAVAILABLE, reason=f"no training after {timeout:g} s (join_timeout): {why}")

    # -- signals

    def _leave(self, number: signal.Signals) -> None:
        """The first signal lets the workers save, who get the same; a second one does not wait."""
        if self._leaving is None:
            self._leaving = (time.monotonic(), number)
            self._recorder.leaving()
        else:
            self._processes.group.signal(signal.SIGKILL)

    def _say(self, action: Action) -> None:
        if action.reason != self._said:
            self._said = action.reason
            logger.info("%s", action.reason)
