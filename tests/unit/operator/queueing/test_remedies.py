"""What a job that waits in its queue is told to do, by what Kueue says."""

from __future__ import annotations

import pytest
from elasticjob_api import Reason
from elasticjob_operator.queue_state import QueueView
from elasticjob_operator.queueing.job import QueuedJob

from tests.unit.operator.builders import NOW
from tests.unit.operator.queueing.test_grant import ETCD, base, queued_job

OVER = "insufficient quota for cpu in flavor {}, current podset request (6) > maximum capacity (5)"
UNUSED = (
    "couldn't assign flavors to pod set workers: insufficient unused quota for cpu in flavor default, 2 more needed"
)


@pytest.mark.parametrize(
    ("reason", "said", "remedy"),
    [
        (Reason.WAITING_FOR_QUOTA, "", "nothing, if other jobs end soon"),
        (Reason.WAITING_FOR_QUOTA, UNUSED, "nothing, if other jobs end soon"),
        (Reason.WAITING_FOR_QUOTA, "LocalQueue team doesn't exist", "correct the job's label"),
        (Reason.WAITING_FOR_QUOTA, "LocalQueue team is inactive", "LocalQueue team is stopped"),
        (Reason.WAITING_FOR_QUOTA, "ClusterQueue all doesn't exist", "to create that ClusterQueue"),
        (Reason.WAITING_FOR_QUOTA, "ClusterQueue all is inactive", "that ClusterQueue is stopped"),
        (Reason.WAITING_FOR_QUOTA, "Workload namespace doesn't match ClusterQueue selector", "admit namespace ml"),
        (Reason.WAITING_FOR_QUOTA, OVER.format("a"), "lower spec.workers.minReplicas"),
        (Reason.WAITING_FOR_QUOTA, f"{OVER.format('a')}, {UNUSED}", "nothing, if other jobs end soon"),
        (Reason.WAITING_FOR_QUOTA, "resource memory unavailable in ClusterQueue", "coveredResources"),
        (Reason.WAITING_FOR_QUOTA, f"{UNUSED}, resource memory unavailable in ClusterQueue", "coveredResources"),
        (Reason.EVICTED, "Preempted: to accommodate a workload", "a higher priority class"),
        (Reason.EVICTED, "ClusterQueueStopped: The ClusterQueue is stopped", "started again soon"),
        (Reason.EVICTED, "LocalQueueStopped: The LocalQueue is stopped", "started again soon"),
        (Reason.EVICTED, "PodsReadyTimeout: Exceeded the timeout", "kubectl get events -n ml"),
        (Reason.EVICTED, "NodeFailures: node n1 is gone", "nothing."),
    ],
)
def test_remedy_fits_what_kueue_says(reason: Reason, said: str, remedy: str) -> None:
    job = queued_job()
    queued = QueuedJob(job=job, view=QueueView(), pods=(), template_hash="", etcd=ETCD, accepted=True, now=NOW)
    message = queued.waiting(reason, base(), said).message
    assert remedy in message.partition(" What to do: ")[2]
    assert "{" not in message
