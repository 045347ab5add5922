"""How workers come to life: forked from a zygote where that is possible, spawned where it is not.

`ready` tells the agent when it may take part: a member whose zygote still imports torch is `warming`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import zipimport
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.command import Command
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.process import SpawnLauncher, Started, WorkerSpec
from elasticjob_runtime.workers.spawn import SpawningLauncher
from elasticjob_runtime.workers.store_host import StoreHost
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.client import PRELOAD, Callbacks, End, Guess, ImportLog, Preforked, Zygote
from elasticjob_runtime.workers.zygote.learning import Learning
from elasticjob_runtime.workers.zygote.preload import AUTO, Modules, Verdicts, matches

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""s that a start waits for a fork. A fork takes milliseconds, a spawned worker seconds."""

LATE_PATIENCE = 60.0
"""s that a start waits for a fork that is importing already what the script would import: beginning anew would take
longer."""

WARM_SECONDS = 300.0
"""s that a newcomer takes at most to import what the others' scripts import, before it is ready all the same."""

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
        event_loop: EventLoop,
        *,
        preload: Sequence[str],
        ports: Sequence[int],
        on_ready: Callable[[], None],
        on_learned: Callable[[], None] = lambda: None,
        learn_after: float | None = None,
        waits_for_imports: bool = False,
    ) -> None:
        """`on_learned`: `imports` has grown. `waits_for_imports`: not ready before `tell_imports`."""
        self._command = command
        self._nproc = nproc
        self._environment = dict(environment)
        self._event_loop = event_loop
        self._modules = Modules(base=PRELOAD, asked=tuple(name for name in preload if name != AUTO))
        self._learning = Learning(self._modules, on=AUTO in preload, quiet=learn_after)
        self._on_ready = on_ready
        self._on_learned = on_learned
        self._spawn = SpawnLauncher()
        self._log = ImportLog(event_loop, lambda name: self._learning.imported(name, event_loop.now()))
        self._requests: list[Request] = []
        self._next: Zygote | None = None
        self._succeeding = False
        """A successor is asked for, and not yet there or not yet ready."""
        self._expected: dict[int, Mapping[str, str]] = {}
        """Local rank -> the environment of its next worker, most likely."""
        self._deaths: list[float] = []
        self._stores_told = False
        self._warm_until = float("inf") if waits_for_imports else 0.0
        """Monotonic time up to which it is not ready, since there are imports to do, or may be."""
        self.ready = False
        """Workers can be started: from the zygote, or because there will not be one."""
        self.problem = ""
        """Why workers are spawned; empty: they are not."""
        self.stores = StoreHost(event_loop, ports, self._stores_ready)
        self._zygote: Zygote | None = self._new_zygote()

    @property
    def deadline(self) -> float | None:
        """Monotonic time of the next `tick` that has something to do."""
        warm = self._warm_until if self._warm_until not in (0.0, float("inf")) else None
        learn = None if self._succeeding or self._next is not None else self._learning.due
        return min(
            (at for at in (learn, warm, *(request.until for request in self._requests)) if at is not None), default=None
        )

    @property
    def without_libuv(self) -> bool:
        """This torch has no libuv. Known from the store host, else from torch's library."""
        return not self.stores.libuv if self.stores.listening else libuv_is_lacking()

    @property
    def pids(self) -> list[int]:
        """Children of this process that somebody here waits for."""
        zygotes = [zygote for zygote in (self._zygote, self._next) if zygote is not None]
        return [
            pid for zygote in zygotes for pid in (zygote.waited_for, *(parked.pid for parked in zygote.parked)) if pid
        ]

    @property
    def imports(self) -> Verdicts:
        """What is known of the script's imports; another member may be told."""
        return self._modules.verdicts

    def start(self, spec: WorkerSpec, started: Started) -> None:
        """Calls `started` with the process id, or with what went wrong: now, or when a fork is ready."""
        patience = LATE_PATIENCE if self._is_coming(spec) else PATIENCE
        self._requests.append(Request(spec=spec, started=started, until=self._event_loop.now() + patience))
        self._serve()

    def cancel(self) -> None:
        """Forgets the starts that are still waited for."""
        self._requests.clear()

    def started(self) -> None:
        """All workers of a round are started: park the next ones, now that nothing waits for it."""
        self._park(self._zygote)

    def expect(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """What the next workers will be, by local rank, as far as is known."""
        self._expected = dict(environments)
        for zygote in (self._zygote, self._next):
            if zygote is not None:
                zygote.drop_wrong(self._guesses())
                self._park(zygote)

    def tell_imports(self, known: Verdicts | None, *, wait: bool) -> None:
        """What scripts like this one import, as another member or an earlier run has found out. `wait`: be ready only
        when it is done."""
        if known is not None:
            self._learning.told(known)
        if not self.ready:
            self._warm_until = self._event_loop.now() + WARM_SECONDS if wait and self._modules.to_try() else 0.0
        self._learn(self._event_loop.now())
        self._check_ready()

    def learn_from(self, known: Verdicts) -> None:
        """What an earlier run has found out. Nobody waits for it."""
        self._learning.told(known)
        self._learn(self._event_loop.now())

    def tick(self, now: float) -> None:
        for request in [request for request in self._requests if now >= request.until]:
            logger.info(
                "no fork within %g s: a worker is spawned", LATE_PATIENCE if self._is_coming(request.spec) else PATIENCE
            )
            self._spawn_one(request)
        if now >= self._warm_until:
            self._check_ready()
        self._learn(now)

    def close(self) -> None:
        self.cancel()
        for zygote in (self._zygote, self._next):
            if zygote is not None:
                zygote.close()
        self._zygote = self._next = None
        self.stores.close()

    # -- starts

    def _serve(self) -> None:
        for request in list(self._requests):
            if self._zygote is None or (not self._zygote.ready and not self._zygote.parked):
                self._spawn_one(request)
            else:
                self._serve_one(self._zygote, request)

    def _serve_one(self, zygote: Zygote, request: Request) -> None:
        local_rank = request.spec.local_rank
        while (parked := zygote.take(local_rank, request.spec.environment)) is not None:
            if self._hand_over(parked, request.spec):
                self._requests.remove(request)
                request.started(parked.pid)
                return
        if not zygote.ready:
            self._spawn_one(request)
        elif not any(self._is_right(guess, request.spec) for guess in zygote.coming(local_rank)):
            zygote.fork(Guess(local_rank=local_rank))

    def _is_coming(self, spec: WorkerSpec) -> bool:
        """Is a fork on its way that imports for this worker?"""
        coming = self._zygote.coming(spec.local_rank) if self._zygote is not None else []
        return any(guess.late and self._is_right(guess, spec) for guess in coming)

    def _is_right(self, guess: Guess, spec: WorkerSpec) -> bool:
        """As far as can be said before it has imported anything."""
        asked = {name for reads in self._modules.verdicts.late.values() for name in reads} if guess.late else set()
        return matches({name: guess.environment.get(name) for name in asked}, spec.environment)

    def _spawn_one(self, request: Request) -> None:
        self._requests.remove(request)
        self._spawn.start(request.spec, request.started)

    def _hand_over(self, parked: Preforked, spec: WorkerSpec) -> bool:
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
            ipc.send(parked.connection, message, list(given.values()))
        except OSError as error:
            logger.debug("a parked worker did not take its command: %s", error)
            parked.connection.close()
            return False
        self._log.follow(parked.connection)
        self._expected[spec.local_rank] = dict(spec.environment)
        return True

    # -- zygotes

    def _new_zygote(self) -> Zygote:
        return Zygote.start(
            self._command.program[0], self._modules.named(), self._environment, self._event_loop, self._callbacks()
        )

    def _callbacks(self) -> Callbacks:
        return Callbacks(
            on_ready=self._zygote_ready,
            on_parked=self._parked,
            on_gone=self._zygote_gone,
            on_unparked=self._late_import_failed,
        )

    def _guesses(self) -> list[Guess]:
        return [self._guess(local_rank) for local_rank in range(self._nproc)]

    def _guess(self, local_rank: int) -> Guess:
        environment = self._expected.get(local_rank)
        if environment is None:
            return Guess(local_rank=local_rank)
        return Guess(local_rank=local_rank, late=tuple(self._modules.verdicts.late), environment=environment)

    def _park(self, zygote: Zygote | None) -> None:
        if zygote is not None:
            for guess in self._guesses():
                zygote.park(guess)

    def _parked(self) -> None:
        self._promote()
        self._serve()
        self._check_ready()

    def _learn(self, now: float) -> None:
        """Makes a zygote that has imported what was learned, if it is time."""
        zygote = self._zygote
        if self._succeeding or self._next is not None or zygote is None or not zygote.ready:
            return
        if names := self._learning.take(now):
            self._succeeding = True
            zygote.successor(names, self._modules.verdicts, self._callbacks(), self._successor_forked)

    def _successor_forked(self, successor: Zygote) -> None:
        self._next = successor

    def _zygote_ready(self, zygote: Zygote) -> None:
        logger.debug(
            "%s is ready (%.1f s)", "the zygote" if zygote is self._zygote else "another zygote", zygote.seconds
        )
        if zygote.verdicts is not None:
            self._found_out(zygote.verdicts)
        self._park(zygote)
        if zygote is self._next and (zygote.verdicts is None or self._zygote is None or not self._zygote.ready):
            self._take_over()
        self._learn(self._event_loop.now())
        if not self.stores.attached:
            zygote.fork_stores(self.stores.attach)

    def _found_out(self, found: Verdicts) -> None:
        known = self._modules.verdicts
        for name, why in found.refused.items():
            if name not in known.refused:
                logger.info("%s is not preloaded, every worker imports it itself: %s", name, why)
        known.add(found)

    def _promote(self) -> None:
        """The next zygote takes over once it has parked its workers: until then those of the one before are there for a
        restart."""
        successor = self._next
        if (
            successor is not None
            and successor.ready
            and {parked.local_rank for parked in successor.parked} >= set(range(self._nproc))
        ):
            self._take_over()

    def _take_over(self) -> None:
        old, self._zygote, self._next = self._zygote, self._next, None
        assert self._zygote is not None
        learned, self._succeeding = self._zygote.verdicts is not None, False
        if old is not None:
            old.close()
        self._learning.done(self._event_loop.now(), anew=not learned)
        if learned:
            self._on_learned()
        self._learn(self._event_loop.now())

    def _late_import_failed(self, guess: Guess) -> None:
        """A fork ended while it imported what asks for its rank, or it may not go on: from now on the script imports
        that itself."""
        verdicts = self._modules.verdicts
        if guess.late and verdicts.late:
            logger.info(
                "%s: not imported ahead of the workers: the import ends a process, or leaves it unfit",
                ", ".join(guess.late[:3]),
            )
            verdicts.refused.update(dict.fromkeys(verdicts.late, "importing it ahead of the script ends the process"))
            verdicts.late.clear()
        for zygote in (self._zygote, self._next):
            self._park(zygote)
        self._serve()

    def _stores_ready(self, _listening: bool) -> None:
        again, self._stores_told = self._stores_told, True
        if (
            again
            and not self.stores.attached
            and self._zygote is not None
            and self._zygote.ready
            and not self.stores.hopeless
        ):
            self._zygote.fork_stores(self.stores.attach)  # the host was killed
        self._check_ready()

    def _check_ready(self) -> None:
        if self.ready or not self._stores_told:
            return
        warming = self._succeeding or self._next is not None or bool(self._modules.to_try()) or self._lacks_late()
        if self._event_loop.now() >= self._warm_until or (self._warm_until < float("inf") and not warming):
            self._warm_until = 0.0
            self.ready = True
            self._on_ready()

    def _lacks_late(self) -> bool:
        """Workers that import for themselves are still at it."""
        there = {parked.local_rank for parked in self._zygote.parked} if self._zygote is not None else set()
        return bool(self._modules.verdicts.late) and there < set(range(self._nproc))

    def _zygote_gone(self, zygote: Zygote, end: End) -> None:
        if zygote is self._zygote and self._next is None:
            self._succeeding = False  # it was asked for one, and did not get to it
        if end.module and self._modules.can_do_without(end.module):
            self._leave_out(end.module, end.why)
            again = self._new_zygote()
            self._next, self._zygote = (again, self._zygote) if zygote is self._next else (self._next, again)
        elif zygote is self._next:
            self._next_gone(end)
        elif self.ready and not self.problem and self._may_replace(self._event_loop.now()):
            logger.warning("the zygote was lost (%s); another one takes its place", end.why)
            self._next = self._next or self._new_zygote()
        else:
            self._do_without(end.why)
        self._serve()
        self._check_ready()

    def _next_gone(self, end: End) -> None:
        self._next, self._succeeding = None, False
        if self._zygote is None or not self._zygote.ready:
            self._do_without(end.why)
            return
        logger.info("the script's imports cannot be preloaded: %s", end.why)
        self._learning.done(self._event_loop.now(), anew=False)

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
        self._modules.leave_out(name)
        logger.warning("%s is not preloaded, every worker imports it itself: %s", name, why)


GroupLauncher = ZygoteLauncher | SpawningLauncher


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
