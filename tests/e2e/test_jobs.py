"""Whole jobs on a real cluster: real kubelets, containers, etcd and torch."""

from __future__ import annotations

from collections.abc import Callable

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import Job

NewJob = Callable[..., Job]


def test_a_job_succeeds_and_its_deletion_leaves_nothing(cluster: ClusterDriver, new_job: NewJob) -> None:
    job = new_job("short", replicas=2, least=2, arguments=("--steps=120", "--step-seconds=0"))
    cluster.kubectl.wait("elasticjob/short", "condition=Succeeded", timeout=180)
    status = job.status
    assert not job.is_true("Failed")
    assert job.restarts == 0
    assert status["progress"]["step"] == 120
    assert float(status["progress"]["metrics"]["accuracy"]) > 0.9
    eventually(
        lambda: [pod["status"]["phase"] for pod in job.pods] == ["Succeeded"] * 2,
        30,
        0.5,
        "finished pods are kept for their logs",
    )
    job.delete()
    eventually(lambda: not job.leftovers(), 60, 0.5, "nothing of the deleted job is left")
