"""Which worker pods are a replica, as `status.replicaWorkers` says it. The agents decide it."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_api import ReplicaWorkers
from elasticjob_api.spec import MAX_WORKERS
from elasticjob_runtime.contract import ReplicaValue

from elasticjob_operator.names import index_of


def replica_workers(known: Iterable[ReplicaValue]) -> tuple[ReplicaWorkers, ...]:
    """`known`: what each member was told. While replicas change, members were told different things: the newest counts,
    and no worker pod is in two. A replica with a member that is no worker pod is left out."""
    found: dict[int, tuple[int, ...]] = {}
    taken: set[int] = set()
    for replica in sorted(known, key=lambda value: -value.world):
        workers = tuple(map(index_of, replica.members))
        possible = replica.index < MAX_WORKERS and all(0 <= index < MAX_WORKERS for index in workers)
        if possible and replica.index not in found and taken.isdisjoint(workers):
            found[replica.index] = workers
            taken.update(workers)
    return tuple(ReplicaWorkers(replica=number, workers=found[number]) for number in sorted(found))
