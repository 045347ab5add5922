"""Jobs that cannot start, on a real cluster: the status names the cause, in the words of the scheduler, the kubelet and
controllers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hack.drivers import ClusterDriver, adapt
from hack.support import eventually
from tests.e2e.jobs import MANIFEST

NAMESPACE, LIMITED, FULL = "waits", "waits-limited", "waits-full"
MISSING = {"nodeSelector": {"pool": "none"}}
Json = dict[str, Any]


def _object(kind: str, namespace: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": kind.lower(), "namespace": namespace}, "spec": spec}


OBJECTS = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": item}} for item in (NAMESPACE, LIMITED, FULL)),
    _object("LimitRange", LIMITED, limits=[{"type": "Container", "max": {"memory": "900Mi"}}]),
    _object("ResourceQuota", FULL, hard={"count/pods": "1"}),
    _object(
        "PersistentVolumeClaim",
        NAMESPACE,
        accessModes=["ReadWriteOnce"],
        storageClassName="absent",
        resources={"requests": {"storage": "1Gi"}},
    ),
]


def _pod(manifest: Json) -> Json:
    spec: Json = manifest["spec"]["workers"]["template"]["spec"]
    return spec


def _claim(name: str) -> Callable[[Json], object]:
    volume = {"persistentVolumeClaim": {"claimName": name}}
    return lambda manifest: manifest["spec"].update(checkpoint={"volume": volume})


def _missing_secret(manifest: Json) -> None:
    _pod(manifest)["containers"][0].setdefault("envFrom", []).append({"secretRef": {"name": "absent"}})


def _long_init(manifest: Json) -> None:
    image = _pod(manifest)["containers"][0]["image"]
    _pod(manifest)["initContainers"] = [{"name": "fetch", "image": image, "command": ["sleep", "3600"]}]


CASES: dict[str, tuple[str, Callable[[Json], object], str, str]] = {
    "rejected-etcd": (LIMITED, lambda _: None, "PodRejected", "StatefulSet rejected-etcd-etcd"),
    "full-quota": (FULL, lambda _: None, "PodRejected", "exceeded quota"),
    "absent-claim": (NAMESPACE, _claim("absent"), "ClaimUnbound", "PersistentVolumeClaim absent of Pod"),
    "unbound-claim": (NAMESPACE, _claim("persistentvolumeclaim"), "ClaimUnbound", "ProvisioningFailed"),
    "absent-secret": (NAMESPACE, _missing_secret, "ContainerConfigError", 'secret "absent" not found'),
    "long-init": (NAMESPACE, _long_init, "WaitingForWorkers", "init container fetch is running"),
    "no-node": (NAMESPACE, lambda job: _pod(job).update(MISSING), "Unschedulable", "No node takes Pod no-node-worker"),
    "no-node-for-etcd": (
        NAMESPACE,
        lambda job: job["spec"].update(rendezvous={"type": "Dedicated", "etcd": MISSING}),
        "Unschedulable",
        "No node takes Pod no-node-for-etcd-etcd-0",
    ),
}
"""Name -> (namespace, what is wrong with the job, reason, words of the message). More in test_failures.py."""


@pytest.fixture(scope="module")
def applied(cluster: ClusterDriver) -> Iterator[dict[str, float]]:
    """By job, when it was applied."""
    for item in OBJECTS:
        cluster.kubectl.apply(yaml.safe_dump(item), item["metadata"].get("namespace", "default"))
    plain = yaml.safe_load(adapt(MANIFEST.read_text(encoding="utf-8"), cluster))
    plain["spec"]["workers"].update(replicas=2, minReplicas=2, maxReplicas=2)
    times = {}
    for name, (namespace, spoil, _, _) in CASES.items():
        manifest = copy.deepcopy(plain)
        manifest["metadata"]["name"] = name
        spoil(manifest)
        cluster.kubectl.apply(yaml.safe_dump(manifest), namespace)
        times[name] = time.monotonic()
    yield times
    for namespace in (NAMESPACE, LIMITED, FULL):
        cluster.kubectl.delete("namespace", namespace, wait=False)


@pytest.mark.parametrize("name", CASES)
def test_the_status_of_a_job_that_cannot_start_names_the_cause(
    cluster: ClusterDriver, applied: dict[str, float], name: str
) -> None:
    namespace, _, reason, words = CASES[name]

    def told() -> str:
        job = cluster.kubectl.get("elasticjob", name, namespace)
        conditions = {condition["type"]: condition for condition in job.get("status", {}).get("conditions", [])}
        running = conditions.get("Running") or conditions.get("Accepted") or {}
        assert running.get("reason") == reason, running
        assert words in running["message"], running
        return str(running["message"])

    message = eventually(told, 90, 0.3, "the cause")
    print(f"{name}: {time.monotonic() - applied[name]:.1f} s: {message}")
    assert "What to do: " in message
