"""Which worker indices a job has, and which pods are removed when there are too many.

A pod holds its index until it is being deleted, even while it waits for its replacement. So there are never more pods
than wanted that are to stay. A scale-up takes the lowest free indices. A scale-down removes the least useful pods first
(unreachable, ended, not running), then those with the highest index. Agents put worker pods with neighbouring indices
together as replicas, so those of the least useful replica leave together.

A request whose response is lost, or that arrives late, may create a second pod of an index. The more useful one, then
the older one, stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.state import Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    create: tuple[int, ...]
    """Wanted indices that no pod holds, lowest first."""
    surplus: tuple[Pod, ...]
    """Pods to remove because fewer are wanted, in this order."""
    twins: tuple[Pod, ...] = ()
    """Pods to remove because another one holds their index."""


def scale(
    wanted: int,
    pods: Sequence[tuple[Pod, PodStatus]],
    *,
    keep: frozenset[int] = frozenset(),
    most: Mapping[str, int] | None = None,
    unit: int = 1,
) -> Scaling:
    """`pods`: all of the run. `keep`: indices that the job always has. `most`: by Workload, how many of its pods stay,
    however many are wanted: the others leave first. `unit`: pods of a replica."""
    holders: dict[int, tuple[Pod, PodStatus]] = {}
    twins: list[Pod] = []
    for pod, status in sorted(pods, key=lambda each: (-_usefulness(*each), each[0].created_at, each[0].name)):
        if not status.holds_index:
            continue
        if pod.index in holders:
            twins.append(pod)
        else:
            holders[pod.index] = (pod, status)
    room = max(0, wanted - len(keep - holders.keys()))
    useful = {index: _usefulness(*holder) for index, holder in holders.items()}

    def order(index: int) -> tuple[bool, int, int, int, int]:
        replica = index // unit
        least = min(useful.get(other, 0) for other in range(replica * unit, replica * unit + unit))
        return index in keep, least, -replica, useful[index], -index

    by_usefulness = sorted(holders, key=order)
    leaving: list[int] = []
    for workload, count in (most or {}).items():
        of_workload = [index for index in by_usefulness if holders[index][0].workload == workload]
        leaving += of_workload[: max(0, len(of_workload) - count)]
    by_usefulness.sort(key=lambda index: index not in leaving)
    surplus = by_usefulness[: max(0, len(holders) - room, len(leaving))]
    return Scaling(
        create=tuple(_lowest_free(wanted - (len(holders) - len(surplus)), holders)),
        surplus=tuple(holders[index][0] for index in surplus),
        twins=tuple(twins),
    )


def _usefulness(pod: Pod, status: PodStatus) -> int:
    """0: least useful."""
    if status.state is PodState.UNREACHABLE:
        return 0
    if status.state is not PodState.LIVE:
        return 1
    return 3 if pod.running else 2


def _lowest_free(count: int, used: Container[int]) -> list[int]:
    free: list[int] = []
    index = 0
    while len(free) < count:
        if index not in used:
            free.append(index)
        index += 1
    return free
