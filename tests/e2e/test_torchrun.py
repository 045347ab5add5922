"""torchrun in the worker pods, configured only by the environment that the operator sets."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from hack.drivers import ClusterDriver, KubeError
from hack.images.recipe import ROOT
from hack.support import eventually
from tests.e2e.jobs import Job

NewJob = Callable[..., Job]

SCRIPT = "/workspace/examples/digits/train.py"
ARGUMENTS = ("--steps=20000", "--step-seconds=0.1", "--checkpoint-every=5", "--print-every=5")


def with_the_images_torch(manifest: dict[str, Any]) -> None:
    """The trainer image's torch is Debian's 2.6."""
    manifest["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] = ["torchrun", SCRIPT]


def with_c10d(manifest: dict[str, Any]) -> None:
    """c10d needs libuv, which Debian's torch was built without."""
    manifest["spec"]["rendezvous"] = {"backend": "c10d"}
    with_this_machines_torch(manifest)


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
