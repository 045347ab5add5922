"""The agent: one member of a job, which starts and stops the worker processes on its machine.

Everything runs on one event loop. Observations come from the store, the peers (both through rendezvous/runner.py), the
worker processes (pidfds and their reports) and signals; each wakes the loop.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Mapping

from elasticjob_runtime.agent import signals, termination
from elasticjob_runtime.agent.config import AgentConfig
from elasticjob_runtime.agent.copies import PeerCopies, copy_rate
from elasticjob_runtime.agent.hangs import HangWatch
from elasticjob_runtime.agent.processes import Processes
from elasticjob_runtime.agent.progress import RoundProgress
from elasticjob_runtime.agent.stragglers import Stragglers
from elasticjob_runtime.agent.trainer_status import TrainerStatus
from elasticjob_runtime.contract import ExitCode, ImportsValue, OutcomeValue, ProgressValue
from elasticjob_runtime.etcd.interface import Store
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership import View
from elasticjob_runtime.membership.actions import Action, Exit, MoveWorkers, PublishFailure, StartWorkers, StopWorkers
from elasticjob_runtime.membership.eligibility import may_stay
from elasticjob_runtime.membership.failures import assess_crash
from elasticjob_runtime.membership.hang import limits_of
from elasticjob_runtime.membership.planned_changes import will_stay
from elasticjob_runtime.membership.view import StoreView, WorkersState
from elasticjob_runtime.rendezvous.member import DecisionCache, LocalState
from elasticjob_runtime.rendezvous.network import REPLICA_PORTS, STORE_PORTS, hold_ports
from elasticjob_runtime.rendezvous.runner import MemberRunner
from elasticjob_runtime.telemetry.event_log import EventLog
from elasticjob_runtime.telemetry.metrics import Metrics
from elasticjob_runtime.telemetry.recorder import Recorder
from elasticjob_runtime.telemetry.transitions import WorkerReport
from elasticjob_runtime.workers import async_writer

logger = logging.getLogger(__name__)


class Agent:
    """Runs one member until the job ends or this member leaves."""

    def __init__(
        self,
        config: AgentConfig,
        store: Store,
        environment: Mapping[str, str],
        event_log: EventLog,
        metrics: Metrics | None = None,
    ) -> None:
        """`environment`: the environment of the worker processes. `metrics`: the metrics registry; None disables
        metrics."""
        self._config = config
        self._event_loop = EventLoop()
        self._environment = environment
        metrics = metrics or Metrics()
        count = STORE_PORTS + (REPLICA_PORTS if config.member.settings.replica_size else 0)
        held = hold_ports(config.member.port_range, count, first=config.member.master_port)
        self._copies = PeerCopies(
            self._event_loop, config.member.settings.me, config.member.address, rate=copy_rate(environment)
        )
        self._runner = MemberRunner(
            config.member,
            store,
            self._event_loop,
            self,
            ports=[holder.getsockname()[1] for holder in held],
            on_trouble=self._store_trouble,
            on_imports=lambda imports, running: self._processes.use_imports(imports, running=running),
            on_secret=self._copies.use_secret,
            on_dropped=metrics.add_dropped_connection,
        )
        self._runner.receive_copies(self._copies.serve)
        self._recorder = Recorder(
            event_log,
            metrics,
            self._runner.heartbeats,
            config.group.nproc,
            on_transition=self._runner.session.publish,
        )
        self._processes = Processes(
            config,
            self._event_loop,
            environment,
            held,
            on_progress=self._progressed,
            on_report=self._reported,
            on_trainer_status=self._trainer_reported,
            on_learned=self._publish_imports,
            copies=self._copies,
        )
        self._decisions = DecisionCache()
        self._hangs = HangWatch(
            config.hang_limits,
            self._processes.group,
            config.member.settings.me,
            self._runner.session.publish_hang,
            self._runner.session.exchange,
        )
        self._progress = RoundProgress(config.hang_limits, self._runner.session.publish_progress)
        self._stragglers = Stragglers(config.stragglers, self._runner.session, self._event_loop, self._recorder)
        self._published_imports: ImportsValue | None = None
        self._leaving: tuple[float, signal.Signals] | None = None
        self._starting = False
        self._started_at = time.monotonic()

    @property
    def outcome(self) -> OutcomeValue | None:
        """How the job ended; None: as far as this agent knows, it has not ended."""
        return self._runner.loop.store_view.outcome

    def run(self) -> Exit:
        """Runs until the agent ends; returns the exit code and the reason. By then all worker processes have ended and
        the lease is revoked."""
        restore = signals.take(
            self._event_loop.wakeup_fd,
            leave_on=self._config.leave_on,
            on_leave=self._leave,
            on_forward=self._processes.group.signal,
            on_child=lambda: self._event_loop.call_soon(self._processes.child_changed),
        )
        self._runner.start()
        try:
            exit_ = self._runner.run()
            if exit_.code.is_failure:  # before the events say that this agent has ended: their reader may look for it
                termination.write(termination.message(exit_.reason, self.outcome), self._environment)
            self._recorder.observe(self._runner.loop.view(), time.monotonic())
            self._recorder.close(exit_.code, exit_.reason, self.outcome)
            return exit_
        finally:
            self._processes.end()
            self._runner.close()
            restore()
            self._processes.close()
            self._copies.close()
            self._event_loop.close()
            async_writer.flush()

    # -- RunnerOwner, called by the runner

    def state(self) -> LocalState:
        leaving = self._leaving
        return LocalState(
            workers=self._processes.workers,
            warm=self._processes.warm,
            stores=self._processes.stores,
            step=self._progress.step,
            stepped=self._progress.stepped,
            leaving_since=leaving[0] if leaving else None,
            leaving_code=signals.LEAVE[leaving[1]] if leaving else ExitCode.TERMINATED,
        )

    def tick(self, now: float) -> None:
        self._processes.tick(now)
        self._tick_progress(now)

    @property
    def deadline(self) -> float | None:
        deadlines = (
            self._processes.deadline,
            self._progress.deadline,
            self._hangs.deadline,
            self._stragglers.deadline,
            self._recorder.deadline,
            self._join_deadline(),
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def decide(self, view: View, now: float) -> Action:
        self._recorder.observe(view, now)
        copies = self._copies
        copies.may_stay, copies.will_stay, copies.hurries = may_stay(view), will_stay(view), view.workers.saving
        action = self._join_timed_out(now) or self._decisions.decide(view, now)
        if isinstance(action, PublishFailure):
            ran = self._progress.ran_seconds(now)
            failure = dataclasses.replace(action.failure, step=self._progress.step, ran_seconds=ran)
            wait = assess_crash(view, [failure]).delay
            return dataclasses.replace(action, failure=dataclasses.replace(failure, restart_delay=wait))
        return action

    def start_workers(self, action: StartWorkers, now: float) -> None:
        self._progress.starting(now)
        self._hangs.starting()
        self._stragglers.starting(now)
        self._starting = True
        self._recorder.starting()
        self._processes.start(action.plan, now, alone=action.alone)

    def move_workers(self, action: MoveWorkers, now: float) -> None:
        self._progress.starting(now)
        self._hangs.starting()
        self._stragglers.starting(now)
        self._recorder.moving()
        self._processes.move(action.plan, action.step_grace, now)

    def stop_workers(self, action: StopWorkers, now: float) -> None:
        number = self._leaving[1] if self._leaving else signal.SIGTERM
        self._processes.group.stop(action.grace, now, number, last=action.last, saves=action.saves)

    def store_changed(self, before: StoreView, view: StoreView) -> None:
        if view.plan is not None and view.plan.rank is not None:
            self._copies.follow(view.plan.rank.neighbours)
        if view.spec is not before.spec:
            self._progress.limits = self._hangs.limits = limits_of(view.spec, self._config.hang_limits)
        if view.stop is not before.stop:
            self._processes.group.check_handlers()
        if view.plan is not None and (before.plan is None or before.plan.round != view.plan.round):
            self._processes.group.check_handlers()
            self._processes.expect_to_join(view.plan)
            self._publish_imports()

    def _store_trouble(self, trouble: str) -> None:
        self._recorder.store_trouble(trouble)

    # -- what the worker processes report

    @property
    def _leads(self) -> bool:
        """Rank 0 is one of its worker processes."""
        plan = self._runner.loop.store_view.plan
        return plan is not None and plan.value.leader == self._config.member.settings.me

    def _publish_imports(self) -> None:
        """Rank 0's agent publishes what the script imports. All members find the same imports, so joiners need them
        from only one."""
        imports = self._processes.imports
        if not self._leads or imports in (None, self._published_imports):
            return
        self._published_imports = imports
        self._runner.session.publish(imports)

    def _progressed(self, progress: ProgressValue) -> None:
        if self._config.member.settings.replica_size and not self._leads:
            return  # every replica has a rank 0
        self._progress.set_progress(progress, self._processes.workers.round)
        self._recorder.progressed(progress)

    def _trainer_reported(self, status: TrainerStatus) -> None:
        if not self._leads or self._processes.workers.state is not WorkersState.RUNNING:
            return
        progress = self._progress.set_trainer_status(status, self._processes.workers.round, time.time())
        if progress is not None:
            self._recorder.progressed(progress)

    def _reported(self, report: WorkerReport) -> None:
        if report.round in (0, self._processes.workers.round):  # not from workers of an earlier round
            self._progress.reported(report, time.monotonic())
            self._recorder.reported(report)

    def _tick_progress(self, now: float) -> None:
        running = self._processes.workers.state is WorkersState.RUNNING
        if not running:
            self._processes.read_last_reports()  # their last progress is published before the end of the job
            self._progress.ended(now)
            self._hangs.reset()
            self._stragglers.stopped()
        else:
            if counted := self._progress.count(self._processes.group.error_files, now):
                self._recorder.counted(counted.steps, counted.passes, counted.per_second)
                self._processes.group.warn_if_apart(counted.steps)
            self._look_for_hangs(now)
            plan = self._runner.loop.store_view.plan
            self._stragglers.tick(self._processes.group.error_files, plan, now, leads=self._leads)
        if self._leads:
            self._progress.publish_counted(self._processes.workers.round, now, time.time(), at_once=not running)
        self._progress.publish(now, at_once=not running)
        if self._starting and self._processes.all_spawned:
            self._starting = False
            self._recorder.started()

    def _look_for_hangs(self, now: float) -> None:
        plan = self._runner.loop.store_view.plan
        hang = self._progress.hang(now, waits=self._processes.workers.waiting)
        found = self._hangs.tick(hang, self._progress.last_step, now, plan)
        if found is not None:
            self._recorder.hung(found.text, found.culprit.ranks, restarts=found.restarts)

    # -- the join timeout

    def _join_deadline(self) -> float | None:
        waits = not self._processes.workers.round and self._runner.loop.store_view.plan is None
        return self._started_at + self._config.member.join_timeout if waits else None

    def _join_timed_out(self, now: float) -> Exit | None:
        deadline = self._join_deadline()
        if deadline is None or now < deadline:
            return None
        why = self._runner.loop.executor.trouble or self._runner.loop.reason
        timeout = self._config.member.join_timeout
        return Exit(code=ExitCode.UNAVAILABLE, reason=f"no training after {timeout:g} s (join_timeout): {why}")

    # -- signals

    def _leave(self, number: signal.Signals) -> None:
        """The first signal is also sent to the workers, which get time to save; the second one kills them."""
        if self._leaving is None:
            self._leaving = (time.monotonic(), number)
            self._recorder.leaving()
        else:
            self._processes.group.signal(signal.SIGKILL)
