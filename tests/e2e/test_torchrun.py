"""torchrun in the worker pods, configured only by the environment that the operator sets."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.programs import etcd_v2_program
from hack.drivers import ClusterDriver, KubeError
from hack.images.recipe import ROOT
from hack.support import eventually
from tests.e2e.jobs import Job
from tests.python_etcd import python_etcd

NewJob = Callable[..., Job]

SCRIPT = "/workspace/examples/digits/train.py"
ETCD_V2 = "etcd-v2"
ARGUMENTS = ("--steps=20000", "--step-seconds=0.1", "--checkpoint-every=5", "--print-every=5")


def with_the_images_torch(manifest: dict[str, Any]) -> None:
    """The trainer image's torch is Debian's 2.6."""
    manifest["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] = ["torchrun", SCRIPT]


def with_c10d(manifest: dict[str, Any]) -> None:
    """c10d needs libuv, which Debian's torch was built without."""
    manifest["spec"]["rendezvous"] = {"backend": "c10d"}
    with_this_machines_torch(manifest)


def with_etcd_v2(manifest: dict[str, Any]) -> None:
    """torch's handler imports python-etcd."""
    manifest["spec"]["rendezvous"] = {
        "type": "External",
        "backend": "etcd-v2",
        "endpoint": f"{ETCD_V2}.default.svc:2379",
    }
    with_this_machines_torch(manifest, python_etcd())


def with_etcd_v2_and_the_images_torch(manifest: dict[str, Any]) -> None:
    """The image has python-etcd. Debian's torch has no libuv, which torch would use unless it is told not to."""
    with_etcd_v2(manifest)
    with_the_images_torch(manifest)
    spec = manifest["spec"]["workers"]["template"]["spec"]
    del spec["securityContext"], spec["volumes"], spec["containers"][0]["volumeMounts"]
    without_libuv = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "USE_LIBUV": "0"}
    spec["containers"][0]["env"] = [{"name": name, "value": value} for name, value in without_libuv.items()]


def with_this_machines_torch(manifest: dict[str, Any], *packages: Path) -> None:
    """The development set-up's torch, from PyPI, with its Python, and folders of more packages."""
    spec = manifest["spec"]["workers"]["template"]["spec"]
    spec["securityContext"] = {"runAsUser": 0}  # the owner of Python and torch, perhaps in a private home directory
    container = spec["containers"][0]
    container["command"] = [str(Path(sys.prefix, "bin", "torchrun")), SCRIPT]
    folders = {"python": sys.base_prefix, "checkout": str(ROOT)}
    folders.update((f"packages-{number}", str(folder)) for number, folder in enumerate(packages))
    container["env"] = [*container.get("env", []), {"name": "PYTHONPATH", "value": ":".join(map(str, packages))}]
    spec["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    container["volumeMounts"] = [{"name": name, "mountPath": path, "readOnly": True} for name, path in folders.items()]


@dataclasses.dataclass(frozen=True)
class Round:
    """What rank 0 printed from one start of its script to the next."""

    pod: str
    number: int
    world: int
    first: int
    last: int

    @property
    def name(self) -> tuple[str, int]:
        return self.pod, self.number


def rounds(cluster: ClusterDriver, job: Job) -> list[Round]:
    """All rounds in the logs of the current pods."""
    found: list[Round] = []
    for pod in job.pods:
        try:
            lines = cluster.kubectl.logs(pod["metadata"]["name"]).splitlines()
        except KubeError:  # it does not run yet
            continue
        for number, line in enumerate(lines):
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if line.startswith(("started ", "resumed ")):
                step = int(words["step"])
                found.append(Round(pod["metadata"]["uid"], number, int(words["world"]), step, step))
            elif line.startswith("step=") and found:
                found[-1] = dataclasses.replace(found[-1], last=int(words["step"]))
    return found


def trains(cluster: ClusterDriver, job: Job, world: int, but: Collection[tuple[str, int]] = ()) -> list[Round]:
    """Waits for a round, none of `but`, in which this many workers train; returns all rounds."""

    def found() -> list[Round]:
        seen = rounds(cluster, job)
        return (
            seen
            if any(each.world == world and each.last > each.first and each.name not in but for each in seen)
            else []
        )

    return eventually(found, 180, 1, f"{job.name} trains with {world} workers")


def needs_this_machine(cluster: ClusterDriver) -> None:
    if cluster.name != "own":
        pytest.skip("only nodes on this machine can mount the torch and the programs that are installed here")


@pytest.fixture
def etcd_v2(cluster: ClusterDriver) -> Iterator[None]:
    """An etcd with the v2 API, as a user of torchrun's etcd-v2 backend runs one."""
    needs_this_machine(cluster)
    url = f"http://{ETCD_V2}.default.svc:2379"
    container = {
        "name": "etcd",
        "image": cluster.image("trainer"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/programs/etcd", "--enable-v2", "--data-dir=/tmp/etcd", "--log-level=warn"],
        "args": ["--listen-client-urls=http://0.0.0.0:2379", f"--advertise-client-urls={url}"],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 1},
        "volumeMounts": [{"name": "programs", "mountPath": "/programs", "readOnly": True}],
    }
    volume = {"name": "programs", "hostPath": {"path": str(etcd_v2_program().parent)}}
    metadata = {"name": ETCD_V2, "labels": {"app": ETCD_V2}}
    pod = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    objects = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": ETCD_V2},
            "spec": {"selector": metadata["labels"], "ports": [{"port": 2379}]},
        },
    ]
    cluster.kubectl.apply(yaml.safe_dump_all(objects))
    try:
        cluster.kubectl.run("wait", "--for=condition=Ready", f"pod/{ETCD_V2}", "--timeout=120s")
        yield
    finally:
        cluster.kubectl.delete("pod", ETCD_V2)
        cluster.kubectl.delete("service", ETCD_V2)


@pytest.mark.nightly
@pytest.mark.usefixtures("etcd_v2")
def test_torchrun_trains_and_recovers_with_the_v2_api_of_etcd(cluster: ClusterDriver, new_job: NewJob) -> None:
    job = new_job("torchrun-etcd-v2", replicas=2, least=2, most=2, arguments=ARGUMENTS, edit=with_etcd_v2)
    edit = with_etcd_v2_and_the_images_torch
    trains(cluster, new_job("torchrun-image-etcd-v2", replicas=2, least=2, most=2, arguments=ARGUMENTS, edit=edit), 2)
    before = trains(cluster, job, 2)
    cluster.kubectl.delete("pod", job.worker(1), wait=False)
    after = trains(cluster, job, 2, but=[each.name for each in before])
    assert after[-1].first >= max(each.last for each in before) - 10


@pytest.mark.nightly
def test_torchrun_recovers_from_a_lost_pod_without_extra_flags(cluster: ClusterDriver, new_job: NewJob) -> None:
    """Two jobs side by side: one with the etcd-v3 plug-in, one with torchrun's own c10d rendezvous."""
    needs_this_machine(cluster)
    jobs = [new_job("torchrun-etcd", replicas=2, arguments=ARGUMENTS, edit=with_the_images_torch)]
    # With room for more workers than there are, torchrun would wait half a minute for them.
    jobs.append(new_job("torchrun-c10d", replicas=2, least=2, most=2, arguments=ARGUMENTS, edit=with_c10d))
    for job in jobs:
        trains(cluster, job, 2)
    # A checkpoint every 5 steps: there is one by the time that these are read.
    before = {job.name: rounds(cluster, job) for job in jobs}
    for job in jobs:
        cluster.kubectl.delete("pod", job.worker(1), wait=False)
    for job in jobs:
        after = trains(cluster, job, 2, but=[each.name for each in before[job.name]])
        assert after[-1].first >= max(each.last for each in before[job.name]) - 10
    assert jobs[0].restarts == 0  # c10d may need another attempt, which counts
    assert jobs[0].status["worldSize"] == 2  # read from etcd; c10d reports nothing
