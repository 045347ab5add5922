"""How often the worker pod of an index has ended soon after its start, again and again, without costing a restart.

Such an end has its cause outside the pod, so it is free; but a cause that stays, such as a kubelet that rejects every
pod, would make a fast loop of pods. Each further replacement of the index therefore waits twice as long. A pod that ran
for some minutes ends the series, and so does an hour without such an end.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from elasticjob_api import ElasticJob, FreeEnds

from elasticjob_operator.policies.failures import STEADY_SECONDS, Cost, PodFailure, ran_seconds
from elasticjob_operator.state import Pod

LONG_SECONDS = 300.0
"""A pod that trained for this long ends a series, in seconds."""
RETRY_SECONDS = 10.0
"""Delay where an immediate retry would probably fail in the same way, in seconds; doubled in a series."""
MAX_SECONDS = 300.0
"""Longest delay, in seconds."""
MEMORY = datetime.timedelta(hours=1)
MOST = 32
"""Indices in status. Further ones count as often as the least of these."""


def free_ends(
    job: ElasticJob, failed: Iterable[tuple[Pod, PodFailure]], now: datetime.datetime
) -> tuple[FreeEnds, ...]:
    """status.freeEnds, with everything observed now."""
    known = {free_end.index: free_end for free_end in job.status.free_ends or () if now - free_end.last_time < MEMORY}
    for pod, failure in failed:
        if failure.cost is Cost.COUNTS:
            continue
        before, time = known.get(pod.index), min(failure.time, now).replace(microsecond=0)
        if before is not None and time <= before.last_time:
            continue  # seen before
        if _trained_long(pod, failure):
            known.pop(pod.index, None)
        else:
            known[pod.index] = FreeEnds(index=pod.index, count=before.count + 1 if before else 1, last_time=time)
    newest = sorted(known.values(), key=lambda free: (free.last_time, free.count), reverse=True)[:MOST]
    return tuple(sorted(newest, key=lambda free: free.index))


def delay_seconds(pod: Pod, failure: PodFailure, ends: Iterable[FreeEnds]) -> float:
    """Time between a free end of `pod` and its replacement. `ends`: with this one."""
    known = {end.index: end.count for end in ends}
    count = known.get(pod.index, min(known.values()) if len(known) >= MOST else 1)
    if _trained_long(pod, failure):
        return 0.0
    steady = failure.cost is Cost.IGNORED and ran_seconds(pod, failure) >= STEADY_SECONDS
    doublings = count - (2 if steady or failure.cost is Cost.FREE else 1)
    return min(MAX_SECONDS, RETRY_SECONDS * 2.0 ** min(doublings, 30)) if doublings >= 0 else 0.0


def _trained_long(pod: Pod, failure: PodFailure) -> bool:
    """Not while it waited for the rendezvous."""
    return failure.cost is not Cost.FREE_BUT_WAIT and ran_seconds(pod, failure) >= LONG_SECONDS
