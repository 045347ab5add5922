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


def test_a_deleted_pod_is_replaced_while_the_others_train(cluster: ClusterDriver, new_job: NewJob) -> None:
    """Complaints: kubeflow/trainer#1638 (c10d restarts every pod, etcd fails the job), pytorch/elastic#115 (hang after
    rank 0's pod)."""
    job = new_job("pod-loss", replicas=3, least=2)
    job.trains(3)
    names = {pod["spec"]["hostname"]: pod["metadata"]["name"] for pod in job.pods}
    victim = job.pod_of_rank_zero()
    before = job.step
    cluster.kubectl.delete("pod", victim, wait=False)
    eventually(lambda: job.status.get("worldSize") == 2, 60, 0.2, "the other workers continue")
    job.trains(3)
    assert job.step >= before - 10  # a checkpoint every 5 steps
    assert job.restarts == 0  # a lost pod is free
    after = {pod["spec"]["hostname"]: pod["metadata"]["name"] for pod in job.pods}
    assert set(after) == set(names)
    assert [name for host, name in names.items() if after[host] != name] == [victim]


def test_a_python_error_is_shown_in_status_and_events(cluster: ClusterDriver, new_job: NewJob) -> None:
    """Complaint: the traceback is in some pod's log, if that pod still exists. It may not: pods that still run when the
    job has failed are deleted. What the agent leaves in its pod: tests/integration/runtime/test_membership_changes.py.
    """
    script = (
        "import os, sys, time; time.sleep(1)\nif os.environ['RANK'] == '1': raise ValueError('the data are not "
        "there')\ntime.sleep(600)"
    )
    command = ("sh", "-c", 'echo "$0" > /tmp/train.py && exec elasticrun /tmp/train.py', script)
    job = new_job("raises", replicas=2, least=2, command=command, max_restarts=1)
    cluster.kubectl.wait("elasticjob/raises", "condition=Failed", timeout=120)
    failure = job.status["lastFailure"]
    assert failure["rank"] == 1
    assert "ValueError: the data are not there" in failure["message"]
    assert job.restarts == 1
    eventually(
        lambda: any("the data are not there" in event.get("message", "") for event in cluster.kubectl.items("events")),
        30, 0.5, "an event contains the message",
    )  # fmt: skip
