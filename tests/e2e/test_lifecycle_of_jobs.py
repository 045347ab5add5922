"""Suspension, deadlines and expiry of jobs on a real cluster."""

from __future__ import annotations

from collections.abc import Callable

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

NewJob = Callable[..., Job]


def test_a_suspended_job_frees_its_pods_and_resumes_from_its_checkpoint(new_job: NewJob) -> None:
    """Kueue relies on both: a suspended job holds no resources, and a resumed one continues from its checkpoint."""
    job = new_job("rests", replicas=2, least=2, command=COUNTING)
    job.trains(2)
    uids = {pod["metadata"]["uid"] for pod in job.pods}
    before = job.step
    job.suspend(True)
    eventually(lambda: job.is_true("Suspended"), 90, 0.3, "Suspended")
    eventually(lambda: not job.pods, 60, 0.5, "all pods are gone")
    job.suspend(False)
    assert job.trains(2) >= before - 10  # a checkpoint every 5 steps
    assert not uids & {pod["metadata"]["uid"] for pod in job.pods}
    assert not job.is_true("Suspended")
    assert job.restarts == 0


def test_a_job_past_its_deadline_fails_and_is_deleted_after_its_ttl(cluster: ClusterDriver, new_job: NewJob) -> None:
    job = new_job(
        "late",
        replicas=1,
        least=1,
        command=COUNTING,
        lifecycle={"activeDeadlineSeconds": 10, "ttlSecondsAfterFinished": 5},
    )
    cluster.kubectl.wait("elasticjob/late", "condition=Failed", timeout=120)
    assert job.condition("Failed")["reason"] == "DeadlineExceeded"
    eventually(lambda: not job.exists, 90, 0.5, "the job is deleted")
    eventually(lambda: not job.leftovers(), 60, 0.5, "and everything it owned")
