"""What a fleet of jobs uses: the chart's etcd tiers, and an operator whose replicas share the jobs."""

from __future__ import annotations

import base64
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hack.drivers import ClusterDriver, KubeError
from hack.drivers.install import NAMESPACE, RELEASE
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job
from tests.e2e.release import Release

NewJob = Callable[..., Job]

pytestmark = [pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(900)]

TIER = f"{RELEASE}-tier-0"
SMALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}


@pytest.fixture
def storage_class(cluster: ClusterDriver) -> Iterator[str]:
    """Three volumes of that class, as a provisioner would make them."""
    if cluster.shared_directory is None:
        pytest.skip("needs a folder for volumes")
    folders = [Path(cluster.shared_directory) / f"{TIER}-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o777)  # its owner is not the user of etcd's container, as it would be with a real volume
        volume = {
            "storageClassName": "tier",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
        }
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": folder.name}, "spec": volume}
        cluster.kubectl.apply(yaml.safe_dump(body))
    yield "tier"
    for folder in folders:
        cluster.kubectl.delete("persistentvolume", folder.name)
        shutil.rmtree(folder)


def test_jobs_share_a_tier_of_the_chart_lose_a_member_of_it_and_leave_it(
    cluster: ClusterDriver, storage_class: str, release: Release, new_job: NewJob
) -> None:
    tier = {"storage": {"size": "1Gi", "storageClassName": storage_class}, "resources": SMALL}
    release.upgrade(etcd={"mode": "Shared", "tiers": 1, "tier": tier})
    cluster.kubectl.run("rollout", "status", f"statefulset/{TIER}", "--namespace", NAMESPACE, "--timeout=180s")
    mine = new_job("tier-mine", replicas=2, command=COUNTING)
    other = new_job("tier-other", replicas=1, least=1, command=COUNTING)
    mine.trains(2)
    other.trains(1)
    assert [job.status["rendezvous"]["tier"] for job in (mine, other)] == [TIER] * 2
    assert not [item for item in cluster.kubectl.items("statefulsets") if item["metadata"]["name"].endswith("-etcd")]
    own, foreign = (job.status["rendezvous"]["id"] for job in (mine, other))
    assert "permission denied" in in_etcd(cluster, mine, "get", "--prefix", f"/elasticjob/{foreign}/")
    assert "members/" in in_etcd(cluster, mine, "get", "--prefix", f"/elasticjob/{own}/", "--keys-only")

    cluster.kubectl.run("delete", "pod", f"{TIER}-1", "--namespace", NAMESPACE, "--wait=false")
    mine.scale(3)
    mine.trains(3)
    mine.scale(2)
    mine.trains(2)
    assert mine.restarts == 0

    release.upgrade(etcd={"mode": "PerJob", "tiers": 1, "closedTiers": [0], "tier": tier})
    other.trains(1)  # where it started
    assert other.status["rendezvous"]["tier"] == TIER
    mine.suspend(True)
    eventually(lambda: mine.is_true("Suspended"), 90, 0.3, "Suspended")
    mine.suspend(False)
    mine.trains(2)
    assert mine.status["rendezvous"]["tier"] == ""


def in_etcd(cluster: ClusterDriver, job: Job, *words: str) -> str:
    """What etcdctl says to the user of the job's run."""
    (login,) = [
        item["data"]
        for item in cluster.kubectl.items("secrets")
        if item["metadata"]["name"].startswith(f"{job.name}-") and "password" in item["data"]
    ]
    user = ":".join(base64.b64decode(login[key]).decode() for key in ("username", "password"))
    flags = ("--endpoints=https://localhost:2379", "--insecure-skip-tls-verify", f"--user={user}")
    pod = ("exec", f"{TIER}-0", "--namespace", NAMESPACE, "--", "etcdctl")
    try:
        return cluster.kubectl.run(*pod, *flags, *words)
    except KubeError as error:
        return str(error)


def test_each_job_is_decided_on_while_an_operator_of_three_replicas_rolls(
    cluster: ClusterDriver, release: Release, new_job: NewJob
) -> None:
    release.upgrade(replicaCount=3, shards=4)
    jobs = [new_job(f"rolling-{number}", replicas=1, least=1, command=COUNTING) for number in range(4)]
    for job in jobs:
        job.trains(1)
    old = set(release.operators)
    cluster.kubectl.run("rollout", "restart", f"deployment/{RELEASE}", "--namespace", NAMESPACE)
    sizes: list[int] = []
    while old & set(release.operators):
        sizes.append(2 - len(sizes) % 2)
        for job in jobs:
            job.scale(sizes[-1])
        for job in jobs:
            eventually(functools.partial(has_worker_pods, job, sizes[-1]), 60, 0.3, f"worker pods of {job.name}")
    assert sizes
    assert holders(cluster) <= set(release.operators)
    for job in jobs:
        job.scale(1)
        job.trains(1)
        assert job.restarts == 0


def has_worker_pods(job: Job, count: int) -> bool:
    """Without those that end."""
    return sum("deletionTimestamp" not in pod["metadata"] for pod in job.pods) == count


def holders(cluster: ClusterDriver) -> set[str]:
    """The operators' pods that lead a shard."""
    leases = cluster.kubectl.items("leases", NAMESPACE)
    return {lease["spec"]["holderIdentity"] for lease in leases if lease["spec"].get("holderIdentity")}
