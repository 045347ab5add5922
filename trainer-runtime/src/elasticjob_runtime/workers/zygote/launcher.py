"""Starts workers: forked from a zygote if possible, spawned otherwise."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import zipimport
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.process import Command, WorkerSpec
from elasticjob_runtime.workers.spawn import OnStarted, SpawnLauncher, spawn
from elasticjob_runtime.workers.store_host import StoreHost
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.client import Zygote
from elasticjob_runtime.workers.zygote.expected import ExpectedWorker
from elasticjob_runtime.workers.zygote.import_log import ImportLog
from elasticjob_runtime.workers.zygote.pool import Preforked
from elasticjob_runtime.workers.zygote.preload import AUTO, ImportResults, LearningSchedule, PreloadModules
from elasticjob_runtime.workers.zygote.supervisor import ZygoteSupervisor

logger = logging.getLogger(__name__)

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",  # DistributedDataParallel imports it: 2.5 s
    "numpy",
    "elasticjob_runtime.training.session.session",  # not learned: it may lie outside of site-packages
)
"""What nearly every training script imports."""

FORK_TIMEOUT = 3.0
"""s that a start waits for a fork, which takes milliseconds. A spawned worker takes seconds. A stopped zygote that
takes longer is killed."""

STUCK_TIMEOUT = 30.0
"""s after which any zygote is: all its imports were done before it was ready, or are done in the fork. Shorter: a
machine that swaps loses zygotes, of which only a few are replaced."""

IMPORTING_FORK_TIMEOUT = 60.0
"""s that a start waits for a fork that is importing what the script imports too: spawning would take longer."""

WARM_UP_TIMEOUT = 300.0
"""s that a joining member takes at most to import what the scripts of the others import before it is ready."""

PREFORK_DELAY = 0.25
"""s from the start of workers until the next ones are forked ahead. By then, most have taken their first step, and no
longer need all processors."""

HAND_OVER_TIMEOUT = 1.0
"""s that a preforked process has to take its command."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    """A worker that is to be started."""

    spec: WorkerSpec
    on_started: OnStarted
    spawn_at: float
    """Monotonic time."""


class ZygoteLauncher:
    """Starts workers from preforked processes, and spawns them if there is no zygote or it does not answer in time.

    `ready` says whether this member can take part: until its zygote has imported torch, it is warming up.
    """

    def __init__(
        self,
        command: Command,
        nproc: int,
        environment: Mapping[str, str],
        event_loop: EventLoop,
        *,
        preload: Sequence[str],
        ports: Sequence[int],
        round_ports: int | None = None,
        on_learned: Callable[[], None] = lambda: None,
        learn_after: float | None = None,
        waits_for_imports: bool = False,
    ) -> None:
        """`ports`, `round_ports`: see StoreHost. `on_learned`: `imports` has grown. `waits_for_imports`: not ready
        before `add_imports` was called."""
        self._event_loop = event_loop
        self._modules = PreloadModules(base=PRELOAD, requested=tuple(name for name in preload if name != AUTO))
        self._schedule = LearningSchedule(self._modules, enabled=AUTO in preload, quiet=learn_after)
        self._import_log = ImportLog(event_loop, lambda name: self._schedule.imported(name, event_loop.now()))
        self._requests: list[StartRequest] = []
        self._warm_until = float("inf") if waits_for_imports else 0.0
        """Monotonic time until which this member is not ready because it has imports to try, or may have."""
        self._prefork_at: float | None = None
        self.ready = False
        """Workers can be started: from the zygote, or because there is none."""
        self._zygotes = ZygoteSupervisor(
            command.program[0], nproc, environment, event_loop, self._modules, self._schedule,
            ports=ports, round_ports=round_ports, on_change=self._zygotes_changed, on_learned=on_learned,
        )  # fmt: skip

    @property
    def problem(self) -> str:
        """Why workers are spawned; empty if they are forked."""
        return self._zygotes.problem

    @property
    def stores(self) -> StoreHost:
        return self._zygotes.stores

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        warm = self._warm_until if self._warm_until not in (0.0, float("inf")) else None
        spawns = (request.spawn_at for request in self._requests)
        times = (self._zygotes.learning_due, warm, self._prefork_at, self._stuck_at, *spawns)
        return min((at for at in times if at is not None), default=None)

    @property
    def without_libuv(self) -> bool:
        """Whether this torch lacks libuv: according to the store host, or else to torch's library."""
        return not self.stores.libuv if self.stores.listening else libuv_is_lacking()

    @property
    def pids(self) -> list[int]:
        """Children of this process that are reaped here."""
        return self._zygotes.pids

    @property
    def imports(self) -> ImportResults:
        """What is known about the script's imports, to share with other members."""
        return self._modules.results

    def start(self, spec: WorkerSpec, on_started: OnStarted) -> None:
        """Calls `on_started` now, or when a fork is ready."""
        if self._prefork_at is not None:
            self._prefork()
        at = self._event_loop.now() + self._timeout(spec)
        self._requests.append(StartRequest(spec=spec, on_started=on_started, spawn_at=at))
        self._serve_requests()

    def cancel(self) -> None:
        """Drops the starts that are still waiting."""
        self._requests.clear()

    def prefork_next(self) -> None:
        """Call this when all workers of a round have started."""
        self._prefork_at = self._event_loop.now() + PREFORK_DELAY

    def expect(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Sets the environments that the next workers will probably have, by local rank."""
        self._zygotes.expect(environments)

    def add_imports(self, known: ImportResults | None, *, wait: bool) -> None:
        """Takes over what another member found out about the script's imports. `wait`: get ready only when they are
        done."""
        if known is not None:
            self._schedule.add_known(known)
        if not self.ready:
            self._warm_until = self._event_loop.now() + WARM_UP_TIMEOUT if wait and self._modules.untried() else 0.0
        self._zygotes.learn(self._event_loop.now())
        self._check_ready()

    def tick(self, now: float) -> None:
        self._end_stuck(now)
        for request in [request for request in self._requests if now >= request.spawn_at]:
            logger.info("no forked process within %g s, spawning a worker", self._timeout(request.spec))
            self._spawn(request)
        if now >= self._warm_until:
            self._check_ready()
        if self._prefork_at is not None and now >= self._prefork_at:
            self._prefork()
        self._zygotes.learn(now)

    def close(self) -> None:
        self.cancel()
        self._zygotes.close()

    def _prefork(self) -> None:
        self._prefork_at = None
        self._zygotes.prefork(self._zygotes.current)

    @property
    def _stuck_at(self) -> float | None:
        """Monotonic time at which a start no longer waits for a zygote that forks nothing."""
        zygote = self._zygotes.current
        if not self._requests or zygote is None or not zygote.ready or zygote.owes_since is None:
            return None
        return zygote.owes_since + (FORK_TIMEOUT if linux.stop_signal(zygote.pid) else STUCK_TIMEOUT)

    def _end_stuck(self, now: float) -> None:
        stuck_at, zygote = self._stuck_at, self._zygotes.current
        if zygote is not None and stuck_at is not None and now >= stuck_at:
            assert zygote.owes_since is not None
            seconds = now - zygote.owes_since
            logger.warning("killing the zygote: a worker waits, and it has forked nothing for %.0f s", seconds)
            zygote.end()

    def _timeout(self, spec: WorkerSpec) -> float:
        is_importing = any(pending.per_rank_imports for pending in self._zygotes.pending_for(spec))
        return IMPORTING_FORK_TIMEOUT if is_importing else FORK_TIMEOUT

    def _zygotes_changed(self) -> None:
        self._serve_requests()
        self._check_ready()

    def _serve_requests(self) -> None:
        for request in list(self._requests):
            zygote = self._zygotes.current
            if zygote is None or (not zygote.ready and not zygote.preforked):
                self._spawn(request)
            else:
                self._serve(zygote, request)

    def _serve(self, zygote: Zygote, request: StartRequest) -> None:
        spec = request.spec
        while (preforked := zygote.pool.take(spec.local_rank, spec.environment)) is not None:
            if self._hand_over(preforked, spec):
                self._requests.remove(request)
                request.on_started(preforked.pid)
                return
        if not zygote.ready:
            self._spawn(request)
        elif not self._zygotes.pending_for(spec):
            zygote.pool.fork(ExpectedWorker(local_rank=spec.local_rank))

    def _spawn(self, request: StartRequest) -> None:
        self._requests.remove(request)
        spawn(request.spec, request.on_started)

    def _hand_over(self, preforked: Preforked, spec: WorkerSpec) -> bool:
        """Makes a preforked process the worker. Returns False if it was killed in the meantime."""
        stdin = 0 if linux.is_open(0) else None
        streams = {target: fd for target, fd in ((0, stdin), (1, spec.stdout), (2, spec.stderr)) if fd is not None}
        message = {
            "environment": dict(spec.environment),
            "command": spec.command.for_rank(spec.local_rank),
            "arguments": spec.command.script_arguments(spec.local_rank),
            "module": spec.command.module,
            "stdio": list(streams),
        }
        preforked.connection.settimeout(HAND_OVER_TIMEOUT)
        try:
            ipc.send(preforked.connection, message, list(streams.values()))
        except OSError as error:
            logger.debug("a preforked process did not take its command: %s", error)
            preforked.connection.close()
            return False
        self._import_log.follow(preforked.connection)
        self._zygotes.expect_again(spec)
        return True

    def _check_ready(self) -> None:
        if self.ready:
            return
        if self.problem or (self._zygotes.stores_tried and self._is_warm()):
            self._warm_until = 0.0
            self.ready = self._zygotes.replaces_lost = True

    def _is_warm(self) -> bool:
        """All known imports are done, or have taken too long."""
        if self._event_loop.now() >= self._warm_until:
            return True
        importing = bool(self._modules.results.per_rank) and not self._zygotes.all_preforked
        busy = self._zygotes.is_learning or bool(self._modules.untried()) or importing
        return self._warm_until < float("inf") and not busy


GroupLauncher = ZygoteLauncher | SpawnLauncher


def no_fork_reason(command: Command) -> str | None:
    """Why a zygote cannot run this command; None: it can."""
    if not command.program:
        return "the command is not Python"
    script = command.arguments[0]
    if command.module:
        return None
    if os.path.isdir(script):
        return "the script is a directory"
    if script.endswith(".pyc"):
        return "the script is compiled"
    with contextlib.suppress(zipimport.ZipImportError):
        zipimport.zipimporter(script)
        return "the script is an archive"
    return None
