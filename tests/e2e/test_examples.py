"""Every example on a real cluster, as its README says: `kubectl apply -k`.

Only what a test cluster lacks is changed: images, spot nodes, an NFS server, S3, Kueue. The one with a session runs
each time, the others in `make nightly`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from elasticjob_operator.names import worker_selector

from hack.drivers import ClusterDriver, KubeError
from hack.images import build
from hack.images.recipe import ROOT
from hack.session_log import entered, steps_of
from hack.support import eventually

EXAMPLES = ROOT / "examples"
SMALL = {
    "accelerate": ("--samples=3000", "--epochs=1", "--save-every=20"),
    "finetune-hf": ("--steps=40", "--save-every=20"),
    "hpa": ("--steps=40", "--save-every=20"),
    "imagenet": (
        *("--dummy-images=48", "--image-size=32", "--arch=resnet18"),
        *("--batch-size=8", "--epochs=1", "--checkpoint-every=2"),
    ),
    "lightning": ("--steps=40", "--save-every=20"),
    "nfs": ("--steps=40", "--save-every=20"),
    "s3": ("--steps=40", "--save-every=20", "--endpoint=http://s3:5000"),
    "stream": ("--epochs=2", "--save-every=20"),
    "torchrun": ("--steps=40", "--save-every=20"),
}  # fmt: skip
"""Example -> arguments that make it small."""
ENDLESS = {
    "session": ("--epochs=100000", "--print-every=1", "--save-every=1000000"),
    "spot": ("--epochs=100000", "--samples=3000", "--save-every=1000000"),
}
OTHERS = {
    "digits": "test_jobs.py and most other end-to-end tests run it",
    "kueue": "test_with_kueue.py runs it: Kueue is not installed before",
    "fsdp2": "test_replicas.py runs it",
    "tensor-parallel": "test_replicas.py runs it",
}
Edit = Callable[[dict[str, Any]], None]


def test_each_example_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {*SMALL, *ENDLESS, *OTHERS}


@pytest.fixture(scope="module")
def namespace(cluster: ClusterDriver) -> Iterator[str]:
    """With the claim that the examples' READMEs ask for, in the folder that all nodes of a test cluster share."""
    if cluster.shared_directory is None:
        pytest.skip("the examples need a volume that all nodes can mount")
    cluster.load_images(build(["frameworks"]))
    name = f"examples-{uuid.uuid4().hex[:6]}"
    volume = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
         "spec": {**volume, "capacity": {"storage": "1Gi"}, "hostPath": {"path": cluster.shared_directory}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "checkpoints", "namespace": name},
         "spec": {**volume, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}},
    ]  # fmt: skip
    cluster.kubectl.apply(yaml.safe_dump_all(objects), name)
    yield name
    cluster.kubectl.delete("namespace", name, wait=False)
    cluster.kubectl.delete("persistentvolume", name, wait=False)


class Example:
    """An example in a namespace. Its checkpoints outlive it: it continues from them when it is applied again."""

    def __init__(self, cluster: ClusterDriver, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.name = name
        built = cluster.kubectl.run("kustomize", str(EXAMPLES / name))
        self.documents = [one for one in yaml.safe_load_all(built) if one["kind"] in {"ConfigMap", "ElasticJob"}]
        (self.job,) = (one for one in self.documents if one["kind"] == "ElasticJob")
        template = self.job["spec"]["workers"]["template"]["spec"]
        template.pop("nodeSelector", None)
        self.container = container = template["containers"][0]
        container.update(image=cluster.image("frameworks"), imagePullPolicy=cluster.pull_policy)
        container["resources"] = {"requests": {"cpu": "100m", "memory": "300Mi"}}
        container["args"] = [arg.replace("ELASTICJOB_UID", "ELASTICJOB_NAME") for arg in container["args"]]
        self.arguments = container["args"]
        self.arguments += [*SMALL.get(name, ()), *ENDLESS.get(name, ())]
        if "checkpoint" in self.job["spec"]:  # S3 needs none
            self.job["spec"]["checkpoint"]["volume"] = {"persistentVolumeClaim": {"claimName": "checkpoints"}}

    def apply(self, replicas: int, least: int | None = None) -> None:
        workers = self.job["spec"]["workers"]
        # Without a minimum, two could be done before the third has started.
        workers.update(replicas=replicas, minReplicas=least or replicas)
        self._cluster.kubectl.apply(yaml.safe_dump_all(self.documents), self._namespace)

    def succeeds(self) -> str:
        self._cluster.kubectl.wait(f"elasticjob/{self.name}", "condition=Succeeded", self._namespace, timeout=240)
        return self.logs

    def suspend(self, suspended: bool) -> None:
        patch = json.dumps({"spec": {"suspend": suspended}})
        self._cluster.kubectl.run(
            "patch", "elasticjob", self.name, "-n", self._namespace, "--type=merge", f"--patch={patch}"
        )

    def delete(self) -> None:
        self._cluster.kubectl.delete("elasticjob", self.name, self._namespace, timeout=120)

    @property
    def pods(self) -> list[str]:
        pods = self._cluster.kubectl.items("pods", self._namespace, worker_selector(self.name))
        return sorted(pod["metadata"]["name"] for pod in pods)

    @property
    def step(self) -> int:
        status = self._cluster.kubectl.get("elasticjob", self.name, self._namespace).get("status", {})
        return int(status.get("progress", {}).get("step", 0))

    def log(self, pod: str) -> str:
        """Empty if the pod has not started."""
        try:
            return self._cluster.kubectl.logs(pod, namespace=self._namespace)
        except KubeError:
            return ""

    @property
    def logs(self) -> str:
        """Of all worker pods."""
        return "\n".join(map(self.log, self.pods))


def world(example: Example, pod: str, workers: int) -> bool:
    """Whether this worker pod trains in a world of this size."""
    worlds = entered(example.log(pod))
    return bool(worlds) and worlds[-1].workers == workers


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["accelerate", "finetune-hf", "imagenet", "lightning", "stream", "torchrun"])
def test_an_example_trains_to_its_end_and_continues_at_another_size(
    cluster: ClusterDriver, namespace: str, name: str
) -> None:
    example = Example(cluster, namespace, name)
    example.apply(replicas=2)
    log = example.succeeds()
    assert re.search(r"^begins after .* with 2 workers$", log, re.MULTILINE), log
    assert re.search(r"^finished step=\d+ with 2 workers$", log, re.MULTILINE), log
    example.delete()
    example.apply(replicas=3)
    log = example.succeeds()
    resumed = re.findall(r"^begins after (.*) with \d workers$", log, re.MULTILINE)
    assert resumed, log
    assert not {"step=0", "nothing"}.intersection(resumed), "it continues from the checkpoint of two workers"
    assert re.search(r"^finished step=\d+ with 3 workers$", log, re.MULTILINE), log
    example.delete()


@pytest.mark.nightly
def test_the_spot_example_loses_no_step_when_a_pod_is_reclaimed(cluster: ClusterDriver, namespace: str) -> None:
    example = Example(cluster, namespace, "spot")
    example.apply(replicas=2, least=1)
    eventually(lambda: example.step > 0, 180, 0.3, "it trains")
    victim = example.pods[0]
    before = example.step
    cluster.kubectl.delete("pod", victim, namespace, wait=False)

    def resumed() -> list[int]:
        found = [int(step) for step in re.findall(r"^begins after step=(\d+)", example.logs, re.MULTILINE)]
        assert any(step > 0 for step in found), found
        return found

    steps = eventually(resumed, 120, 0.5, "it continues from the checkpoint that SIGTERM made it write")
    assert max(steps) >= before
    example.delete()


def test_the_session_example_loses_no_step_and_restarts_no_process_of_others(
    cluster: ClusterDriver, namespace: str
) -> None:
    example = Example(cluster, namespace, "session")
    example.apply(replicas=3, least=1)
    eventually(
        lambda: len(example.pods) == 3 and all(world(example, pod, 3) for pod in example.pods),
        *(180, 0.3, "three worker pods train"),
    )
    worlds = {pod: entered(example.log(pod))[-1] for pod in example.pods}
    survivor, other, victim = sorted(worlds, key=lambda pod: worlds[pod].rank)  # rank 0 prints the steps
    processes = {pod: item.pid for pod, item in worlds.items()}

    known = len(entered(example.log(survivor)))
    cluster.kubectl.delete("pod", victim, namespace, wait=False)
    eventually(
        lambda: 2 in [item.workers for item in entered(example.log(survivor))[known:]],
        *(60, 0.3, "the others continue without the pod"),
    )
    eventually(lambda: world(example, survivor, 3), 180, 0.3, "its replacement joins")
    assert entered(example.log(other))[-1].pid == processes[other], "the process of a remaining pod does not restart"

    kill = f"import os; os.kill({processes[other]}, 9)"
    cluster.kubectl.run("exec", other, "-n", namespace, "--", "python", "-c", kill)
    eventually(
        lambda: world(example, survivor, 3) and entered(example.log(other))[-1].pid != processes[other],
        *(180, 0.3, "a new process takes the place of the killed one"),
    )

    log = example.log(survivor)
    log = log[log.index(f"pid={processes[survivor]} ") :]  # its process may have restarted until all three were there
    changes = entered(log)
    print(*changes, sep="\n")  # with the process ID, in the output of this test
    assert {change.pid for change in changes} == {processes[survivor]}, "one process trains through all changes"
    steps = steps_of(log)
    print(f"{len(steps)} steps, {steps[0]} to {steps[-1]}")
    assert steps == list(range(steps[0], steps[-1] + 1)), "no step is lost, and none is taken twice"

    last = steps_of(example.log(survivor))[-1]
    example.suspend(True)
    cluster.kubectl.wait("elasticjob/session", "condition=Suspended", namespace, timeout=120)
    example.suspend(False)
    eventually(
        lambda: len(example.pods) == 3 and all(world(example, pod, 3) for pod in example.pods),
        *(180, 0.3, "it trains again"),
    )
    assert entered(example.log(example.pods[0]))[0].step >= last, "it was saved when the job was suspended"
    example.delete()


@pytest.mark.nightly
def test_the_hpa_example_gets_an_autoscaler_and_trains(cluster: ClusterDriver, namespace: str) -> None:
    example = Example(cluster, namespace, "hpa")
    assert "replicas" not in example.job["spec"]["workers"], "each apply would set it back"
    cluster.kubectl.apply(yaml.safe_dump_all(example.documents), namespace)
    scaler = eventually(lambda: cluster.kubectl.items("hpa", namespace)[0], 60, 0.5, "an autoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "hpa"
    assert scaler["spec"]["metrics"][0]["external"]["metric"]["name"] == "free_gpus"
    assert "finished step=40" in example.succeeds()
    example.delete()


@pytest.mark.nightly
def test_the_nfs_example_mounts_its_volume_everywhere(cluster: ClusterDriver, namespace: str) -> None:
    """The test cluster has no NFS server: only the volume's type differs."""
    example = Example(cluster, namespace, "nfs")
    built = yaml.safe_load_all(cluster.kubectl.run("kustomize", str(EXAMPLES / "nfs")))
    volumes = [one for one in built if one["kind"].startswith("PersistentVolume")]
    (volume,) = (one for one in volumes if one["kind"] == "PersistentVolume")
    assert volume["spec"].pop("nfs")
    del volume["spec"]["mountOptions"]
    volume["spec"]["hostPath"] = {"path": cluster.shared_directory}
    cluster.kubectl.apply(yaml.safe_dump_all(volumes), namespace)
    example.job["spec"]["checkpoint"]["volume"] = {"persistentVolumeClaim": {"claimName": "nfs-checkpoints"}}
    example.apply(replicas=2)
    assert "finished step=40" in example.succeeds()
    example.delete()
    cluster.kubectl.delete("persistentvolumeclaim", "nfs-checkpoints", namespace, wait=False)
    cluster.kubectl.delete("persistentvolume", "nfs-checkpoints", wait=False)


@pytest.mark.nightly
def test_the_s3_example_continues_from_its_bucket(cluster: ClusterDriver, namespace: str) -> None:
    container = {
        "name": "s3",
        "image": cluster.image("frameworks"),
        "imagePullPolicy": cluster.pull_policy,
        "command": ["python", "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"],
        "readinessProbe": {"httpGet": {"path": "/moto-api/", "port": 5000}, "periodSeconds": 2},
    }
    metadata = {"name": "s3", "labels": {"app": "s3"}}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"selector": {"app": "s3"}, "ports": [{"port": 5000}]}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials"},
         "stringData": {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}},
    ]  # fmt: skip
    cluster.kubectl.apply(yaml.safe_dump_all(objects), namespace)
    cluster.kubectl.wait("pod/s3", "condition=Ready", namespace, timeout=120)
    make = "import urllib.request as u; u.urlopen(u.Request('http://localhost:5000/my-bucket', b'', method='PUT'))"
    cluster.kubectl.run("exec", "s3", "-n", namespace, "--", "python", "-c", make)
    example = Example(cluster, namespace, "s3")
    example.apply(replicas=2)
    assert "begins after step=0 with 2 workers" in example.succeeds()
    example.delete()
    example.apply(replicas=3)
    assert "begins after step=40 with 3 workers" in example.succeeds()
    example.delete()
