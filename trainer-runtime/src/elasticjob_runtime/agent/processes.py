"""The child processes of one agent (workers, zygote, reaper) with the socket on which they report and the ports of
their stores."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.agent.config import AgentConfig
from elasticjob_runtime.agent.copies import PeerCopies
from elasticjob_runtime.agent.trainer_server import TrainerServer, is_wanted
from elasticjob_runtime.agent.trainer_status import TrainerStatus
from elasticjob_runtime.agent.worker_server import WorkerServer
from elasticjob_runtime.contract import ImportsValue, PlanValue, ProgressValue, ReplicaValue
from elasticjob_runtime.contract.reports import MAX_IMPORT_LENGTH, MAX_IMPORTS
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.view import Plan, Workers
from elasticjob_runtime.rendezvous.network import STORE_PORTS
from elasticjob_runtime.telemetry.transitions import WorkerReport
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.environment import worker_environment
from elasticjob_runtime.workers.group import WorkerGroup
from elasticjob_runtime.workers.reaper import MARK, Reaper
from elasticjob_runtime.workers.spawn import SpawnLauncher
from elasticjob_runtime.workers.state_machine import ARRIVED, ENTERED, FORMED, PlanReport
from elasticjob_runtime.workers.zygote.launcher import ZygoteLauncher
from elasticjob_runtime.workers.zygote.preload import ImportResults

logger = logging.getLogger(__name__)

_PHASE_OF = {ARRIVED: "interrupt", FORMED: "form", ENTERED: "agree"}
"""How far a worker that continues in place is -> the phase that ends with it (telemetry/transitions.py)."""


class Processes:
    """Not thread-safe: use it on the agent's event loop only."""

    def __init__(
        self,
        config: AgentConfig,
        event_loop: EventLoop,
        environment: Mapping[str, str],
        held: Sequence[socket.socket],
        *,
        on_progress: Callable[[ProgressValue], None],
        on_report: Callable[[WorkerReport], None],
        on_trainer_status: Callable[[TrainerStatus], None] = lambda _status: None,
        on_learned: Callable[[], None] = lambda: None,
        copies: PeerCopies | None = None,
    ) -> None:
        """`environment`: the part of the workers' environment that is the same for all. `held`: sockets that reserve
        the ports of their stores; `close` closes them. `on_learned`: called when `imports` has changed. `copies`: see
        WorkerServer."""
        self._config = config
        self._on_learned = on_learned
        self._on_report = on_report
        self._event_loop = event_loop
        self._held = held
        self._reaper = Reaper(event_loop)
        environment = {**environment, MARK: self._reaper.mark}
        self._reports = WorkerServer(
            event_loop,
            on_progress,
            on_report,
            on_saves=lambda rank, round_number: self.group.calls_for_save(rank, round_number),  # noqa: PLW0108 made later
            on_saved=lambda rank, round_number: self.group.saved(rank, round_number),  # noqa: PLW0108 made later
            on_hello=lambda local_rank: self.group.said_hello(local_rank, time.monotonic()),
            on_saves_at_end=lambda local_rank: self.group.saves_at_end(local_rank),  # noqa: PLW0108 made later
            on_plan_report=self._follows,
            copies=copies,
            folder=self._reaper.folder,
        )
        self._trainer_server = _trainer_server(event_loop, on_trainer_status, environment, self._reaper.folder)
        if self._trainer_server is not None:
            environment = {**environment, **self._trainer_server.environment}
        linux.become_subreaper()
        self._environment = environment
        self._launcher = self._new_launcher(environment)
        self.group = WorkerGroup(
            config.group,
            config.command,
            self._launcher,
            event_loop,
            member=config.member.settings.me,
            log_settings=config.log_settings,
            agent_socket=self._reports.path,
            folder=self._reaper.folder,
            base_environment=environment,
            messages=self._reports,
        )

    @property
    def workers(self) -> Workers:
        return self.group.view

    @property
    def warm(self) -> bool:
        """Whether workers can be started at once."""
        return self._launcher.ready

    @property
    def stores(self) -> bool:
        """Whether the stores of the next rounds are listening."""
        return self._launcher.stores is not None and self._launcher.stores.listening

    @property
    def all_spawned(self) -> bool:
        """Whether all workers of the round run and were spawned; spawned workers do not report the phases of their
        start."""
        return bool(self._launcher.problem) and len(self.group.pids) == self._config.group.nproc

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        return min((at for at in (self.group.deadline, self._launcher.deadline) if at is not None), default=None)

    def tick(self, now: float) -> None:
        if self.group.is_due(now):  # if this process stood still, what its workers sent meanwhile is still unread
            self._reports.drain()
        self.group.tick(now)
        self._launcher.tick(now)

    def start(self, plan: Plan, now: float, *, alone: bool = False) -> None:
        self._enter(plan)
        if self._launcher.stores is not None and plan.replica is not None:
            self._launcher.stores.enter_replica(plan.replica.master_port if plan.replica.ordinal == 0 else 0)
        self.group.start(plan, now, alone=alone)

    def move(self, plan: Plan, step_grace: float, now: float) -> None:
        """The processes of a replica stay in its world, whose store stays with them."""
        self._enter(plan)
        self.group.move(plan, step_grace, now)

    def _follows(self, report: PlanReport) -> None:
        self.group.reported(report, time.monotonic())
        if report.state in _PHASE_OF:
            self._on_report(
                WorkerReport(rank=report.local_rank, round=report.round, at=report.at, phase=_PHASE_OF[report.state])
            )

    def _enter(self, plan: Plan) -> None:
        stores = self._launcher.stores
        if stores is not None:
            stores.enter(plan.round, leads=plan.value.leader == self._config.member.settings.me)

    def expect_to_join(self, plan: Plan) -> None:
        """A new plan has come. Without a rank in it, prepares what comes next: stores for later rounds and, if no
        worker has run yet, workers that may join."""
        if plan.rank is None and self._launcher.stores is not None:
            self._launcher.stores.enter(plan.round, leads=False)
        if plan.rank is None and not self.workers.round:
            self._expect_to_join(plan.value)

    def read_last_reports(self) -> None:
        """Reads reports that workers sent before they ended and that are still unread."""
        self._reports.drain()

    def child_changed(self) -> None:
        """To be called at every SIGCHLD: a child has ended, stopped or continued."""
        self.group.check_stopped(time.monotonic())
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """Reaps processes that a dead worker left behind. They became children of this process, so no other process can
        collect their exit status."""
        known = {*self.group.pids.values(), *self._launcher.pids, self._reaper.pid}
        for pid in linux.children():
            if pid not in known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> None:
        """Ends the workers and the zygote. Nothing survives the agent, whatever the cause of its end."""
        self.group.stop(0.0, time.monotonic())
        end = time.monotonic() + 5.0
        while self.group.pids and time.monotonic() < end:
            self._event_loop.wait(end - time.monotonic())
        self._launcher.close()
        self.group.close()

    def close(self) -> None:
        """Call after `end`. The reaper ends last."""
        self._reports.close()
        if self._trainer_server is not None:
            self._trainer_server.close()
        for holder in self._held:
            holder.close()
        self._reaper.close()

    @property
    def imports(self) -> ImportsValue | None:
        """What the script's workers import, as far as this agent has found out; None: not known."""
        known = self._launcher.imports if isinstance(self._launcher, ZygoteLauncher) else None
        if known is None or not known.importable():
            return None
        reads = sorted({name for names in known.per_rank.values() for name in names})
        late = list(known.per_rank)[:MAX_IMPORTS]
        fit = [name for name in known.fork_safe if len(name) <= MAX_IMPORT_LENGTH]
        return ImportsValue(fit=fit[: max(0, MAX_IMPORTS - len(late) - len(reads))], late=late, reads=reads)

    def use_imports(self, imports: ImportsValue | None, *, running: bool) -> None:
        """Takes the imports that another member found and published. `running`: the others train already and must not
        wait while this member imports."""
        if isinstance(self._launcher, ZygoteLauncher):
            self._launcher.add_imports(_results(imports) if imports is not None else None, wait=running)

    def _expect_to_join(self, plan: PlanValue) -> None:
        """Sets the environments that this member's workers will probably have if it joins the next round: joiners get
        the last ranks."""
        if not isinstance(self._launcher, ZygoteLauncher):
            return
        group, settings = self._config.group, self._config.member.settings
        members = (settings.me,) * settings.replica_size
        replica = ReplicaValue(index=0, world=0, incarnation="", members=members) if members else None
        joined = dataclasses.replace(plan, size=plan.size + 1, world_size=plan.world_size + group.nproc)
        self._launcher.expect({
            local_rank: worker_environment(
                self._environment, group, joined, plan.size, local_rank, error_file="", agent_socket="", replica=replica
            )
            for local_rank in range(group.nproc)
        })  # fmt: skip

    def _new_launcher(self, environment: Mapping[str, str]) -> ZygoteLauncher | SpawnLauncher:
        if self._config.preload is None:
            return SpawnLauncher(self._event_loop)
        return ZygoteLauncher(
            self._config.command,
            self._config.group.nproc,
            environment,
            self._event_loop,
            preload=self._config.preload,
            ports=[holder.getsockname()[1] for holder in self._held],
            round_ports=STORE_PORTS,
            on_learned=self._on_learned,
            waits_for_imports=True,
        )


def _trainer_server(
    event_loop: EventLoop, on_status: Callable[[TrainerStatus], None], environment: Mapping[str, str], folder: str
) -> TrainerServer | None:
    """None: not wanted, or not possible; then the job shows no progress of such scripts."""
    if not is_wanted(environment):
        return None
    try:
        return TrainerServer(event_loop, on_status, environment, folder)
    except OSError as error:
        logger.warning("cannot serve Kubeflow's progress protocol, so the job may show no progress: %s", error)
        return None


def _results(imports: ImportsValue) -> ImportResults:
    return ImportResults(fork_safe=list(imports.fit), per_rank={name: list(imports.reads) for name in imports.late})
