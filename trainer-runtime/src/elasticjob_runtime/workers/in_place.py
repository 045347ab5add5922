"""The part of a worker group that continues in place: it sends plans to workers, and kills those that do not follow."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Sequence

from elasticjob_runtime.membership.view import Plan, Workers
from elasticjob_runtime.workers.followers import ENTERED, FAILED, WAITING, Followers
from elasticjob_runtime.workers.messages import WorkerMessages
from elasticjob_runtime.workers.prepare import WorkerPreparation
from elasticjob_runtime.workers.process import WorkerProcess

logger = logging.getLogger(__name__)

UNRESPONSIVE = "Unresponsive"
"""Failure reason: the worker process did not follow a plan in time."""


class InPlace:
    """Used by WorkerGroup only, on the agent's loop."""

    def __init__(
        self, preparation: WorkerPreparation, messages: WorkerMessages, workers: Sequence[WorkerProcess]
    ) -> None:
        """`workers`: the group's running workers, a list that the group changes."""
        self._preparation = preparation
        self._workers = workers
        self._told: set[int] = set()
        """Local ranks that were told that their last world ends."""
        self.followers = Followers(
            messages.send_to,
            ack_timeout=preparation.group.ack_timeout,
            arrive_timeout=preparation.group.arrive_timeout,
        )

    def move(self, plan: Plan, patience: float, now: float) -> None:
        """Sends `plan` to the workers that can continue under it. Those that have not said yet whether they can receive
        it when they do."""
        if plan.rank is not None:
            self.followers.others_wait(now)
        for worker in self._workers:
            rank = self._preparation.rank(plan, worker.spec.local_rank)
            worker.spec = dataclasses.replace(worker.spec, rank=rank)
            if self.followers.can_hear(worker.spec.local_rank):
                self._tell(worker, plan, patience, now)

    def said_hello(self, local_rank: int, plan: Plan, now: float) -> None:
        """The worker of `local_rank` can continue under another plan than `plan`."""
        for worker in self._workers:
            if worker.spec.local_rank == local_rank:
                self.followers.said_hello(local_rank)
                self._tell(worker, plan, 0.0, now)

    def end(self, now: float, *, saves: bool) -> list[WorkerProcess]:
        """Tells the workers that save at the end of their last world that it ends now, and returns them. The first one
        saves if this member `saves`; none if they have a signal handler of their own for that."""
        told = [
            worker
            for worker in self._workers
            if self.followers.can_save_at_end(worker.spec.local_rank) and not worker.catches(signal.SIGTERM)
        ]
        for worker in told:
            self.followers.tell_end(worker.spec.local_rank, saves and worker.spec.local_rank == 0, now)
        self._told = {worker.spec.local_rank for worker in told}
        return told

    def outside(self) -> list[WorkerProcess]:
        """The workers that have left their world, and wait for another one."""
        return [worker for worker in self._workers if self.followers.is_waiting(worker.spec.local_rank)]

    def has_ended(self, local_rank: int) -> bool:
        """Whether this worker has left its last world, and saved if it had to."""
        return local_rank in self._told and self.followers.is_waiting(local_rank)

    def seen(self, view: Workers, now: float) -> Workers:
        """`view` with what is known about the workers."""
        followers, nproc = self.followers, self._preparation.group.nproc
        return dataclasses.replace(
            view,
            movable=followers.movable,
            in_place=followers.proven == nproc == len(self._workers),
            waiting=followers.count(WAITING) == nproc,
            entered=None if followers.count(ENTERED) == nproc else view.entered,
            rejected_at=(view.rejected_at or now) if followers.count(FAILED) else None,
            rejected_why=view.rejected_why if view.rejected_at else followers.why_failed,
        )

    def kill_overdue(self, now: float) -> None:
        overdue = self.followers.overdue(now)
        for worker in self._workers:
            if (message := overdue.get(worker.spec.local_rank)) is not None:
                logger.warning("worker process %d %s; killing it", worker.pid, message)
                worker.fail(UNRESPONSIVE, message)

    def _tell(self, worker: WorkerProcess, plan: Plan, patience: float, now: float) -> None:
        local_rank, environment = worker.spec.local_rank, None
        if plan.rank is not None:
            environment = self._preparation.worker_environment(plan, local_rank, str(worker.spec.error_file))
        self.followers.tell(local_rank, plan, patience, environment, now)
