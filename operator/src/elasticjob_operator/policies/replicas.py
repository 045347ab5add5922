"""Which worker pods are a replica, as `status.replicaWorkers` says it. The agents decide it."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from elasticjob_api import ReplicaWorkers
from elasticjob_api.spec import MAX_WORKERS
from elasticjob_runtime.contract import ReplicaValue

from elasticjob_operator.names import index_of


def replica_workers(known: Iterable[ReplicaValue]) -> tuple[ReplicaWorkers, ...]:
    """`known`: what each member was told. While replicas change, members were told different things: the newest counts,
    and no worker pod is in two. A replica with a member that is no worker pod is left out."""
    found: dict[int, ReplicaWorkers] = {}
    taken: set[int] = set()
    for replica in sorted(known, key=lambda value: -value.world):
        if replica.index in found:
            continue  # nearly always: the other members of one that is known
        made = _made(replica.index, replica.members)
        if made is not None and taken.isdisjoint(made.workers):
            found[replica.index] = made
            taken.update(made.workers)
    return tuple(found[number] for number in sorted(found))


@functools.lru_cache(maxsize=MAX_WORKERS)
def _made(number: int, members: tuple[str, ...]) -> ReplicaWorkers | None:
    """None: there can be no such replica. Cached, because the status of a job of thousands of worker pods is decided
    again and again."""
    workers = tuple(map(index_of, members))
    if number >= MAX_WORKERS or not all(0 <= index < MAX_WORKERS for index in workers):
        return None
    return ReplicaWorkers(replica=number, workers=workers)
