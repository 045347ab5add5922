"""Nodes are drained or fall silent: training continues at no cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError, NodePower
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

    assert evict(cluster, job.worker(0)) == ""
    assert "disruption budget" in evict(cluster, job.worker(1))
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


def node_of(cluster: ClusterDriver, pod: str) -> str:
    return str(cluster.kubectl.get("pod", pod)["spec"]["nodeName"])


def spare_node(cluster: ClusterDriver, job: Job) -> str:
    """A node with a worker of the job, but neither the operator nor the job's etcd nor DNS."""
    pods = [pod for space in ("elasticjob-system", "kube-system") for pod in cluster.kubectl.items("pods", space)]
    pods += [pod for pod in cluster.kubectl.items("pods") if "-etcd-" in pod["metadata"]["name"]]
    busy = {pod["spec"].get("nodeName") for pod in pods}
    free = [node_of(cluster, pod["metadata"]["name"]) for pod in job.pods if pod["spec"].get("nodeName") not in busy]
    if not free:
        pytest.skip("every node with a worker has the operator, DNS or the job's etcd on it")
    return free[0]


@pytest.mark.nightly
@pytest.mark.parametrize("trouble", ["power_off", "partition"])
def test_workers_on_a_silent_node_are_replaced(
    cluster: ClusterDriver, power: NodePower, new_job: NewJob, trouble: str
) -> None:
    """Complaints: pytorch#111646 (survivors hang 30 minutes), kubeflow/trainer#2072 (Terminating forever, Restarting
    forever)."""
    job = new_job(f"node-{trouble.replace('_', '-')}", replicas=4, least=1)
    job.trains(4)
    before = job.step
    node = spare_node(cluster, job)
    getattr(power, trouble)(node)
    try:
        eventually(lambda: 0 < job.status.get("worldSize", 4) < 4, 60, 0.2, "the other workers continue")
        job.trains(4)  # replaced on the other nodes
        assert job.step >= before - 10
        assert job.restarts == 0
    finally:
        {"power_off": power.power_on, "partition": power.heal}[trouble](node)
