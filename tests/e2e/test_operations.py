"""Training must not notice when an administrator upgrades, restricts, loses or removes the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError
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
