"""The local worker processes that save before they are stopped: who is asked, who gets the signal, when all have."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence

from elasticjob_runtime.workers.process import WorkerProcess


class Savers:
    """Used by WorkerGroup only, on the agent's loop."""

    def __init__(self, ask_to_save: Callable[[int, float], None]) -> None:
        """`ask_to_save`: asks the worker of a rank to save within a number of seconds."""
        self._ask_to_save = ask_to_save
        self._on_request: set[int] = set()
        """Ranks that call `checkpoint_wanted`: they are asked to save, instead of by a signal."""
        self._saving: set[WorkerProcess] | None = None
        """The workers that still save, if others do not or if some were asked. When all of them have ended or reported
        that they have saved, all workers of the group can be killed. None: they end by themselves."""

    def clear(self) -> None:
        """New workers start."""
        self._on_request = set()
        self._saving = None

    def end(self) -> None:
        """No worker saves any more."""
        self._saving = None

    def begin(
        self,
        workers: Sequence[WorkerProcess],
        number: int,
        grace: float,
        *,
        told: Sequence[WorkerProcess] = (),
        outside: Sequence[WorkerProcess] = (),
    ) -> list[WorkerProcess]:
        """Asks the workers that save on request. Returns those that get the signal `number`.

        told: workers that save for another reason; outside: those that have left their world, and so do not hear a
        request.

        If some are asked, or only some handle the signal, only those that handle it get it. The rest, which they may
        need to finish a step, are killed when all have saved.
        """
        asked = [worker for worker in workers if self._saves_on_request(worker) and worker not in (*told, *outside)]
        signalled = [worker for worker in workers if worker not in (*asked, *told) and worker.catches(number)]
        savers = {*asked, *signalled, *told}
        self._saving = savers if asked or told or (savers and len(savers) < len(workers)) else None
        for worker in asked:
            self._ask_to_save(worker.spec.rank, grace)
        return signalled if self._saving is not None else list(workers)

    def add(self, rank: int, workers: Iterable[WorkerProcess], remaining: float | None) -> None:
        """The worker of `rank` calls `checkpoint_wanted`. It is asked at once if others are saving on request already.

        remaining: seconds until all workers are killed; None: they will not be.
        """
        asking = any(self._saves_on_request(worker) for worker in self._saving or ())
        self._on_request.add(rank)
        for worker in workers:
            if asking and remaining is not None and worker.spec.rank == rank and self._saves_on_request(worker):
                assert self._saving is not None
                self._saving.add(worker)
                self._ask_to_save(rank, remaining)

    def saved(self, rank: int) -> bool:
        """The worker of `rank` has nothing left to save. Returns whether all workers can be killed."""
        return any(self.done(worker) for worker in list(self._saving or ()) if worker.spec.rank == rank)

    def left(self, local_rank: int) -> bool:
        """The worker of `local_rank` has left its last world. Returns whether all workers can be killed."""
        return any(self.done(worker) for worker in list(self._saving or ()) if worker.spec.local_rank == local_rank)

    def done(self, worker: WorkerProcess) -> bool:
        """The worker has saved or ended. Returns whether it was the last one, so that all workers can be killed."""
        if self._saving is None:
            return False
        self._saving.discard(worker)
        if self._saving:
            return False
        self._saving = None
        return True

    def _saves_on_request(self, worker: WorkerProcess) -> bool:
        return worker.spec.rank in self._on_request and not worker.catches(signal.SIGTERM)
