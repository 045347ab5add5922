"""Keeps a zygote running: replaces it with a successor that has imported more, or with a fresh one if it is lost, and
keeps a preforked process ready for each local rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.process import WorkerSpec
from elasticjob_runtime.workers.store_host import StoreHost
from elasticjob_runtime.workers.zygote.client import Zygote, ZygoteCallbacks, ZygoteExit
from elasticjob_runtime.workers.zygote.expected import ExpectedWorker, ExpectedWorkers
from elasticjob_runtime.workers.zygote.preload import ImportResults, LearningSchedule, PreloadModules

logger = logging.getLogger(__name__)

MAX_REPLACEMENTS = 3
"""Lost zygotes replaced within REPLACEMENT_WINDOW. A zygote that keeps dying is of no use."""

REPLACEMENT_WINDOW = 600.0
"""s."""


class ZygoteSupervisor:
    """The current zygote, and at times its successor: one that has tried to import what was learned, or the replacement
    of a lost one."""

    def __init__(
        self,
        python: str,
        nproc: int,
        environment: Mapping[str, str],
        event_loop: EventLoop,
        modules: PreloadModules,
        schedule: LearningSchedule,
        *,
        ports: Sequence[int],
        round_ports: int | None,
        on_change: Callable[[], None],
        on_learned: Callable[[], None],
    ) -> None:
        """`on_change`: workers may be startable that were not before, or the other way round. `on_learned`: the
        results on imports have changed."""
        self._python = python
        self._environment = dict(environment)
        self._event_loop = event_loop
        self._modules = modules
        self._schedule = schedule
        self._on_change = on_change
        self._on_learned = on_learned
        self._expected = ExpectedWorkers(nproc, modules)
        self._successor_requested = False
        """A successor was requested, and is not forked or not ready yet."""
        self._losses: list[float] = []
        self.problem = ""
        """Why there is no zygote, and workers are spawned; empty if there is one."""
        self.replaces_lost = False
        """Whether a lost zygote is replaced. False until workers could be started once: the first zygote may fail
        because this machine or its torch cannot fork one."""
        self.stores_tried = False
        """The store host has answered, with stores or with an error."""
        self.stores = StoreHost(event_loop, ports, self._stores_changed, round_ports=round_ports)
        self.successor: Zygote | None = None
        self.current: Zygote | None = None
        self.current = self._new_zygote()

    @property
    def learning_due(self) -> float | None:
        """Monotonic time at which `learn` has something to do."""
        return None if self.is_learning else self._schedule.due

    @property
    def is_learning(self) -> bool:
        """A successor is on its way."""
        return self._successor_requested or self.successor is not None

    @property
    def pids(self) -> list[int]:
        """Children of this process that are reaped here."""
        return [
            pid
            for zygote in self._zygotes()
            for pid in (zygote.child_pid, *(preforked.pid for preforked in zygote.preforked))
            if pid
        ]

    @property
    def all_preforked(self) -> bool:
        return self.current is not None and self._has_all(self.current)

    def expect(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Sets the environments that the next workers will probably have, by local rank."""
        self._expected.set_environments(environments)
        for zygote in self._zygotes():
            zygote.pool.drop_outdated(self._expected.workers())
            self.prefork(zygote)

    def expect_again(self, spec: WorkerSpec) -> None:
        """The next worker of a local rank will probably have the environment of the one that just started."""
        self._expected.set_environment(spec.local_rank, spec.environment)

    def pending_for(self, spec: WorkerSpec) -> list[ExpectedWorker]:
        """Processes being forked that will be able to run this worker, as far as is known before their imports."""
        pending = self.current.pool.pending(spec.local_rank) if self.current is not None else []
        return [expected for expected in pending if self._expected.can_run(expected, spec)]

    def prefork(self, zygote: Zygote | None) -> None:
        """Makes sure that `zygote` has a preforked process for each local rank, or that one is pending."""
        if zygote is not None:
            for expected in self._expected.workers():
                zygote.pool.prefork(expected)

    def learn(self, now: float) -> None:
        """Forks a successor that tries the imports learned since the last one, if it is time."""
        if self.is_learning or self.current is None or not self.current.ready:
            return
        if names := self._schedule.take_due(now):
            self._successor_requested = True
            self.current.fork_successor(names, self._modules.results, self._callbacks(), self._successor_forked)

    def close(self) -> None:
        for zygote in self._zygotes():
            zygote.close()
        self.current = self.successor = None
        self.stores.close()

    def _zygotes(self) -> list[Zygote]:
        return [zygote for zygote in (self.current, self.successor) if zygote is not None]

    def _new_zygote(self) -> Zygote:
        return Zygote.start(
            self._python, self._modules.initial(), self._environment, self._event_loop, self._callbacks()
        )

    def _callbacks(self) -> ZygoteCallbacks:
        return ZygoteCallbacks(
            on_ready=self._zygote_ready,
            on_preforked=self._preforked,
            on_exit=self._zygote_exited,
            on_fork_lost=self._fork_lost,
        )

    def _has_all(self, zygote: Zygote) -> bool:
        return {preforked.local_rank for preforked in zygote.preforked} >= set(self._expected.local_ranks)

    # -- progress of a zygote

    def _zygote_ready(self, zygote: Zygote) -> None:
        logger.debug("%s is ready (%.1f s)", "the zygote" if zygote is self.current else "a successor", zygote.seconds)
        if zygote.results is not None:
            self._add_results(zygote.results)
        self.prefork(zygote)
        if zygote is self.successor and (zygote.results is None or self.current is None or not self.current.ready):
            self._promote_successor()
        self.learn(self._event_loop.now())
        if not self.stores.attached:
            zygote.fork_store_host(self.stores.attach)

    def _add_results(self, results: ImportResults) -> None:
        for name, reason in results.excluded.items():
            if name not in self._modules.results.excluded:
                logger.info("not preloading %s, every worker imports it itself: %s", name, reason)
        self._modules.results.add(results)

    def _successor_forked(self, successor: Zygote) -> None:
        self.successor = successor

    def _preforked(self) -> None:
        """A successor takes over once it has all its preforked processes: until then, a restart uses those of the
        current zygote."""
        if self.successor is not None and self.successor.ready and self._has_all(self.successor):
            self._promote_successor()
        self._on_change()

    def _promote_successor(self) -> None:
        old, self.current, self.successor = self.current, self.successor, None
        assert self.current is not None
        learned, self._successor_requested = self.current.results is not None, False
        if old is not None:
            old.close()
        self._schedule.finished(self._event_loop.now(), fresh_zygote=not learned)
        if learned:
            self._on_learned()
        self.learn(self._event_loop.now())

    def _fork_lost(self, expected: ExpectedWorker) -> None:
        """If a per-rank import ended the process or made it unsafe to fork, the script imports those modules itself
        from now on."""
        results = self._modules.results
        if expected.per_rank_imports and results.per_rank:
            logger.info(
                "not importing %s ahead of the workers: the import ends the process, or leaves it not fork-safe",
                ", ".join(expected.per_rank_imports[:3]),
            )
            reason = "importing it ahead of the script ends the process"
            results.excluded.update(dict.fromkeys(results.per_rank, reason))
            results.per_rank.clear()
        for zygote in self._zygotes():
            self.prefork(zygote)
        self._on_change()

    def _stores_changed(self, _listening: bool) -> None:
        was_tried, self.stores_tried = self.stores_tried, True
        host_was_lost = was_tried and not self.stores.attached and not self.stores.unusable
        if host_was_lost and self.current is not None and self.current.ready:
            self.current.fork_store_host(self.stores.attach)
        self._on_change()

    # -- the end of a zygote

    def _zygote_exited(self, zygote: Zygote, exit_: ZygoteExit) -> None:
        if zygote is self.current and self.successor is None:
            self._successor_requested = False  # it did not get to it
        if exit_.module and self._modules.can_exclude(exit_.module):
            self._restart_without(exit_.module, exit_.reason, zygote)
        elif zygote is self.successor:
            self._successor_exited(exit_)
        elif self.replaces_lost and not self.problem and self._may_replace(self._event_loop.now()):
            logger.warning("lost the zygote (%s); starting another", exit_.reason)
            self.successor = self.successor or self._new_zygote()
        else:
            self._give_up(exit_.reason)
        self._on_change()

    def _restart_without(self, module: str, reason: str, zygote: Zygote) -> None:
        logger.warning("not preloading %s, every worker imports it itself: %s", module, reason)
        self._modules.exclude(module)
        if zygote is self.successor:
            self.successor = self._new_zygote()
        else:
            self.current = self._new_zygote()

    def _successor_exited(self, exit_: ZygoteExit) -> None:
        self.successor, self._successor_requested = None, False
        if self.current is None or not self.current.ready:
            self._give_up(exit_.reason)
            return
        logger.info("cannot preload the script's imports: %s", exit_.reason)
        self._schedule.finished(self._event_loop.now(), fresh_zygote=False)

    def _may_replace(self, now: float) -> bool:
        self._losses = [*(at for at in self._losses if now - at < REPLACEMENT_WINDOW), now]
        return len(self._losses) <= MAX_REPLACEMENTS

    def _give_up(self, reason: str) -> None:
        if self.current is not None:
            self.current.close()
        self.current = None
        self.problem = reason
        logger.warning("no zygote, spawning workers: %s", reason)
