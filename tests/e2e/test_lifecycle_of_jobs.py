"""A job's life besides training, on a real cluster: it rests and goes on, and is over in time."""

from __future__ import annotations

from collections.abc import Callable

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import Job

NewJob = Callable[..., Job]


def test_a_suspended_job_keeps_its_pods_or_begins_anew(new_job: NewJob) -> None:
    """Kueue counts on both: all resources are free while a job is suspended, and a resumed one goes on from its
    checkpoint."""
    job = new_job("rests", replicas=2, least=2)
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


def test_a_job_out_of_time_goes_on_for_ever_and_stays_for_ever(cluster: ClusterDriver, new_job: NewJob) -> None:
    job = new_job("late", replicas=1, least=1, lifecycle={"activeDeadlineSeconds": 20, "ttlSecondsAfterFinished": 15})
    cluster.kubectl.wait("elasticjob/late", "condition=Failed", timeout=120)
    assert job.condition("Failed")["reason"] == "DeadlineExceeded"
    eventually(lambda: not job.exists, 90, 0.5, "the job takes itself away")
    eventually(lambda: not job.leftovers(), 60, 0.5, "and all it had")
