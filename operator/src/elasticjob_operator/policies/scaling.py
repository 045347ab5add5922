"""Which worker indices a job has, and which pods are removed when there are too many.

A pod holds its index until it is being deleted, even while it waits for its replacement. So there are never more pods
than wanted that are to stay. A scale-up takes the lowest free indices. A scale-down removes the least useful pods first
(unreachable, ended, not running), then those with the highest index. Worker pods that train as one replica leave
together: those that belong to none first, then those of the least useful replica. Which these are, the agents decide.
Before they have, or while that is not known, the pods with neighbouring indices count as one, as agents put them
together by default.

A request whose response is lost, or that arrives late, may create a second pod of an index. The more useful one, then
the older one, stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from elasticjob_runtime.contract import ReplicaValue

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
    replicas: Mapping[str, ReplicaValue] | None = None,
) -> Scaling:
    """`pods`: all of the run. `keep`: indices that the job always has. `most`: by Workload, how many of its pods stay,
    however many are wanted: the others leave first. `unit`: pods of a replica. `replicas`: each pod's, by its name."""
    holding = [pod for pod in pods if pod[1].holds_index]
    holders = {pair[0].index: pair for pair in holding}
    twins: list[Pod] = []
    if len(holders) < len(holding):
        holding.sort(key=lambda pair: (-_usefulness(*pair), pair[0].created_at, pair[0].name), reverse=True)
        holders = {pair[0].index: pair for pair in holding}  # the last one stays
        twins = [pair[0] for pair in reversed(holding) if holders[pair[0].index] is not pair]
    room = max(0, wanted - len(keep - holders.keys()))
    surplus = _surplus(holders, len(holders) - room, keep, most or {}, unit, replicas or {})
    return Scaling(
        create=tuple(_lowest_free(wanted - (len(holders) - len(surplus)), holders)),
        surplus=tuple(holders[index][0] for index in surplus),
        twins=tuple(twins),
    )


def _surplus(
    holders: Mapping[int, tuple[Pod, PodStatus]],
    count: int,
    keep: frozenset[int],
    most: Mapping[str, int],
    unit: int,
    replicas: Mapping[str, ReplicaValue],
) -> list[int]:
    """The indices that leave, in this order: `count` of them, or more where a Workload has too many pods."""
    if count <= 0 and not most:
        return []
    useful = {index: _usefulness(*holder) for index, holder in holders.items()}
    if unit == 1 and not replicas:
        by_usefulness = sorted(holders, key=lambda index: (index in keep, useful[index], -index))
    else:
        members = _members(holders, unit, replicas)

        def order(index: int) -> tuple[bool, bool, int, int, int, int]:
            together = members.get(index, ())
            least = min((useful.get(other, 0) for other in together), default=0)
            is_whole = len(together) == unit
            return index in keep, is_whole, least, -min(together, default=index), useful[index], -index

        by_usefulness = sorted(holders, key=order)
    if not most:
        return by_usefulness[: max(0, count)]
    leaving: list[int] = []
    for workload, limit in most.items():
        of_workload = [index for index in by_usefulness if holders[index][0].workload == workload]
        leaving += of_workload[: max(0, len(of_workload) - limit)]
    first = frozenset(leaving)
    by_usefulness.sort(key=lambda index: index not in first)
    return by_usefulness[: max(0, count, len(leaving))]


def _members(
    holders: Mapping[int, tuple[Pod, PodStatus]], unit: int, replicas: Mapping[str, ReplicaValue]
) -> dict[int, tuple[int, ...]]:
    """By index, the indices of all pods of its replica. Not of pods that belong to none."""
    found: dict[int, list[int]] = {}
    numbers = {index: replicas[pod.name].index for index, (pod, _) in holders.items() if pod.name in replicas}
    if not numbers:
        return {index: tuple(range(index // unit * unit, index // unit * unit + unit)) for index in holders}
    for index, number in numbers.items():
        found.setdefault(number, []).append(index)
    return {index: tuple(found[number]) for index, number in numbers.items()}


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
