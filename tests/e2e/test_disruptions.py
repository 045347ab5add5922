"""Nodes are drained or fall silent: training continues at no cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

NewJob = Callable[..., Job]

pytestmark = pytest.mark.alone


def evict(cluster: ClusterDriver, pod: str) -> str:
    """Evicts the pod; returns the error if the eviction is refused, else an empty string."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
    try:
        cluster.kubectl.run("create", "--raw", path, "--filename", "-", stdin=json.dumps(eviction))
    except KubeError as error:
        return str(error)
    return ""


@pytest.fixture
def one_at_a_time(cluster: ClusterDriver) -> Iterator[None]:
    """A PodDisruptionBudget for the worker pods of the job `drained`. The job's scale subresource says how many
    there should be."""
    labels = {"elasticjob.dev/job-name": "drained", "elasticjob.dev/component": "worker"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "drained"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
    cluster.kubectl.apply(yaml.safe_dump(budget))
    yield
    cluster.kubectl.delete("poddisruptionbudget", "drained")


@pytest.mark.usefixtures("one_at_a_time")
def test_draining_a_node_respects_the_disruption_budget_at_no_cost(cluster: ClusterDriver, new_job: NewJob) -> None:
    job = new_job("drained", replicas=3, least=2, command=COUNTING)
    job.trains(3)
    allowed = eventually(
        lambda: cluster.kubectl.get("poddisruptionbudget", "drained").get("status", {}).get("disruptionsAllowed"),
        60,
        0.5,
        "a disruption",
    )
    assert allowed == 1
    before, round_number = job.step, int(job.status["round"])
    uids = {pod["metadata"]["uid"] for pod in job.pods}

    # The replacement of the first one is often ready before the second request. So it gets no node until then.
    nodes = ("--selector", "kubernetes.io/hostname")
    cluster.kubectl.run("cordon", *nodes)
    try:
        assert evict(cluster, job.worker(0)) == ""
        assert "disruption budget" in evict(cluster, job.worker(1))
    finally:
        cluster.kubectl.run("uncordon", *nodes)
    eventually(lambda: int(job.status["round"]) > round_number, 60, 0.2, "the other workers continue")
    job.trains(3)
    now = {pod["metadata"]["uid"] for pod in job.pods}
    assert len(uids & now) == 2

    # The node that runs the job's etcd, and maybe workers: the drain waits until the budget allows it.
    node = str(cluster.kubectl.get("pod", "drained-etcd-0")["spec"]["nodeName"])
    try:
        drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        cluster.kubectl.run(*drain, timeout=150)
        assert node not in {pod["spec"].get("nodeName") for pod in job.pods}
        eventually(lambda: job.is_true("RendezvousReady"), 90, 0.5, "the etcd runs on another node")
        job.trains(3)
    finally:
        cluster.kubectl.run("uncordon", node)
    assert job.step >= before
    assert job.restarts == 0  # disruptions cost no restart
    assert not job.status.get("failingNodes")
