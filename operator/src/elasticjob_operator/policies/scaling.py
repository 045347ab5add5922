"""Which worker indices a job has, and which pods are removed when there are too many.

Every pod holds its index until it is gone, even while it terminates, waits for its replacement or is lost. So there are
never two pods with the same index, nor more pods than wanted. A scale-up takes the lowest free indices. A scale-down
removes the least useful pods first (terminating, failed, not running), then those with the highest index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    members: tuple[int, ...]
    """The wanted indices: of pods that stay and of pods to create."""
    create: tuple[int, ...]
    """Wanted indices that have no pod, lowest first."""
    surplus: tuple[Pod, ...]
    """Pods to remove, in this order. Some are already terminating."""


def scale(
    wanted: int,
    pods: Mapping[int, tuple[Pod, PodState]],
    *,
    indices_in_use: frozenset[int] = frozenset(),
    stranded: frozenset[int] = frozenset(),
    keep: frozenset[int] = frozenset(),
) -> Scaling:
    """`pods`: all of the job, by index. `indices_in_use`: those whose pod name belongs to an object that is not (or no
    longer) this job's. `stranded`: indices of pods that only hold their names. `keep`: indices that are removed
    last."""
    used = frozenset(pods)
    pods = {index: pod for index, pod in pods.items() if index not in stranded - keep}
    by_usefulness = sorted(pods, key=lambda index: (index in keep, _usefulness(*pods[index]), -index))
    surplus = by_usefulness[: max(0, len(pods) - wanted)]
    stay = pods.keys() - set(surplus)
    missing = wanted - len(stay)
    free = _lowest_free(missing, used)
    return Scaling(
        members=tuple(sorted({*stay, *free})),
        create=tuple(index for index in free if index not in indices_in_use),
        surplus=tuple(pods[index][0] for index in surplus),
    )


def _usefulness(pod: Pod, state: PodState) -> int:
    """0: least useful."""
    if state is PodState.TERMINATING:
        return 0
    if state is not PodState.LIVE:
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
