"""The faults, as data: what is done, for how long, where things are when it happens, and what has to come of it.

Each is a context manager: the fault happens on the way in, and is taken back on the way out, however the run ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from elasticjob_runtime.contract import PARTITION_GRACE

from hack.chaos.job import SPREAD, Layout, Seen
from hack.chaos.network import CONTROL_PLANE, partitioned
from hack.chaos.processes import frozen, sidecar_of, stopped
from hack.chaos.scene import Scene
from hack.cluster import start_api_server, stop_api_server

LEASE = 5.0
"""s after which etcd gives up a member that it does not hear."""
UNBOUNDED = float("inf")
ISLAND = PARTITION_GRACE + LEASE + 5.0
"""s after the cut by which an island has stopped: lease and grace, and some time for a loaded machine."""

Told = Callable[[Sequence[Seen]], str]
"""Looks at the statuses since the fault, the one before it included; returns what is wrong with them, or nothing."""


@dataclass(frozen=True)
class Expect:
    """What a fault may cost."""

    restarts: tuple[int, int] = (0, 0)
    """Of the job's budget: at least, at most."""
    together: float = 3.0
    """s for which an older group may train beside a newer one."""
    new_group: bool | None = True
    """Another group takes over; False: training goes on as it is; None: either."""
    ends_within: float | None = None
    """s after the fault's begin by which the group of before must have stopped; None: it need not."""
    pause_within: float | None = None
    """s without a completed step, at most, where more would be the fault itself; generous: a loaded machine is slow."""
    same_pods: bool = False
    """Nobody is deleted."""
    told: tuple[Told, ...] = ()
    """What the status has to say meanwhile."""


@dataclass(frozen=True)
class Fault:
    """`make(scene)`: the fault. `lasts`: s until it is taken back."""

    name: str
    what: str
    make: Callable[[Scene], AbstractContextManager[None]]
    expect: Expect = Expect()
    lasts: float = 0.0
    layout: Layout = SPREAD
    settle: float = 0.0
    """s to wait once all is well again, for what comes late."""
    smoke: bool = False
    """Part of the end-to-end tests."""


def says(kind: str, status: str) -> Told:
    """The condition has that status at some time."""

    def look(seen: Sequence[Seen]) -> str:
        if any(each.condition(kind).get("status") == status for each in seen):
            return ""
        return f"{kind} was never {status}"

    return look


def never_trains_less(seen: Sequence[Seen]) -> str:
    """The status never says that fewer train, or that the job restarts: nothing did."""
    worlds = {int(each.status.get("worldSize", 0)) for each in seen}
    return f"worldSize was {sorted(worlds)}" if len(worlds) > 1 else ""


def no_invented_failure(seen: Sequence[Seen]) -> str:
    """No lastFailure that was not there before."""
    first, last = (each.status.get("lastFailure") for each in (seen[0], seen[-1]))
    return f"lastFailure: {last}" if last != first else ""


def last_failure(reason: str) -> Told:
    def look(seen: Sequence[Seen]) -> str:
        found = seen[-1].status.get("lastFailure", {})
        return "" if found.get("reason") == reason else f"lastFailure is {found}, not {reason}"

    return look


def blames(*indices: int) -> Told:
    """The last failure is, one after the other, of these workers."""

    def look(seen: Sequence[Seen]) -> str:
        blamed = [str(each.status.get("lastFailure", {}).get("worker", "")).rpartition("-")[2] for each in seen[1:]]
        changes = [name for before, name in itertools.pairwise(["", *blamed]) if name != before]
        wanted = [str(index) for index in indices]
        return "" if changes[-len(wanted) :] == wanted else f"lastFailure was of workers {changes}, not {wanted}"

    return look


def is_of_today(seen: Sequence[Seen]) -> str:
    """The last failure is not of the future."""
    time_of = str(seen[-1].status.get("lastFailure", {}).get("time", ""))
    limit = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
    return f"lastFailure is of {time_of}, which is to come" if time_of > limit.strftime("%Y-%m-%dT%H:%M:%SZ") else ""


def message_names(*words: str) -> Told:
    """The last failure's sentence has all of these words."""

    def look(seen: Sequence[Seen]) -> str:
        found = str(seen[-1].status.get("lastFailure", {}).get("message", ""))
        return "" if all(word in found for word in words) else f"lastFailure says {found!r}, without {words}"

    return look


def now(act: Callable[[Scene], object]) -> Callable[[Scene], AbstractContextManager[None]]:
    """A fault that is over once it has happened."""

    @contextlib.contextmanager
    def made(scene: Scene) -> Iterator[None]:
        act(scene)
        yield

    return made


def until_healed(
    make: Callable[[Scene], AbstractContextManager[object]],
) -> Callable[[Scene], AbstractContextManager[None]]:
    """A fault that some other context manager makes and takes back."""

    @contextlib.contextmanager
    def made(scene: Scene) -> Iterator[None]:
        with make(scene):
            yield

    return made


def cut(one: Sequence[str], other: Sequence[str]) -> Callable[[Scene], AbstractContextManager[None]]:
    return until_healed(lambda _: partitioned(one, other))


def delete(*indices: int, force: bool = False) -> Callable[[Scene], AbstractContextManager[None]]:
    return now(lambda scene: scene.job.delete_pods([scene.job.worker(index) for index in indices], force))


@contextlib.contextmanager
def powered_off(node: str, scene: Scene) -> Iterator[None]:
    scene.power.power_off(node)
    try:
        yield
    finally:
        scene.power.power_on(node)


@contextlib.contextmanager
def unplugged(node: str, scene: Scene) -> Iterator[None]:
    scene.power.partition(node)
    try:
        yield
    finally:
        scene.power.heal(node)


@contextlib.contextmanager
def node_frozen(node: str, scene: Scene) -> Iterator[None]:
    scene.power.freeze(node)
    try:
        yield
    finally:
        scene.power.thaw(node)


@contextlib.contextmanager
def api_server_down(_: Scene) -> Iterator[None]:
    stop_api_server()
    try:
        yield
    finally:
        start_api_server()


@contextlib.contextmanager
def dns_frozen_and_a_worker_killed(scene: Scene) -> Iterator[None]:
    worker = scene.worker(1)
    with frozen("control-plane/coredns"):
        worker.send(signal.SIGKILL)
        yield


@contextlib.contextmanager
def scaled(scene: Scene, sizes: Sequence[int], pause: float) -> Iterator[None]:
    """Up and down, without waiting for what becomes of it."""
    for size in sizes:
        scene.job.scale(size)
        time.sleep(pause)
    yield


@contextlib.contextmanager
def disk_filled(scene: Scene) -> Iterator[None]:
    """The disk of rank 0's pod, which is the only one that writes."""
    member = next(process.member for process in scene.newest().processes if process.rank == 0)
    scene.job.order(member, "fill")
    try:
        yield
    finally:
        words = ("exec", member, "--namespace", "default", "--container", "trainer", "--", "rm", "-f", "/small/filler")
        scene.driver.kubectl.run(*words)


@contextlib.contextmanager
def killed_beside_a_fast_clock(scene: Scene) -> Iterator[None]:
    """The worker with the fast clock, then another: both count, and the second is the last."""
    for index in (scene.job.wanted - 1, 0):
        scene.worker(index).send(signal.SIGKILL)
        time.sleep(8)
    yield


TWO_NODES = Layout(workers=("node-2", "node-3"), etcd="node-1", operator="node-1")
ONE_NODE = Layout(workers=("node-3", "node-3"), etcd="node-1", operator="node-1")
WITH_ETCD = Layout(workers=("node-2", "node-3"), etcd="node-2", operator="node-1")
CONSISTENT = dataclasses.replace(TWO_NODES, on_partition="Consistent")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "worker-killed",
        "SIGKILL to a worker",
        now(lambda s: s.worker(1).send(signal.SIGKILL)),
        Expect((1, 1), same_pods=True),
        smoke=True,
    ),
    Fault(
        "rank-zero-exits",
        "a worker exits with code 7",
        now(lambda s: s.job.order(s.job.worker(0), "exit")),
        Expect((1, 1), same_pods=True),
    ),
    Fault(
        "worker-stopped",
        "SIGSTOP to a worker for 12 s",
        until_healed(lambda s: stopped(s.worker(1))),
        Expect(new_group=False, same_pods=True),
        lasts=12,
    ),
    Fault(
        "worker-out-of-memory",
        "a worker uses all the memory of its container; its agent lives",
        now(lambda s: s.job.order(s.job.worker(1), "hog")),
        Expect((1, 1), told=(last_failure("OutOfMemory"),)),
    ),
    Fault(
        "agent-killed",
        "SIGKILL to an agent",
        now(lambda s: s.agent(1).send(signal.SIGKILL)),
        Expect((0, 1)),
        smoke=True,
    ),
    Fault(
        "agent-frozen-3s",
        "an agent stands still for 3 s",
        until_healed(lambda s: stopped(s.agent(1))),
        Expect(new_group=None, same_pods=True),
        lasts=3,
    ),
    Fault(
        "agent-frozen-20s",
        "an agent stands still for 20 s",
        until_healed(lambda s: stopped(s.agent(1))),
        Expect(same_pods=True),
        lasts=20,
    ),
    Fault(
        "sidecar-killed",
        "SIGKILL to a sidecar",
        now(lambda s: sidecar_of(s.uid(s.job.worker(1))).send(signal.SIGKILL)),
        Expect(new_group=False, same_pods=True),
    ),
    Fault("pod-deleted", "a pod is deleted", delete(2)),
    Fault("pod-deleted-by-force", "a pod is deleted by force", delete(0, force=True), smoke=True),
    Fault("two-pods-deleted", "two pods are deleted at once, by force", delete(1, 2, force=True)),
    Fault("all-pods-deleted", "all pods are deleted at once", delete(0, 1, 2)),
    Fault(
        "scaled-up-and-down",
        "3, 4, 2, 4, 1, 3 workers, a second each",
        lambda s: scaled(s, (4, 2, 4, 1, 3), 1.0),
        Expect(new_group=None),
        settle=2,
    ),
    Fault(
        "operator-killed",
        "the operator's pod is deleted by force",
        now(lambda s: s.kill_operator()),
        Expect(new_group=False, same_pods=True),
    ),
    Fault(
        "etcd-killed",
        "SIGKILL to the job's etcd",
        now(lambda s: s.etcd().send(signal.SIGKILL)),
        Expect(new_group=False, same_pods=True),
    ),
    Fault(
        "etcd-frozen-30s",
        "the job's etcd stands still for 30 s",
        until_healed(lambda s: stopped(s.etcd())),
        Expect(new_group=False, same_pods=True, told=(says("RendezvousReady", "False"),)),
        lasts=30,
    ),
    Fault(
        "etcd-data-lost",
        "the job's etcd is deleted with its data",
        now(lambda s: s.job.delete_pods([s.job.etcd], force=True)),
        Expect(new_group=False, same_pods=True),
        settle=5,
    ),
    Fault(
        "dns-frozen",
        "DNS stands still for 15 s, and a worker is killed",
        dns_frozen_and_a_worker_killed,
        Expect((1, 1), same_pods=True, pause_within=10),
        lasts=15,
    ),
    Fault(
        "api-server-down-30s",
        "the API server is down for 30 s",
        api_server_down,
        Expect(new_group=False, same_pods=True, told=(never_trains_less,)),
        lasts=30,
        settle=15,
    ),
    Fault(
        "api-server-frozen-30s",
        "the API server stands still for 30 s",
        until_healed(lambda _: frozen("control-plane/kube-apiserver")),
        Expect(new_group=False, same_pods=True, told=(never_trains_less,)),
        lasts=30,
        settle=15,
    ),
    Fault("node-off", "a node loses power for 25 s", lambda s: powered_off("node-3", s), lasts=25),
    Fault(
        "node-rebooted",
        "a node loses power, and is switched on at once",
        lambda s: powered_off("node-3", s),
        Expect(told=(no_invented_failure,)),
        settle=5,
    ),
    Fault(
        "node-frozen",
        "a node stands still for 15 s",
        lambda s: node_frozen("node-3", s),
        Expect(together=PARTITION_GRACE),
        lasts=15,
    ),
    Fault(
        "node-unplugged",
        "a node's cable is pulled for 25 s",
        lambda s: unplugged("node-3", s),
        Expect(together=PARTITION_GRACE),
        lasts=25,
    ),
    Fault(
        "etcds-node-off",
        "the node of the job's etcd loses power for 40 s",
        lambda s: powered_off("node-2", s),
        lasts=40,
    ),
    Fault(
        "operators-node-off", "the operator's node loses power for 30 s", lambda s: powered_off("node-1", s), lasts=30
    ),
    Fault(
        "fast-clock",
        "two workers are killed, one after the other; the clock of the first is an hour fast",
        killed_beside_a_fast_clock,
        Expect((2, 2), same_pods=True, told=(blames(2, 0), is_of_today)),
        layout=Layout(workers=SPREAD.workers, etcd="node-2", operator="node-1", fast_clock=True),
    ),
    Fault(
        "disk-full",
        "the disk for checkpoints is full for 6 s",
        disk_filled,
        Expect((1, 9), told=(message_names("No space left"),)),
        lasts=6,
        layout=Layout(workers=("node-2", "node-3"), etcd="node-2", operator="node-1", small_disk=True),
    ),
    Fault(
        "cut-from-etcd",
        "both workers' nodes and the etcd's do not hear each other for 25 s; the API server hears all",
        cut(("node-2", "node-3"), ("node-1",)),
        Expect(new_group=False, same_pods=True),
        lasts=25,
        layout=TWO_NODES,
    ),
    Fault(
        "workers-cut-apart",
        "the two workers' nodes do not hear each other for 20 s; all others hear both",
        cut(("node-2",), ("node-3",)),
        Expect((0, 2), together=PARTITION_GRACE),
        lasts=20,
        layout=TWO_NODES,
    ),
    Fault(
        "island",
        "the whole group, on two nodes, is cut off from everybody for 75 s",
        cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(together=PARTITION_GRACE, ends_within=ISLAND),
        lasts=75,
        layout=TWO_NODES,
    ),
    Fault(
        "island-of-one-node",
        "both workers are on one node whose cable is pulled for 60 s",
        lambda s: unplugged("node-3", s),
        Expect(together=PARTITION_GRACE, ends_within=ISLAND),
        lasts=60,
        layout=ONE_NODE,
    ),
    Fault(
        "island-with-etcd",
        "the whole group and the job's etcd, on two nodes, are cut off from operator and API server for 75 s",
        cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(together=UNBOUNDED),
        lasts=75,
        layout=WITH_ETCD,
    ),
    Fault(
        "island-consistent",
        "onPartition: Consistent; the whole group, on two nodes, is cut off from everybody for 60 s",
        cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(ends_within=LEASE + 10.0),
        lasts=60,
        layout=CONSISTENT,
    ),
)
