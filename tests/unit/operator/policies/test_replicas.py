"""Which worker pods are a replica."""

from __future__ import annotations

from elasticjob_operator.policies.replicas import replica_workers
from elasticjob_runtime.contract import ReplicaValue

from tests.unit.operator.tables import table

Told = tuple[int, int, str]
"""(number of the replica, world, its members: one letter each)."""


def value(index: int, world: int, members: str) -> ReplicaValue:
    names = tuple(f"bert-worker-{member}-gwtch" if member.isdigit() else member for member in members)
    return ReplicaValue(index=index, world=world, incarnation="i", members=names)


@table(
    "told, expected",
    {
        "nothing is known": ([], {}),
        "in the order of ranks": ([(1, 2, "12"), (0, 1, "30"), (0, 1, "30")], {0: (3, 0), 1: (1, 2)}),
        "the newest counts": ([(0, 1, "01"), (0, 3, "02")], {0: (0, 2)}),
        "no worker pod is in two": ([(0, 1, "01"), (1, 3, "12")], {1: (1, 2)}),
        "what cannot be is left out": ([(0, 1, "0x"), (1, 1, "12"), (10_000, 1, "34")], {1: (1, 2)}),
    },
)
def test_status_says_which_worker_pods_are_a_replica(told: list[Told], expected: dict[int, tuple[int, ...]]) -> None:
    found = replica_workers(value(*item) for item in told)
    assert {item.replica: item.workers for item in found} == expected
