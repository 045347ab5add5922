"""Storms: random faults that overlap, with no wait for recovery in between. A seed always draws the same schedule, so a
storm that found something can be run again."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elasticjob_runtime.contract import PARTITION_GRACE

from hack.chaos.expectations import Expect
from hack.chaos.faults import FAULTS, Fault
from hack.chaos.job import SPREAD
from hack.chaos.scene import Scene
from hack.cluster import ClusterError
from hack.drivers import KubeError

AT_RANDOM = (
    "worker-killed",
    "rank-zero-exits",
    "worker-stopped",
    "agent-killed",
    "agent-frozen-3s",
    "sidecar-killed",
    "pod-deleted",
    "pod-deleted-by-force",
    "two-pods-deleted",
    "operator-killed",
    "etcd-killed",
    "etcd-frozen-30s",
    "etcd-data-lost",
    "dns-frozen",
    "api-server-frozen-30s",
    "node-frozen",
    "node-unplugged",
)
"""Faults that may overlap. Their order is part of what a seed draws."""

COSTS_A_RESTART = {"worker-killed", "rank-zero-exits", "worker-stopped", "agent-killed", "dns-frozen"}


@dataclass(frozen=True)
class ScheduledFault:
    """A fault that is injected `at` seconds after the start and undone `lasts` seconds later."""

    at: float
    fault: str
    lasts: float


def draw(seed: int, seconds: float, names: Sequence[str], every: float = 3.0) -> tuple[ScheduledFault, ...]:
    """A schedule for `seconds` seconds, with a fault every `every` seconds on average. Each lasts up to 10 s, and no
    fault overlaps itself.

    >>> draw(1, 10, ["a"]) == draw(1, 10, ["a"])
    True
    """
    chance = random.Random(seed)
    schedule: list[ScheduledFault] = []
    ends: dict[str, float] = {}
    at = 0.0
    while (at := at + chance.expovariate(1 / every)) < seconds:
        name = chance.choice(list(names))
        lasts = round(chance.uniform(0.2, 10.0), 1)
        if at > ends.get(name, 0.0):
            schedule.append(ScheduledFault(round(at, 1), name, lasts))
            ends[name] = at + lasts + 1.0
    return tuple(schedule)


def storm(seed: int, seconds: float) -> Fault:
    """The schedule of that seed as one fault. Its cost is not known in advance, its limits are."""
    schedule = draw(seed, seconds, AT_RANDOM)
    most_restarts = sum(item.fault in COSTS_A_RESTART for item in schedule)

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        perform(scene, schedule)
        yield

    return Fault(
        f"storm-{seed}",
        f"{len(schedule)} faults in {seconds:g} s, drawn with seed {seed}",
        inject,
        Expect((0, most_restarts), together=PARTITION_GRACE),
        layout=SPREAD,
        settle=5,
    )


def perform(scene: Scene, schedule: Sequence[ScheduledFault]) -> None:
    """Injects every fault at its time, and returns when the last one is undone."""
    faults = {fault.name: fault for fault in FAULTS}
    started = time.monotonic()
    threads = []
    for item in schedule:
        time.sleep(max(0.0, started + item.at - time.monotonic()))
        thread = threading.Thread(target=_perform, args=(scene, faults[item.fault], item.lasts), name=item.fault)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _perform(scene: Scene, fault: Fault, lasts: float) -> None:
    # The target may already be gone, or the API server that would name it may be down.
    with contextlib.suppress(KubeError, ClusterError, LookupError, IndexError), fault.inject(scene):
        time.sleep(lasts)
