"""A running job that loses its rendezvous service, or too many of its pods."""

from __future__ import annotations

from collections.abc import Callable

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

NewJob = Callable[..., Job]


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
