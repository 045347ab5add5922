"""Where stock Kueue places jobs, and what else it may ask of them: flavors, topology, admission checks, namespaces with
a default queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import yaml

from hack.cluster import kueue as own_kueue
from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job
from tests.e2e.queues import API, BASE, QUOTA, Queue, holds, waits

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

HOST = "kubernetes.io/hostname"
MANAGER = ("deployment/kueue-controller-manager", "--namespace", own_kueue.NAMESPACE)

NewJob = Callable[..., Job]


def nodes_of(job: Job) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in job.pods}


@pytest.fixture
def hosts(cluster: ClusterDriver, queue: Queue) -> Iterator[list[str]]:
    """Names of nodes, of which each is a flavor of that name. No job may use the queue's own flavor any more."""
    names = sorted(node["metadata"]["name"] for node in cluster.kubectl.items("nodes"))
    for name in names:
        queue.add_flavor(name, {HOST: name})
    yield names
    queue.edit(QUOTA)
    for name in names:
        queue.remove("resourceflavor", name)


def test_a_job_returns_on_another_flavor_where_it_was(queue: Queue, queued: NewJob, hosts: list[str]) -> None:
    first, second, *_ = hosts
    queue.edit({first: QUOTA, second: 0})
    job = queued("moving")
    job.trains(4)
    assert nodes_of(job) == {first}
    queue.edit({first: QUOTA, second: 0}, stop="HoldAndDrain")
    waits(job, "WaitingForQuota")
    assert not job.pods
    before = job.step
    queue.edit({first: 0, second: QUOTA})
    assert job.trains(4) >= before
    assert nodes_of(job) == {second}
    assert job.restarts == 0


def test_surplus_is_placed_on_the_flavor_of_its_base(queue: Queue, queued: NewJob, hosts: list[str]) -> None:
    first, second, *_ = hosts
    queue.edit({first: BASE, second: QUOTA})
    job = queued("together")
    job.trains(2)
    eventually(lambda: len(queue.workloads("together")) == 2, 60, 0.3, "it asks for more")
    assert nodes_of(job) == {first}
    queue.edit({first: QUOTA, second: QUOTA})
    job.trains(4)
    assert nodes_of(job) == {first}


def test_a_topology_places_the_pods_of_a_job(cluster: ClusterDriver, queue: Queue, queued: NewJob) -> None:
    topology = {"apiVersion": API, "kind": "Topology", "metadata": {"name": "hosts"}}
    cluster.kubectl.apply(yaml.safe_dump({**topology, "spec": {"levels": [{"nodeLabel": HOST}]}}))
    queue.add_flavor("racks", {"kubernetes.io/os": "linux"}, topologyName="hosts")
    try:
        queue.edit({"racks": QUOTA})
        job = queued("placed")
        job.trains(4)
        for pod in job.pods:
            assert HOST in pod["spec"]["nodeSelector"], "Kueue chose its node"
        job.delete()
        queue.edit(QUOTA)
    finally:
        queue.remove("resourceflavor", "racks")
        queue.remove("topology", "hosts")


@pytest.fixture
def check(cluster: ClusterDriver, queue: Queue) -> Iterator[str]:
    """An admission check of the queue, whose controller is the test."""
    body = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "budget"}}
    cluster.kubectl.apply(yaml.safe_dump({**body, "spec": {"controllerName": "elasticjob.dev/test"}}))
    now = "2026-01-01T00:00:00Z"
    active = {"type": "Active", "status": "True", "reason": "Played", "message": "", "lastTransitionTime": now}
    patch = json.dumps({"status": {"conditions": [active]}})
    words = ("patch", "admissioncheck.kueue.x-k8s.io", "budget", "--subresource=status", "--type=merge")
    cluster.kubectl.run(*words, f"--patch={patch}")
    queue.edit(QUOTA, checks=["budget"])
    yield "budget"
    queue.edit(QUOTA)
    queue.remove("admissioncheck", "budget")


def answer(queue: Queue, workload: str, state: str, **more: object) -> None:
    """As the controller of the admission check does, once Kueue asks it."""

    def asked() -> bool:
        found = queue.workload(workload)["status"].get("admissionChecks", [])
        return [item["state"] for item in found] == ["Pending"]

    eventually(asked, 60, 0.2, "Kueue asks the admission check")
    said = {"name": "budget", "state": state, "message": "decided by the test", **more}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    queue.patch_workload(workload, json.dumps({"status": {"admissionChecks": [said]}}), "status")


def test_an_admission_check_decides_when_a_job_starts_and_how_its_pods_are_placed(
    cluster: ClusterDriver, queue: Queue, queued: NewJob, check: str
) -> None:
    job = queued("checked", replicas=2)
    waits(job, "WaitingForChecks", check)
    assert not job.pods
    node = cluster.kubectl.items("nodes")[0]["metadata"]["name"]
    update = {"labels": {"checked": "yes"}, "annotations": {"by": check}, "nodeSelector": {HOST: node}}
    answer(queue, "checked", "Ready", podSetUpdates=[{"name": "workers", **update}, {"name": "etcd"}])
    job.trains(2)
    for pod in job.pods:
        assert pod["metadata"]["labels"]["checked"] == "yes"
        assert pod["metadata"]["annotations"]["by"] == check
        assert pod["spec"]["nodeName"] == node


def test_a_job_that_an_admission_check_rejects_says_so_and_starts_once_it_is_active_again(
    queue: Queue, queued: NewJob, check: str
) -> None:
    job = queued("rejected", replicas=2)
    answer(queue, "rejected", "Rejected")
    waits(job, "Deactivated", check)
    assert not job.pods
    queue.patch_workload("rejected", '{"spec": {"active": true}}')
    eventually(lambda: holds(queue.workload("rejected"), "QuotaReserved"), 60, 0.2, "Kueue has quota for it again")
    answer(queue, "rejected", "Ready")
    job.trains(2)


def test_a_job_deleted_without_its_pods_leaves_workloads_that_can_be_deleted(
    cluster: ClusterDriver, queued: NewJob
) -> None:
    job = queued("orphaning", replicas=2)
    job.trains(2)
    cluster.kubectl.run("delete", "elasticjob", "orphaning", "--cascade=orphan")
    eventually(lambda: not job.exists, 60, 0.3, "the job is gone")
    cluster.kubectl.run(
        "delete", "pods,statefulsets,services,secrets", "--selector", "elasticjob.dev/job-name=orphaning"
    )
    cluster.kubectl.run("delete", "workloads.kueue.x-k8s.io", "orphaning", "--ignore-not-found", "--timeout=60s")


@pytest.fixture
def known(kueue: ClusterDriver) -> Iterator[None]:
    """ElasticJobs are among the frameworks of Kueue's configuration, as docs/guides/queueing.md says."""
    name, key = "kueue-manager-config", "controller_manager_config.yaml"
    before = kueue.kubectl.get("configmap", name, own_kueue.NAMESPACE)["data"][key]

    def configure(text: str) -> None:
        patch = json.dumps({"data": {key: text}})
        words = ("patch", "configmap", name, "--namespace", own_kueue.NAMESPACE, "--type=merge")
        kueue.kubectl.run(*words, f"--patch={patch}")
        kueue.kubectl.run("rollout", "restart", *MANAGER)
        kueue.kubectl.run("rollout", "status", *MANAGER, "--timeout=90s", timeout=100)

    config = yaml.safe_load(before)
    config["integrations"]["externalFrameworks"] = ["ElasticJob.v1alpha1.elasticjob.dev"]
    configure(yaml.safe_dump(config))
    yield
    configure(before)


@pytest.mark.usefixtures("known")
def test_kueue_leaves_the_pods_of_a_job_alone_in_a_namespace_with_a_default_queue(
    cluster: ClusterDriver, new_job: NewJob
) -> None:
    queue = Queue(cluster, "default")
    queue.create(QUOTA)
    try:
        queued = new_job("labeled", least=2, replicas=2, command=COUNTING, edit=queue.label)
        queued.trains(2)
        assert holds(queue.workload("labeled"), "Admitted")
        names = {workload["metadata"]["name"] for workload in cluster.kubectl.items("workloads.kueue.x-k8s.io")}
        assert names == {"labeled"}, "no pod is queued on its own"
        queued.delete()

        queue.edit(0)
        without = new_job("no-label", command=COUNTING)

        def says_why() -> bool:
            running = without.condition("Running")
            assert "kueue.x-k8s.io/queue-name" in running.get("message", ""), running
            return True

        eventually(says_why, 60, 0.3, "a job without the label says how to queue it as a whole")
        without.delete()
    finally:
        queue.delete()
