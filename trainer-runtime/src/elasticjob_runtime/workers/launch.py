"""How workers come to life: forked from a zygote where that is possible, spawned where it is not.

`ready` tells the agent when it may take part: a member whose zygote still imports torch is `warming`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import time
import zipimport
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.workers import linux, messages, preloading
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.plain import PlainLauncher
from elasticjob_runtime.workers.preloading import Modules
from elasticjob_runtime.workers.process import SpawnLauncher, Started, WorkerSpec
from elasticjob_runtime.workers.reactor import Reactor
from elasticjob_runtime.workers.stores import StoreHost
from elasticjob_runtime.workers.zygote import PRELOAD, End, ImportLog, Parked, Zygote

logger = logging.getLogger(__name__)

LEARN_SECONDS = 20.0
"""s after the first workers' start at which the next zygote is made, with what they imported."""

PATIENCE = 3.0
"""s that a start waits for a fork. A fork takes milliseconds, a spawned worker seconds."""

HAND_OVER_SECONDS = 1.0
"""s in which a parked worker has to take its command."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A worker that is to be started."""

    spec: WorkerSpec
    started: Started
    until: float
    """Monotonic time; then it is spawned."""


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
        learn_after: float = LEARN_SECONDS,
    ) -> None:
        self._command = command
        self._nproc = nproc
        self._environment = dict(environment)
        self._reactor = reactor
        self._learn_after = learn_after
        self._learn = preloading.AUTO in preload
        self._modules = Modules(base=PRELOAD, asked=tuple(name for name in preload if name != preloading.AUTO))
        self._on_ready = on_ready
        self._spawn = SpawnLauncher()
        self._imports = ImportLog(reactor)
        self._requests: collections.deque[Request] = collections.deque()
        self._next: Zygote | None = None
        self._learn_at: float | None = None
        self._forked = False
        self._deaths: list[float] = []
        self.ready = False
        """Workers can be started: from the zygote, or because there will not be one."""
        self.problem = ""
        """Why workers are spawned; empty: they are not."""
        self.stores = StoreHost(reactor, ports, self._stores_ready)
        self._zygote: Zygote | None = self._new_zygote(0)

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        return min((at for at in (self._learn_at, *(request.until for request in self._requests)) if at is not None), default=None)

    @property
    def without_libuv(self) -> bool:
        """This torch has no libuv. Known from the store host, else from torch's library."""
        return not self.stores.libuv if self.stores.listening else libuv_is_lacking()

    @property
    def pids(self) -> list[int]:
        """Children of this process that somebody here waits for."""
        zygotes = [zygote for zygote in (self._zygote, self._next) if zygote is not None]
        return [pid for zygote in zygotes for pid in (zygote.pid, *(parked.pid for parked in zygote.parked))]

    def start(self, spec: WorkerSpec, started: Started) -> None:
        """Calls `started` with the process id, or with what went wrong: now, or when a fork is ready."""
        self._requests.append(Request(spec=spec, started=started, until=self._reactor.now() + PATIENCE))
        self._serve()

    def cancel(self) -> None:
        """Forgets the starts that are still waited for."""
        self._requests.clear()

    def started(self) -> None:
        """All workers of an epoch are started: park the next ones, now that nothing waits for it."""
        if self._zygote is not None:
            self._zygote.park(self._nproc)
        if self._learn and self._forked and self._learn_at is None and self._next is None:
            self._learn_at = time.monotonic() + self._learn_after

    def tick(self, now: float) -> None:
        while self._requests and now >= self._requests[0].until:
            logger.info("no fork within %g s: a worker is spawned", PATIENCE)
            self._spawn_one()
        if self._learn_at is None or now < self._learn_at:
            return
        self._learn_at, self._learn = None, False
        if self._modules.learn(self._imports.names) and self._zygote is not None and self._zygote.ready:
            self._next = self._new_zygote(10)

    def close(self) -> None:
        self.cancel()
        for zygote in (self._zygote, self._next):
            if zygote is not None:
                zygote.close()
        self._zygote = self._next = None
        self.stores.close()

    def _serve(self) -> None:
        while self._requests:
            parked = self._zygote.take() if self._zygote is not None else None
            if parked is not None:
                if self._hand_over(parked, self._requests[0].spec):
                    self._requests.popleft().started(parked.pid)
            elif self._zygote is not None and self._zygote.ready:
                self._zygote.park(len(self._requests))
                return
            else:
                self._spawn_one()

    def _spawn_one(self) -> None:
        request = self._requests.popleft()
        self._spawn.start(request.spec, request.started)

    def _hand_over(self, parked: Parked, spec: WorkerSpec) -> bool:
        """False: it was killed while it waited."""
        stdin = 0 if linux.is_open(0) else None
        given = {target: fd for target, fd in ((0, stdin), (1, spec.stdout), (2, spec.stderr)) if fd is not None}
        message = {
            "environment": dict(spec.environment),
            "command": spec.command.for_rank(spec.local_rank),
            "arguments": spec.command.script_arguments(spec.local_rank),
            "module": spec.command.module,
            "stdio": list(given),
        }
        parked.connection.settimeout(HAND_OVER_SECONDS)
        try:
            messages.send(parked.connection, message, list(given.values()))
        except OSError as error:
            logger.debug("a parked worker did not take its command: %s", error)
            parked.connection.close()
            return False
        self._imports.follow(parked.connection)
        self._forked = True
        return True

    def _new_zygote(self, nice: int, *, careful: bool = False) -> Zygote:
        return Zygote(
            self._command.program[0],
            self._modules.names(),
            self._environment,
            self._reactor,
            on_ready=self._zygote_ready,
            on_parked=self._serve,
            on_gone=self._zygote_gone,
            nice=nice,
            careful=careful or bool(self._modules.unfit),
        )

    def _zygote_ready(self, zygote: Zygote) -> None:
        for name, why in zygote.unfit.items():
            self._leave_out(name, why)
        if zygote is self._next:
            old, self._zygote, self._next = self._zygote, zygote, None
            if old is not None:
                old.close()
            logger.debug("another zygote is ready (%.1f s)", zygote.seconds)
        else:
            logger.debug("zygote ready after %.1f s", zygote.seconds)
        zygote.park(max(self._nproc, len(self._requests)))
        if not self.stores.attached:
            zygote.fork_stores(self.stores.attach)

    def _stores_ready(self, _listening: bool) -> None:
        if not self.ready:
            self.ready = True
            self._on_ready()
        elif not self.stores.attached and self._zygote is not None and self._zygote.ready and not self.stores.hopeless:
            self._zygote.fork_stores(self.stores.attach)  # the host was killed

    def _zygote_gone(self, zygote: Zygote, end: End) -> None:
        if end.module and self._modules.can_do_without(end.module):
            self._leave_out(end.module, end.why)
            again = self._new_zygote(0 if zygote is self._zygote else 10)
            self._next, self._zygote = (again, self._zygote) if zygote is self._next else (self._next, again)
        elif zygote is self._next:
            self._next_gone(end)
        elif self.ready and not self.problem and self._may_replace(self._reactor.now()):
            logger.warning("the zygote was lost (%s); another one takes its place", end.why)
            self._next = self._next or self._new_zygote(0)
        else:
            self._do_without(end.why)
        self._serve()

    def _next_gone(self, end: End) -> None:
        careful = self._next is not None and self._next.careful
        self._next = None
        if not careful and self._modules.learned and not end.module:  # an import that ends the process: find it
            self._next = self._new_zygote(10, careful=True)
            return
        if self._zygote is not None and not self._zygote.ready:
            self._do_without(end.why)
            return
        logger.info("the script's imports cannot be preloaded: %s", end.why)
        self._modules = self._modules.unlearned()

    def _may_replace(self, now: float) -> bool:
        """Not for ever: a zygote that keeps dying is of no use."""
        self._deaths = [*(at for at in self._deaths if now - at < 600.0), now]
        return len(self._deaths) <= 3

    def _do_without(self, why: str) -> None:
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = None
        self.problem = why
        logger.warning("no zygote, workers are spawned: %s", why)
        if not self.ready:
            self.ready = True
            self._on_ready()

    def _leave_out(self, name: str, why: str) -> None:
        asked = self._modules.leave_out(name)
        logger.log(logging.WARNING if asked else logging.INFO, "%s is not preloaded, every worker imports it itself: %s", name, why)


GroupLauncher = ZygoteLauncher | PlainLauncher


def can_fork(command: Command) -> str:
    """Why this command cannot be run by a zygote; empty: it can."""
    if not command.program:
        return "the command is not Python"
    script = command.arguments[0]
    if command.module:
        return ""
    if os.path.isdir(script):
        return "the script is a directory"
    if script.endswith(".pyc"):
        return "the script is compiled"
    with contextlib.suppress(zipimport.ZipImportError):
        zipimport.zipimporter(script)
        return "the script is an archive"
    return ""
