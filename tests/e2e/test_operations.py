"""Training must not notice when an administrator upgrades, restricts, loses or removes the operator."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError, NodePower
from hack.drivers.install import NAMESPACE, RELEASE
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job
from tests.e2e.release import Release

NewJob = Callable[..., Job]

pytestmark = pytest.mark.alone

IDLE = ("sh", "-c", "trap exit TERM; sleep 600 & wait")
"""A worker that does nothing and stops on SIGTERM."""


@pytest.fixture
def elsewhere(cluster: ClusterDriver) -> Iterator[str]:
    """A namespace other than `default`."""
    cluster.kubectl.apply(yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}))
    yield "elsewhere"
    cluster.kubectl.delete("namespace", "elsewhere", timeout=120)


def may_list_pods(cluster: ClusterDriver, namespace: str) -> bool:
    """Whether the API server lets the operator do so."""
    user = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}"
    try:
        return cluster.kubectl.run("auth", "can-i", "list", "pods", "--namespace", namespace, user).strip() == "yes"
    except KubeError:  # "no" is an exit status
        return False


def test_training_survives_an_operator_upgrade(
    cluster: ClusterDriver, new_job: NewJob, release: Release, elsewhere: str
) -> None:
    """An upgrade may restrict the watched namespaces: jobs elsewhere wait until the operator watches them again."""
    job = new_job("upgraded", replicas=2, command=COUNTING)
    job.trains(2)
    before, old = job.snapshot, set(release.operators)

    release.upgrade(watchNamespaces=["default"], logging={"format": "plain"})
    eventually(lambda: not old & set(release.operators), 60, 0.5, "the old operator is gone")
    assert "Succeeded" in release.test()
    eventually(lambda: may_list_pods(cluster, "default"), 30, 0.5, "rights in the named namespace")
    eventually(lambda: not may_list_pods(cluster, elsewhere), 30, 0.5, "and in no other")
    other = Job(cluster, "other", replicas=1, least=1, command=IDLE)
    cluster.kubectl.apply(yaml.safe_dump(other.manifest), elsewhere)
    job.trains(2)  # as reported by the new operator
    assert job.snapshot == before
    job.scale(3)
    job.trains(3)
    assert not cluster.kubectl.items("pods", elsewhere)
    assert "status" not in cluster.kubectl.get("elasticjob", "other", elsewhere)

    release.restore()
    eventually(lambda: cluster.kubectl.items("pods", elsewhere), 90, 0.5, "the waiting job gets its pods")


@pytest.mark.nightly
def test_jobs_survive_the_removal_of_the_operator(cluster: ClusterDriver, new_job: NewJob, release: Release) -> None:
    """Without an operator, jobs continue and can be deleted with everything they own. A new operator adopts the rest as
    it finds them."""
    stays, goes = new_job("stays", replicas=2, command=COUNTING), new_job("goes", replicas=1, least=1, command=IDLE)
    stays.trains(2)
    eventually(lambda: [pod["status"]["phase"] for pod in goes.pods] == ["Running"], 60, 0.5, "the other job runs too")
    before = stays.snapshot
    release.uninstall()
    goes.delete()
    eventually(lambda: not goes.leftovers(), 90, 0.5, "nothing of the deleted job is left")
    rank_zero = stays.pod_of_rank_zero()
    step = stays.last_step(rank_zero)
    eventually(lambda: stays.last_step(rank_zero) > step, 60, 0.5, "the other job continues")

    release.restore()
    stays.trains(2)
    assert stays.snapshot == before
    cluster.kubectl.delete("pod", stays.worker(1), wait=False)
    eventually(lambda: stays.status["round"] > before.round, 60, 0.3, "the lost pod is noticed")
    stays.trains(2)


@contextlib.contextmanager
def only_nodes_without(cluster: ClusterDriver, pods: list[dict[str, Any]]) -> Iterator[None]:
    """Keeps new pods off the nodes of `pods`."""
    busy = {pod["spec"]["nodeName"] for pod in pods}
    if busy >= {node["metadata"]["name"] for node in cluster.kubectl.items("nodes")}:
        pytest.skip("every node has an operator: a job could not be kept away from it")
    cluster.kubectl.run("cordon", *busy)
    try:
        yield
    finally:
        cluster.kubectl.run("uncordon", *busy)


@pytest.mark.nightly
def test_a_standby_operator_takes_over_from_a_lost_leader(
    cluster: ClusterDriver, power: NodePower, new_job: NewJob, release: Release
) -> None:
    """The leader's node loses power: its lease expires, and the standby acts, once."""
    release.upgrade(replicaCount=2)
    with only_nodes_without(cluster, cluster.kubectl.items("pods", NAMESPACE)):
        job = new_job("led", replicas=2, command=COUNTING)
        job.trains(2)
    before, old = job.snapshot, release.leader
    standby = next(name for name in release.operators if name != old)
    assert [release.leads(name) for name in (old, standby)] == [True, False]
    node = str(cluster.kubectl.get("pod", old, NAMESPACE)["spec"]["nodeName"])

    power.power_off(node)
    lost_at = time.monotonic()
    try:
        cluster.kubectl.delete("pod", job.worker(1), wait=False)
        eventually(lambda: release.leader == standby, 90, 0.1, "the other operator takes the lease")
        print(f"another leads {time.monotonic() - lost_at:.1f} s after the leader's node lost power")
        eventually(lambda: release.leads(standby), 60, 0.2, "and reports it")
        job.trains(2)
    finally:
        power.power_on(node)
    eventually(lambda: [release.leads(name) for name in release.operators].count(True) == 1, 60, 0.5, "one leads")
    after = job.snapshot
    assert len(after.pods) == 2
    assert len(before.pods & after.pods) == 1  # the other one replaces the deleted pod
    assert [text for text in job.events if text.startswith("Created led-worker-1")] == ["Created led-worker-1."]
    assert after.restarts == 0
