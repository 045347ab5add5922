"""Which worker pods' logs to read, and which lines of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.errors import NotFoundError, UsageError
from elasticjob.state import JobState, WorkerState, in_rank_order

MOST_STREAMS = 64
"""Logs that are read at the same time unless the user asks for all: each is a connection."""


@dataclass(frozen=True)
class Selection:
    """Which lines of which worker pods."""

    since_seconds: int | None = None
    tail: int | None = None
    """Of each pod. None, and as with kubectl a negative number: all."""
    container: str | None = None
    """None: the one that trains."""
    previous: bool = False
    rank: int | None = None
    """Only the worker pod of that rank; with `replica`, of that rank in the replica."""
    replica: int | None = None
    """Only the worker pods of that replica."""
    worker: str | None = None
    """Only those of that index, or the one with that name."""
    everything: bool = False
    """All worker pods, however many there are."""

    @property
    def is_of_one(self) -> bool:
        """Whether it is of one worker pod at a time."""
        return self.rank is not None or self.worker is not None


def processes_per_pod(job: JobState, workers: Sequence[WorkerState]) -> int:
    """Worker processes in each worker pod; 1 if it is not known."""
    if job.procs.isdigit():
        return int(job.procs)
    rounds = (change for change in reversed(job.history) if change.type == "Round")
    newest = next((change for change in rounds if change.workers and change.world_size), None)
    if newest is not None:
        return newest.world_size // newest.workers
    ready = sum(worker.ready for worker in workers)
    return job.world_size // ready if ready and job.world_size % ready == 0 and job.world_size else 1


def choose_workers(job: JobState, workers: Sequence[WorkerState], selection: Selection) -> list[WorkerState]:
    """Raises NotFoundError, UsageError."""
    rank, worker = selection.rank, selection.worker
    if selection.replica is not None:
        return _of_replica(job, workers, selection.replica, rank)
    if rank is not None and job.replica_size:
        raise UsageError(
            f"{job.name} trains in replicas of {job.replica_size} worker pods, and each replica has ranks from 0.",
            f"Choose a replica, too: --replica 0 --rank {rank}",
        )
    if rank is not None:
        order = in_rank_order(workers) or list(workers)
        per_pod = processes_per_pod(job, workers)
        if not 0 <= rank < len(order) * per_pod:
            raise NotFoundError(
                f"There is no rank {rank}: {job.name} has ranks 0 to {len(order) * per_pod - 1}."
                if order
                else f"{job.name} has no worker pods, so no rank {rank}."
            )
        return [order[rank // per_pod]]
    if worker is not None:
        index = worker.removeprefix(f"{job.name}-").removeprefix("worker-")
        if found := [candidate for candidate in workers if worker == candidate.name or index == str(candidate.index)]:
            return found
        raise NotFoundError(f"{job.name} has no worker pod {worker}: give its index, such as 0, or its name.")
    if len(workers) > MOST_STREAMS and not selection.everything:
        raise UsageError(
            f"{job.name} has {len(workers)} worker pods.",
            f"Read some with {'--replica' if job.replica_size else '--rank'} 0, or all with --all (a connection to the "
            "API server for each).",
        )
    return list(workers)


def _of_replica(job: JobState, workers: Sequence[WorkerState], replica: int, rank: int | None) -> list[WorkerState]:
    """Those of the replica that are there, by their ranks; the one of `rank` alone, if it is given."""
    if not job.replica_size:
        raise UsageError(f"{job.name} does not train in replicas, so its ranks need no --replica.")
    if not job.replica_workers:
        raise NotFoundError(f"{job.name} has no replicas yet: its worker processes have not started.")
    if replica not in job.replica_workers:
        numbers = ", ".join(map(str, sorted(job.replica_workers)))
        raise NotFoundError(f"There is no replica {replica}: the replicas of {job.name} are {numbers}.")
    indices = job.replica_workers[replica]
    if rank is not None:
        per_pod = processes_per_pod(job, workers)
        if not 0 <= rank < len(indices) * per_pod:
            raise NotFoundError(
                f"There is no rank {rank}: replica {replica} of {job.name} has ranks 0 to {len(indices) * per_pod - 1}."
            )
        indices = indices[rank // per_pod :][:1]
    newest = {worker.index: worker for worker in workers}  # of two with one index, the newer is the later
    if found := [newest[index] for index in indices if index in newest]:
        return found
    gone = " and ".join(map(str, indices))
    raise NotFoundError(f"Replica {replica} of {job.name} has lost worker pod {gone}; another one takes its place.")
