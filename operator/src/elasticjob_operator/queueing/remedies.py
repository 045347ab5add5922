"""What to do about a job that waits in its queue, by what Kueue says. Its releases share these messages."""

from __future__ import annotations

from elasticjob_api import Reason

_PATIENCE = (
    "nothing, if other jobs end soon; else see its queue: kubectl describe workloads.kueue.x-k8s.io {workload} -n "
    "{namespace}"
)
_OF_WAITS = (
    (
        ("LocalQueue", "doesn't exist"),
        "correct the job's label kueue.x-k8s.io/queue-name: kubectl get localqueues -n {namespace}",
    ),
    (("LocalQueue", "is inactive"), "ask your cluster administrator, or wait: LocalQueue {queue} is stopped"),
    (
        ("ClusterQueue", "doesn't exist"),
        "ask your cluster administrator to create that ClusterQueue, or use another LocalQueue",
    ),
    (
        ("ClusterQueue", "is inactive"),
        "ask your cluster administrator: that ClusterQueue is stopped, or lacks a flavor or a check",
    ),
    (
        ("match ClusterQueue selector",),
        "ask your cluster administrator to let that ClusterQueue admit namespace {namespace}",
    ),
    (
        ("unavailable in ClusterQueue",),
        "ask your cluster administrator to add that resource to coveredResources of the ClusterQueue. The job's own "
        "etcd requests CPU and memory",
    ),
    (("insufficient unused quota",), _PATIENCE),  # that flavor would have room, whatever is said of others
    (
        ("> maximum capacity",),
        "lower spec.workers.minReplicas or the requests of a worker pod, or ask your cluster administrator for "
        "more quota: the queue never has as much",
    ),
)
"""(what the message contains, remedy), in order of precedence."""
_OF_EVICTIONS = {
    "Preempted": "nothing; a higher priority class is evicted later.",
    "ClusterQueueStopped": "nothing, if the ClusterQueue is started again soon; else ask your cluster administrator.",
    "LocalQueueStopped": "nothing, if the LocalQueue is started again soon; else ask your cluster administrator.",
    "PodsReadyTimeout": "see what keeps worker pods from being ready: kubectl get events -n {namespace}",
}


def remedy(reason: Reason, said: str) -> str:
    """Of the reasons whose messages leave it open; empty for the others. `said`: why the Workload has no quota, empty:
    Kueue has not said it; of an eviction, after its reason and a colon."""
    if reason is Reason.WAITING_FOR_QUOTA:
        return next((remedy for parts, remedy in _OF_WAITS if all(part in said for part in parts)), _PATIENCE)
    return _OF_EVICTIONS.get(said.partition(":")[0], "nothing.") if reason is Reason.EVICTED else ""
