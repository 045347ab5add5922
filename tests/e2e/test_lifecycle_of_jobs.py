"""Suspension, deadlines and expiry of jobs on a real cluster."""

from __future__ import annotations

from collections.abc import Callable

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
