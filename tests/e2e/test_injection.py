"""An image that never heard of us: Debian's Python and torch.

In a namespace with the restricted Pod Security level, with a user who is not root and a read-only root file system.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.drivers import ClusterDriver
from hack.images import build
from hack.support import eventually
from tests.e2e.jobs import worker_pod

SCRIPT = """
import os, time
import torch, torch.distributed as dist
import elasticjob_runtime
dist.init_process_group("gloo")
for step in range(20):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size() == 2
print(
    f"trained rank={dist.get_rank()} uid={os.getuid()} agent={'ELASTICJOB_AGENT_SOCKET' in os.environ}",
    f"runtime={elasticjob_runtime.__file__} path={os.environ['PYTHONPATH']}",
    flush=True,
)
dist.barrier()
time.sleep(1)  # torchrun waits for the other rank again if this one exits while that one is still in the barrier
dist.destroy_process_group()
"""
USER = 12345


@pytest.fixture(scope="module")
def namespace(cluster: ClusterDriver) -> Iterator[str]:
    """With the restricted Pod Security level, and the script as a module on the user's PYTHONPATH."""
    cluster.load_images(build(["plain"]))
    name = f"restricted-{uuid.uuid4().hex[:6]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code", "namespace": name},
         "data": {"mytraining.py": SCRIPT}},
    ]  # fmt: skip
    cluster.kubectl.apply(yaml.safe_dump_all(objects), name)
    yield name
    cluster.kubectl.delete("namespace", name, wait=False)


def manifest(cluster: ClusterDriver, name: str, command: list[str], image: str, **runtime: str) -> dict[str, Any]:
    container = {
        "name": "trainer",
        "image": image,
        "imagePullPolicy": cluster.pull_policy,
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "code", "configMap": {"name": "code"}}, {"name": "tmp", "emptyDir": {}}],
    }
    workers = {
        "replicas": 2,
        "procsPerWorker": 1,
        "template": {"spec": spec},
        **({"runtime": runtime} if runtime else {}),
    }
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"workers": workers},
    }


COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python-module": (["python3", "-u", "-m", "mytraining"], {}),
    "elasticrun-copied": (["elasticrun", "/code/mytraining.py"], {"inject": "InitContainer"}),
    "torchrun": (["torchrun", "/code/mytraining.py"], {}),
}


def test_an_image_that_never_heard_of_us_trains(cluster: ClusterDriver, namespace: str) -> None:
    """Three jobs at once: by image volume and by init container, with the commands that people have."""
    plain = cluster.image("plain")
    jobs = [manifest(cluster, name, command, plain, **runtime) for name, (command, runtime) in COMMANDS.items()]
    cluster.kubectl.apply(yaml.safe_dump_all(jobs), namespace)
    for name in COMMANDS:
        cluster.kubectl.wait(f"elasticjob/{name}", "condition=Succeeded", namespace, timeout=180)
    runtime = cluster.image("runtime")
    for name in COMMANDS:
        pod = worker_pod(cluster, name, 0, namespace)
        copied = [container["name"] for container in pod["spec"].get("initContainers", [])]
        way = "init container" if copied else "image volume"
        if cluster.name == "own" or name == "elasticrun-copied":  # our nodes can mount images
            assert copied == (["elasticjob-runtime"] if name == "elasticrun-copied" else [])
        first, *rest = cluster.kubectl.logs(pod["metadata"]["name"], namespace=namespace).splitlines()
        assert first.startswith("elasticjob: runtime ")
        assert f" from {runtime} ({way}), Python 3." in first
        assert first.endswith("; elasticrun runs the python3 command") is (name == "python-module")
        (trained,) = [line for line in rest if line.startswith("trained ")]
        assert f" uid={USER} agent={name != 'torchrun'} " in trained
        assert "runtime=/opt/elasticjob/python/elasticjob_runtime/" in trained
        assert trained.endswith(" path=/code:/opt/elasticjob/python")


def test_an_image_without_python_fails_the_job_at_once_with_the_remedy(cluster: ClusterDriver, namespace: str) -> None:
    job = manifest(cluster, "no-python", ["elasticrun", "train.py"], cluster.image("runtime"))
    cluster.kubectl.apply(yaml.safe_dump(job), namespace)
    cluster.kubectl.wait("elasticjob/no-python", "condition=Failed", namespace, timeout=90)
    status = cluster.kubectl.get("elasticjob", "no-python", namespace)["status"]
    (failed,) = [condition for condition in status["conditions"] if condition["type"] == "Failed"]
    assert failed["reason"] == "RuntimeUnusable", json.dumps(status)
    assert "the image has no python3, or not on its PATH" in failed["message"]

    def told() -> bool:
        events = cluster.kubectl.items("events", namespace)
        return any(event["reason"] == "RuntimeUnusable" and event["type"] == "Warning" for event in events)

    eventually(told, 30, 0.5, "an Event says so")
    pods = cluster.kubectl.items("pods", namespace, "elasticjob.dev/job-name=no-python,elasticjob.dev/component=worker")
    assert {pod["metadata"]["labels"]["elasticjob.dev/worker-index"] for pod in pods} <= {"0", "1"}  # no crash loop
