"""How workers come to life: forked from a zygote where that is possible, spawned where it is not.

`Launcher.ready` tells the agent when it may take part: a member whose zygote still imports torch is `warming`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.workers import messages
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.process import Launcher, SpawnLauncher, WorkerSpec
from elasticjob_runtime.workers.reactor import Reactor
from elasticjob_runtime.workers.stores import StoreHost
from elasticjob_runtime.workers.zygote import PRELOAD, ImportLog, Zygote

logger = logging.getLogger(__name__)

LEARN_SECONDS = 20.0
"""s after the first workers' start at which the next zygote is made, with what they imported."""

AUTO = "auto"


class ZygoteLauncher:
    """Forks workers from a zygote; spawns them, with a reason, where there is none."""

    def __init__(
        self,
        command: Command,
        nproc: int,
        environment: Mapping[str, str],
        reactor: Reactor,
        *,
        preload: Sequence[str],
        ports: Sequence[int],
        on_ready: Callable[[], None],
    ) -> None:
        self._command = command
        self._nproc = nproc
        self._environment = dict(environment)
        self._reactor = reactor
        self._learn = AUTO in preload
        self._modules = [*PRELOAD, *(name for name in preload if name != AUTO)]
        self._on_ready = on_ready
        self._spawn: Launcher = SpawnLauncher()
        self._imports = ImportLog(reactor)
        self._next: Zygote | None = None
        self._learn_at: float | None = None
        self._forked = False
        self.ready = False
        """Workers can be started: from the zygote, or because there will not be one."""
        self.problem = ""
        """Why workers are spawned; empty: they are not."""
        self.stores = StoreHost(reactor, ports, self._stores_ready)
        self._zygote: Zygote | None = self._new_zygote(0)

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        return self._learn_at

    @property
    def without_libuv(self) -> bool:
        """This torch has no libuv. Known from the store host, else from torch's library."""
        return not self.stores.libuv if self.stores.listening else libuv_is_lacking()

    def start(self, spec: WorkerSpec) -> int:
        zygote = self._zygote
        parked = zygote.take() if zygote else None
        if zygote is None or parked is None:
            return self._spawn.start(spec)
        stdio = {1: spec.stdout, 2: spec.stderr}
        given = {target: fd for target, fd in stdio.items() if fd is not None}
        message = {
            "environment": dict(spec.environment),
            "arguments": spec.command.script_arguments(spec.local_rank),
            "module": spec.command.module,
            "stdio": list(given),
        }
        messages.send(parked.connection, message, list(given.values()))
        self._imports.follow(parked.connection)
        self._forked = True
        return parked.pid

    @property
    def pids(self) -> list[int]:
        """Children of this process that somebody here waits for."""
        zygotes = [zygote for zygote in (self._zygote, self._next) if zygote is not None]
        return [pid for zygote in zygotes for pid in (zygote.pid, *(parked.pid for parked in zygote.parked))]

    def started(self) -> None:
        """All workers of an epoch are started: park the next ones, now that nothing waits for it."""
        if self._zygote is not None:
            self._zygote.park(self._nproc)
        if self._learn and self._forked and self._learn_at is None and self._next is None:
            self._learn_at = time.monotonic() + LEARN_SECONDS

    def tick(self, now: float) -> None:
        if self._learn_at is None or now < self._learn_at:
            return
        self._learn_at, self._learn = None, False
        learned = [name for name in self._imports.names if name not in self._modules]
        if learned and self._zygote is not None:
            self._modules += [f"?{name}" for name in learned]
            self._next = self._new_zygote(10)

    def close(self) -> None:
        for zygote in (self._zygote, self._next):
            if zygote is not None:
                zygote.close()
        self._zygote = self._next = None
        self.stores.close()

    def _new_zygote(self, nice: int) -> Zygote:
        return Zygote(
            self._command.program[0],
            self._modules,
            self._environment,
            self._reactor,
            on_ready=self._zygote_ready,
            on_gone=self._zygote_gone,
            nice=nice,
        )

    def _zygote_ready(self, zygote: Zygote) -> None:
        if zygote is self._next:
            old, self._zygote, self._next = self._zygote, zygote, None
            if old is not None:
                old.close()
            zygote.park(self._nproc)
            logger.debug("a zygote that knows the script's imports is ready (%.1f s)", zygote.seconds)
            return
        logger.debug("zygote ready after %.1f s", zygote.seconds)
        zygote.park(self._nproc)
        zygote.fork_stores(self.stores.attach)

    def _stores_ready(self, _listening: bool) -> None:
        if not self.ready:
            self.ready = True
            self._on_ready()

    def _zygote_gone(self, zygote: Zygote, why: str) -> None:
        if zygote is self._next:
            logger.info("the script's imports cannot be preloaded: %s", why)
            self._next = None
            return
        self._zygote = None
        self.problem = why
        logger.warning("no zygote, workers are spawned: %s", why)
        if not self.ready:
            self.ready = True
            self._on_ready()


class PlainLauncher:
    """Spawns every worker: `--start-method=spawn`, and commands that are not Python."""

    def __init__(self) -> None:
        self._spawn: Launcher = SpawnLauncher()
        self.ready = True
        self.problem = "asked for"
        self.stores: StoreHost | None = None
        self.deadline: float | None = None

    @property
    def without_libuv(self) -> bool:
        return libuv_is_lacking()

    def start(self, spec: WorkerSpec) -> int:
        return self._spawn.start(spec)

    def started(self) -> None:
        """Nothing to prepare."""

    @property
    def pids(self) -> list[int]:
        return []

    def tick(self, _now: float) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""


GroupLauncher = ZygoteLauncher | PlainLauncher


def can_fork(command: Command) -> str:
    """Why this command cannot be run by a zygote; empty: it can."""
    if not command.program:
        return "the command is not Python"
    if not command.module and os.path.isdir(command.arguments[0]):
        return "the script is a directory"
    return ""
