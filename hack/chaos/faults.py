"""The faults, as data: what happens, for how long, where everything runs at that time, and what it may cost."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass, field

from elasticjob_runtime.contract import PARTITION_GRACE

from hack.chaos.expectations import (
    CUT_OFF_GROUP_STOPS_WITHIN,
    LEASE,
    UNBOUNDED,
    Expect,
    blames,
    is_not_in_the_future,
    last_failure,
    message_names,
    never_trains_less,
    no_invented_failure,
    says,
)
from hack.chaos.injections import (
    Injection,
    api_server_down,
    at_once,
    delete,
    disk_filled,
    dns_frozen_and_a_worker_killed,
    killed_with_a_fast_clock,
    network_cut,
    node_frozen,
    powered_off,
    scaled,
    unplugged,
    until_healed,
)
from hack.chaos.job import SPREAD, Layout
from hack.chaos.network import CONTROL_PLANE
from hack.chaos.processes import frozen, stopped


@dataclass(frozen=True)
class Fault:
    """One fault. `inject(scene)` causes it, and undoes it after `lasts` seconds."""

    name: str
    what: str
    inject: Injection
    expect: Expect = field(default_factory=Expect)
    lasts: float = 0.0
    layout: Layout = SPREAD
    settle: float = 0.0
    """Seconds to wait after the job has recovered, for late effects."""
    smoke: bool = False
    """Also runs in the end-to-end tests."""


TWO_NODES = Layout(workers=("node-2", "node-3"), etcd="node-1", operator="node-1")
ONE_NODE = Layout(workers=("node-3", "node-3"), etcd="node-1", operator="node-1")
WITH_ETCD = Layout(workers=("node-2", "node-3"), etcd="node-2", operator="node-1")
CONSISTENT = dataclasses.replace(TWO_NODES, on_partition="Consistent")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "worker-killed",
        "SIGKILL to a worker process",
        at_once(lambda s: s.worker(1).send(signal.SIGKILL)),
        Expect((1, 1), same_pods=True),
        smoke=True,
    ),
    Fault(
        "rank-zero-exits",
        "a worker process exits with code 7",
        at_once(lambda s: s.job.order(s.job.worker(0), "exit")),
        Expect((1, 1), same_pods=True),
    ),
    Fault(
        "worker-stopped",
        "SIGSTOP to a worker process for 12 s",
        until_healed(lambda s: stopped(s.worker(1))),
        Expect((1, 1), same_pods=True),
        lasts=12,
    ),
    Fault(
        "worker-out-of-memory",
        "a worker process uses all the memory of its container; its agent survives",
        at_once(lambda s: s.job.order(s.job.worker(1), "hog")),
        Expect((1, 1), status=(last_failure("OutOfMemory"),)),
    ),
    Fault(
        "agent-killed",
        "SIGKILL to an agent",
        at_once(lambda s: s.agent(1).send(signal.SIGKILL)),
        Expect((1, 1)),
        smoke=True,
    ),
    Fault(
        "agent-frozen-3s",
        "an agent is frozen for 3 s",
        until_healed(lambda s: stopped(s.agent(1))),
        Expect(new_group=None, same_pods=True),
        lasts=3,
    ),
    Fault(
        "agent-frozen-20s",
        "an agent is frozen for 20 s",
        until_healed(lambda s: stopped(s.agent(1))),
        Expect(same_pods=True),
        lasts=20,
    ),
    Fault(
        "sidecar-killed",
        "SIGKILL to a sidecar",
        at_once(lambda s: s.sidecar(1).send(signal.SIGKILL)),
        Expect(new_group=False, same_pods=True),
    ),
    Fault("pod-deleted", "a pod is deleted", delete(2)),
    Fault("pod-deleted-by-force", "a pod is force-deleted", delete(0, force=True), smoke=True),
    Fault("two-pods-deleted", "two pods are force-deleted at once", delete(1, 2, force=True)),
    Fault("all-pods-deleted", "all pods are deleted at once", delete(0, 1, 2)),
    Fault(
        "scaled-up-and-down",
        "scaled to 3, 4, 2, 4, 1, 3 worker pods, a second each",
        lambda s: scaled(s, (4, 2, 4, 1, 3), 1.0),
        Expect(new_group=None),
        settle=2,
    ),
    Fault(
        "operator-killed",
        "the operator's pod is force-deleted",
        at_once(lambda s: s.kill_operator()),
        Expect(new_group=False, same_pods=True),
    ),
    Fault(
        "etcd-killed",
        "SIGKILL to the job's etcd",
        at_once(lambda s: s.etcd().send(signal.SIGKILL)),
        Expect(new_group=False, same_pods=True),
    ),
    Fault(
        "etcd-frozen-30s",
        "the job's etcd is frozen for 30 s",
        until_healed(lambda s: stopped(s.etcd())),
        Expect(new_group=False, same_pods=True, status=(says("RendezvousReady", "False"),)),
        lasts=30,
    ),
    Fault(
        "etcd-data-lost",
        "the job's etcd is deleted with its data",
        at_once(lambda s: s.job.delete_pods([s.job.etcd], force=True)),
        Expect(new_group=False, same_pods=True),
        settle=5,
    ),
    Fault(
        "dns-frozen",
        "DNS is frozen for 15 s, and a worker process is killed",
        dns_frozen_and_a_worker_killed,
        Expect((1, 1), same_pods=True, pause_within=10),
        lasts=15,
    ),
    Fault(
        "api-server-down-30s",
        "the API server is down for 30 s",
        api_server_down,
        Expect(new_group=False, same_pods=True, status=(never_trains_less,)),
        lasts=30,
        settle=15,
    ),
    Fault(
        "api-server-frozen-30s",
        "the API server is frozen for 30 s",
        until_healed(lambda _: frozen("control-plane/kube-apiserver")),
        Expect(new_group=False, same_pods=True, status=(never_trains_less,)),
        lasts=30,
        settle=15,
    ),
    Fault("node-off", "a node loses power for 25 s", powered_off("node-3"), lasts=25),
    Fault(
        "node-rebooted",
        "a node loses power, and is switched on at once",
        powered_off("node-3"),
        Expect(status=(no_invented_failure,)),
        settle=5,
    ),
    Fault(
        "node-frozen",
        "a node is frozen for 15 s",
        node_frozen("node-3"),
        Expect(together=PARTITION_GRACE),
        lasts=15,
    ),
    Fault(
        "node-unplugged",
        "a node's cable is pulled for 25 s",
        unplugged("node-3"),
        Expect(together=PARTITION_GRACE),
        lasts=25,
    ),
    Fault(
        "etcds-node-off",
        "the node of the job's etcd loses power for 40 s",
        powered_off("node-2"),
        lasts=40,
    ),
    Fault("operators-node-off", "the operator's node loses power for 30 s", powered_off("node-1"), lasts=30),
    Fault(
        "fast-clock",
        "two worker processes are killed, one after the other; the clock of the first is an hour fast",
        killed_with_a_fast_clock,
        Expect((2, 2), same_pods=True, status=(blames(2, 0), is_not_in_the_future)),
        layout=Layout(workers=SPREAD.workers, etcd="node-2", operator="node-1", fast_clock=True),
    ),
    Fault(
        "disk-full",
        "the disk for checkpoints is full for 3 s",
        disk_filled,
        Expect((1, 9), status=(message_names("No space left"),)),
        lasts=3,  # a quick machine crashes six times in 6 s, which ends the job: --max-stalled-restarts
        layout=Layout(workers=("node-2", "node-3"), etcd="node-2", operator="node-1", small_disk=True),
    ),
    Fault(
        "cut-from-etcd",
        "both workers' nodes are cut off from etcd's for 25 s; the API server reaches all",
        network_cut(("node-2", "node-3"), ("node-1",)),
        Expect(new_group=False, same_pods=True),
        lasts=25,
        layout=TWO_NODES,
    ),
    Fault(
        "workers-cut-apart",
        "the two workers' nodes are cut off from each other for 20 s; everything else reaches both",
        network_cut(("node-2",), ("node-3",)),
        Expect((0, 2), together=PARTITION_GRACE),
        lasts=20,
        layout=TWO_NODES,
    ),
    Fault(
        "island",
        "the whole group, on two nodes, is cut off from everything for 75 s",
        network_cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(together=PARTITION_GRACE, ends_within=CUT_OFF_GROUP_STOPS_WITHIN),
        lasts=75,
        layout=TWO_NODES,
    ),
    Fault(
        "island-of-one-node",
        "both workers are on one node whose cable is pulled for 60 s",
        unplugged("node-3"),
        Expect(together=PARTITION_GRACE, ends_within=CUT_OFF_GROUP_STOPS_WITHIN),
        lasts=60,
        layout=ONE_NODE,
    ),
    Fault(
        "island-with-etcd",
        "the whole group and the job's etcd, on two nodes, are cut off from operator and API server for 75 s",
        network_cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(together=UNBOUNDED),
        lasts=75,
        layout=WITH_ETCD,
    ),
    Fault(
        "island-consistent",
        "onPartition: Consistent; the whole group, on two nodes, is cut off from everything for 60 s",
        network_cut(("node-2", "node-3"), ("node-1", CONTROL_PLANE)),
        Expect(ends_within=LEASE + 10.0),
        lasts=60,
        layout=CONSISTENT,
    ),
)
