"""A running job that loses its rendezvous service, or too many of its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml
from elasticjob_runtime.contract import LEASE_TTL, PARTITION_GRACE

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

NewJob = Callable[..., Job]

OUTAGE = PARTITION_GRACE + LEASE_TTL
"""Seconds: longer than every lease and grace period."""


def workers_started(cluster: ClusterDriver, job: Job) -> int:
    """How often training started or resumed, as rank 0 logs it."""
    logs = [cluster.kubectl.logs(pod["metadata"]["name"]) for pod in job.pods]
    return sum(line.startswith(("started ", "resumed ")) for log in logs for line in log.splitlines())


def steps_on(job: Job, seconds_at_most: float = 60) -> None:
    """Waits until training makes progress in rank 0's log: the status cannot show it while etcd is down."""
    pod = job.pod_of_rank_zero()
    before = job.last_step(pod)
    eventually(lambda: job.last_step(pod) > before, seconds_at_most, 0.5, f"{pod} continues after step {before}")


def test_training_survives_the_loss_of_the_jobs_etcd(cluster: ClusterDriver, new_job: NewJob) -> None:
    """The new etcd starts empty: the agents register again, and no worker process restarts."""
    job = new_job("etcd-lost", replicas=2, command=COUNTING)
    job.trains(2)
    round_number, started = job.status["round"], workers_started(cluster, job)
    cluster.kubectl.delete("pod", "etcd-lost-etcd-0", wait=True)
    steps_on(job)
    eventually(lambda: job.is_true("RendezvousReady"), 90, 0.5, "the rendezvous is ready again")
    job.trains(2)
    assert job.status["round"] == round_number
    assert workers_started(cluster, job) == started
    victim = sorted(pod["metadata"]["name"] for pod in job.pods)[1]
    cluster.kubectl.delete("pod", victim, wait=False)  # and changes work again
    eventually(lambda: job.status["round"] > round_number, 60, 0.3, "a new plan")
    job.trains(2)
    assert job.restarts == 0


@pytest.fixture
def outside_etcd(cluster: ClusterDriver) -> Iterator[Callable[[], None]]:
    """A separate etcd, at outside-etcd.default.svc:2379; call it to start etcd (again). Deleted
    after the test."""
    image = cluster.etcd_image or "registry.k8s.io/etcd:3.6.11-0"
    urls = ["--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://outside-etcd:2379"]
    container = {
        "name": "etcd",
        "image": image,
        "command": ["etcd", "--data-dir=/data/etcd", *urls],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "outside-etcd", "labels": {"app": "outside-etcd"}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "outside-etcd"},
        "spec": {"selector": {"app": "outside-etcd"}, "ports": [{"port": 2379}]},
    }

    def bring_up() -> None:
        cluster.kubectl.apply(yaml.safe_dump_all([service, pod]))
        cluster.kubectl.wait("pod/outside-etcd", "condition=Ready")

    bring_up()
    yield bring_up
    cluster.kubectl.delete("pod", "outside-etcd")
    cluster.kubectl.delete("service", "outside-etcd")


@pytest.mark.nightly
def test_a_job_that_loses_all_pods_resumes_from_its_checkpoint(cluster: ClusterDriver, new_job: NewJob) -> None:
    """Complaint: no worker is left, and progress is reset."""
    job = new_job("all-gone", replicas=2, command=COUNTING)
    before = job.trains(2)
    uids = {pod["metadata"]["uid"] for pod in job.pods}
    cluster.kubectl.run("delete", "pods", "--selector", job.selector, "--wait=false")
    eventually(
        lambda: not uids & {pod["metadata"]["uid"] for pod in job.pods} and len(job.pods) == 2, 60, 0.5, "two new pods"
    )
    job.trains(2)
    assert job.step >= before - 10
    assert job.restarts == 0
