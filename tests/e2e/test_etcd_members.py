"""A job's own etcd with three members on real pods, with a volume each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.settings import SHARED_DIRECTORY
from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

STORAGE_CLASS = "etcd-members"


@pytest.fixture
def volumes(cluster: ClusterDriver) -> Iterator[None]:
    """The test cluster has no provisioner: three volumes on the folder that its nodes share."""
    if cluster.power is None:
        pytest.skip(f"makes volumes on the test cluster's nodes: {cluster.no_power}")
    folders = [Path(SHARED_DIRECTORY) / f"etcd-member-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o777)  # a hostPath volume ignores fsGroup
    cluster.kubectl.apply(yaml.safe_dump_all(volume(folder) for folder in folders))
    yield
    for folder in folders:
        cluster.kubectl.delete("persistentvolume", folder.name)
        shutil.rmtree(folder)


def volume(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": folder.name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }


def three_members(manifest: dict[str, Any]) -> None:
    manifest["spec"]["rendezvous"] = {
        "type": "Dedicated",
        "etcd": {"members": 3, "storage": {"storageClassName": STORAGE_CLASS}},
    }


def members(cluster: ClusterDriver, job: Job) -> dict[str, dict[str, Any]]:
    """Name -> ready pod."""
    selector = f"elasticjob.dev/job-name={job.name},elasticjob.dev/component=etcd"
    pods = cluster.kubectl.items("pods", "default", selector)
    return {
        pod["metadata"]["name"]: pod
        for pod in pods
        if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
    }


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("volumes")
def test_training_does_not_notice_the_loss_of_an_etcd_member(
    cluster: ClusterDriver, new_job: Callable[..., Job]
) -> None:
    job = new_job("members", replicas=2, command=COUNTING, edit=three_members)
    job.trains(2)
    eventually(lambda: len(members(cluster, job)) == 3, 120, 0.5, "three members")
    assert len({pod["spec"]["nodeName"] for pod in members(cluster, job).values()}) == 3
    before = job.snapshot
    for name in sorted(members(cluster, job)):
        replace(cluster, job, name)
        job.trains(2)
    assert job.snapshot == before
    # On a busy machine the others take seconds to elect a leader, and the operator says so meanwhile.
    eventually(lambda: job.is_true("RendezvousReady"), 60, 0.3, "the operator reaches etcd")
    job.scale(3)
    job.trains(3)
    job.suspend(True)
    eventually(lambda: job.is_true("Suspended"), 90, 0.3, "Suspended")
    eventually(lambda: not claims(cluster, job), 60, 0.5, "its volumes are released")


def replace(cluster: ClusterDriver, job: Job, name: str) -> None:
    """Kills a member, and waits until it is back with its data."""
    uid = members(cluster, job)[name]["metadata"]["uid"]
    cluster.kubectl.run("delete", "pod", name, "--force", "--grace-period=0")

    def is_back() -> bool:
        ready = members(cluster, job)
        return len(ready) == 3 and ready[name]["metadata"]["uid"] != uid

    eventually(is_back, 120, 0.5, f"{name} is back")


def claims(cluster: ClusterDriver, job: Job) -> list[str]:
    names = [each["metadata"]["name"] for each in cluster.kubectl.items("persistentvolumeclaims")]
    return [name for name in names if f"-{job.name}-etcd-" in name]
