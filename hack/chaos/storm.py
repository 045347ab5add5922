"""A random schedule put to one job: the faults overlap, and nobody waits for the job to be well in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from elasticjob_runtime.contract import PARTITION_GRACE

from hack.chaos.faults import FAULTS, Expect, Fault
from hack.chaos.job import SPREAD
from hack.chaos.scene import Scene
from hack.chaos.schedule import Deed, draw
from hack.cluster import ClusterError
from hack.drivers import KubeError

AT_RANDOM = (
    *(
        "worker-killed",
        "rank-zero-exits",
        "worker-stopped",
        "agent-killed",
        "agent-frozen-3s",
        "sidecar-killed",
        "pod-deleted",
    ),
    *(
        "pod-deleted-by-force",
        "two-pods-deleted",
        "operator-killed",
        "etcd-killed",
        "etcd-frozen-30s",
        "etcd-data-lost",
        "dns-frozen",
    ),
    *("api-server-frozen-30s", "node-frozen", "node-unplugged"),
)
"""Those that can happen on top of each other."""


def storm(seed: int, seconds: float) -> Fault:
    """The schedule of that seed as one fault: what it costs is not told in advance, what it may not break is."""
    deeds = draw(seed, seconds, AT_RANDOM)
    counted = sum(deed.fault in {"worker-killed", "rank-zero-exits", "agent-killed", "dns-frozen"} for deed in deeds)

    @contextlib.contextmanager
    def made(scene: Scene):  # type: ignore[no-untyped-def]
        perform(scene, deeds)
        yield

    what = f"{len(deeds)} faults in {seconds:g} s, drawn with seed {seed}"
    return Fault(f"storm-{seed}", what, made, Expect((0, counted), together=PARTITION_GRACE), layout=SPREAD, settle=5)


def perform(scene: Scene, deeds: Sequence[Deed]) -> None:
    """Runs every deed at its time, and returns when the last one is taken back."""
    faults = {fault.name: fault for fault in FAULTS}
    started = time.monotonic()
    threads = []
    for deed in deeds:
        time.sleep(max(0.0, started + deed.at - time.monotonic()))
        thread = threading.Thread(target=_perform, args=(scene, faults[deed.fault], deed.lasts), name=deed.fault)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _perform(scene: Scene, fault: Fault, lasts: float) -> None:
    # Whom it was to hit may be gone already, or the API server away that says who it is.
    with contextlib.suppress(KubeError, ClusterError, LookupError, IndexError), fault.make(scene):
        time.sleep(lasts)
