"""Starts the workers of a round, at once or when their forks are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.workers.prepare import PreparedWorker, WorkerPreparation
from elasticjob_runtime.workers.process import WorkerProcess
from elasticjob_runtime.workers.zygote.launcher import GroupLauncher


class WorkerStarter:
    """The starts that are under way. All calls are on the agent's loop."""

    def __init__(
        self,
        launcher: GroupLauncher,
        preparation: WorkerPreparation,
        *,
        on_started: Callable[[WorkerProcess], None],
        on_failed: Callable[[int, Exception], None],
    ) -> None:
        """`on_failed`: called with the local rank of a worker that cannot be started, and the reason."""
        self._launcher = launcher
        self._preparation = preparation
        self._on_started = on_started
        self._on_failed = on_failed
        self._starting: list[PreparedWorker] = []

    def start(self, plan: Plan, local_ranks: Iterable[int], *, alone: bool = False) -> None:
        """`alone`: each in a world of its own."""
        new: list[PreparedWorker] = []
        for local_rank in local_ranks:
            try:
                prepared = self._preparation.prepare(
                    plan, local_rank, without_libuv=self._launcher.without_libuv, alone=alone
                )
            except (OSError, ValueError) as error:
                self._on_failed(local_rank, error)
                return
            self._starting.append(prepared)
            new.append(prepared)
        for prepared in new:
            if prepared in self._starting:  # not canceled by the failure of an earlier one
                self._launcher.start(
                    prepared.spec,
                    lambda result, prepared=prepared: self._started(prepared, result),  # type: ignore[misc]
                )

    def cancel(self) -> None:
        """Drops the starts that are still waiting."""
        self._launcher.cancel()
        for prepared in self._starting:
            prepared.close_writing_ends()
            prepared.close_sinks()
        self._starting.clear()

    def _started(self, prepared: PreparedWorker, result: int | OSError) -> None:
        self._starting.remove(prepared)
        prepared.close_writing_ends()
        worker = self._watch(prepared, result) if isinstance(result, int) else result
        if isinstance(worker, OSError):
            prepared.close_sinks()
            self._on_failed(prepared.spec.local_rank, worker)
            return
        self._on_started(worker)
        if not self._starting:
            self._launcher.prefork_next()

    def _watch(self, prepared: PreparedWorker, pid: int) -> WorkerProcess | OSError:
        try:
            return WorkerProcess(prepared.spec, pid, prepared.sinks)
        except OSError as error:
            WorkerProcess.kill_unwatched(pid)
            return error
