"""Which worker indices a job has, and which pods leave when there are too many.

Every pod holds its index until it is gone, also while it ends, waits for its replacement or is lost: so there are never
two pods of an index, nor more pods than wanted. Growing takes the lowest free index; shrinking takes the pods that are
of least use first (on their way out, failed, not running), then the highest index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    members: tuple[int, ...]
    """The wanted indices: those of pods that stay, and those to create."""
    create: tuple[int, ...]
    """Wanted indices that are free, lowest first."""
    surplus: tuple[Pod, ...]
    """Pods that must leave, in that order; some are on their way already."""


def scale(
    wanted: int,
    pods: Mapping[int, tuple[Pod, PodState]],
    *,
    indices_in_use: frozenset[int] = frozenset(),
    stranded: frozenset[int] = frozenset(),
    keep: frozenset[int] = frozenset(),
) -> Scaling:
    """`pods`: by index, all of the job. `indices_in_use`: those whose pod name belongs to an object of another job.
    `stranded`: those whose pods hold only their names. `keep`: those that the others cannot do without."""
    used = frozenset(pods)
    pods = {index: pod for index, pod in pods.items() if index not in stranded - keep}
    by_use = sorted(pods, key=lambda index: (index in keep, _use(*pods[index]), -index))
    surplus = by_use[: max(0, len(pods) - wanted)]
    stay = pods.keys() - set(surplus)
    missing = wanted - len(stay)
    free = _lowest_free(missing, used)
    return Scaling(
        members=tuple(sorted({*stay, *free})),
        create=tuple(index for index in free if index not in indices_in_use),
        surplus=tuple(pods[index][0] for index in surplus),
    )


def _use(pod: Pod, state: PodState) -> int:
    """Least first."""
    if state is PodState.LEAVING:
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
