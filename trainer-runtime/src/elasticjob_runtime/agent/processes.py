"""The processes of one agent, and what belongs to them: workers, zygote, warden, the socket they report on, the ports of their stores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.agent.config import AgentConfig
from elasticjob_runtime.agent.network import hold_ports
from elasticjob_runtime.agent.reactor import Reactor
from elasticjob_runtime.agent.reports import Report, ReportSocket
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.membership.model import Plan, Workers
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.group import WorkerGroup
from elasticjob_runtime.workers.launch import ZygoteLauncher
from elasticjob_runtime.workers.plain import PlainLauncher
from elasticjob_runtime.workers.warden import MARK, Warden


class Processes:
    """On the agent's loop only."""

    def __init__(
        self,
        config: AgentConfig,
        reactor: Reactor,
        environment: Mapping[str, str],
        *,
        on_progress: Callable[[ProgressValue], None],
        on_report: Callable[[Report], None],
    ) -> None:
        """`environment`: of the workers, but for what each gets for itself."""
        self._config = config
        self._reactor = reactor
        self._held = hold_ports(config.port_range)
        self.ports = [holder.getsockname()[1] for holder in self._held]
        """TCP ports for the stores of coming epochs."""
        self._warden = Warden(reactor)
        environment = {**environment, MARK: self._warden.mark}
        self._reports = ReportSocket(reactor, on_progress, on_report, folder=self._warden.folder)
        linux.become_subreaper()
        self._launcher = self._new_launcher(environment)
        self.group = WorkerGroup(
            config.group,
            config.command,
            self._launcher,
            reactor,
            member=config.settings.me,
            log_settings=config.log_settings,
            agent_socket=self._reports.path,
            folder=self._warden.folder,
            base_environment=environment,
        )

    @property
    def workers(self) -> Workers:
        return self.group.view

    @property
    def warm(self) -> bool:
        """Workers can be started at once."""
        return self._launcher.ready

    @property
    def stores(self) -> bool:
        """The stores of coming epochs listen."""
        return self._launcher.stores is not None and self._launcher.stores.listening

    @property
    def all_spawned(self) -> bool:
        """All workers of the epoch run, and each is a new program: it tells nothing of its own start."""
        return bool(self._launcher.problem) and len(self.group.pids) == self._config.group.nproc

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        return min((at for at in (self.group.deadline, self._launcher.deadline) if at is not None), default=None)

    def tick(self, now: float) -> None:
        self.group.tick(now)
        self._launcher.tick(now)

    def start(self, plan: Plan, now: float) -> None:
        if self._launcher.stores is not None:
            self._launcher.stores.enter(plan.epoch, leads=plan.value.leader == self._config.settings.me)
        self.group.start(plan, now)

    def tell_plan(self, plan: Plan) -> None:
        """To the workers that want to know: what is to follow on them, too."""
        if plan.rank is None and self._launcher.stores is not None:
            self._launcher.stores.enter(plan.epoch, leads=False)
        self._reports.tell_plan(plan.value, plan.rank.group_rank if plan.rank is not None else None)

    def hear_last_words(self) -> None:
        """What workers said before they ended, and nobody read yet."""
        self._reports.drain()

    def reap_orphans(self) -> None:
        """What a worker left behind became this process's child: its exit status is nobody's but ours."""
        known = {*self.group.pids.values(), *self._launcher.pids, self._warden.pid}
        for pid in linux.children():
            if pid not in known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> None:
        """Ends workers and zygote. Nothing survives the agent, whatever ended it."""
        self.group.stop(0.0, time.monotonic())
        end = time.monotonic() + 5.0
        while self.group.pids and time.monotonic() < end:
            self._reactor.wait(end - time.monotonic())
        self._launcher.close()
        self.group.close()

    def close(self) -> None:
        """After `end`: the warden goes last."""
        self._reports.close()
        for holder in self._held:
            holder.close()
        self._warden.close()

    def _new_launcher(self, environment: Mapping[str, str]) -> ZygoteLauncher | PlainLauncher:
        if self._config.preload is None:
            return PlainLauncher(self._reactor)
        return ZygoteLauncher(
            self._config.command,
            self._config.group.nproc,
            environment,
            self._reactor,
            preload=self._config.preload,
            ports=self.ports,
            on_ready=lambda: None,
        )
