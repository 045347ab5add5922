"""What a job waits for, on a real API server: the test plays the controllers and kubelets that tell it in Events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.test_workers import nodes

__all__ = ["nodes"]


def warn(ns: Namespace, kind: str, name: str, reason: str, message: str) -> None:
    """As a controller or a kubelet does."""
    about = {"kind": kind, "name": name, "namespace": ns.name}
    now = rfc3339()
    event = {"type": "Warning", "reason": reason, "message": message, "firstTimestamp": now, "lastTimestamp": now}
    ns.create("events", {"metadata": {"generateName": f"{name}."}, "involvedObject": about, **event})


def warnings_of(ns: Namespace, reason: str) -> list[str]:
    found = ns.events("digits")
    return [each["message"] for each in found if (each["type"], each["reason"]) == ("Warning", reason)]


def unschedulable(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


@pytest.mark.usefixtures("operator")
def test_a_rejected_etcd_is_told_with_its_cause(ns: Namespace, submit: Callable[..., str]) -> None:
    submit(endpoint="")
    eventually(lambda: ns.all("statefulsets"), what="the etcd's StatefulSet")
    warn(ns, "StatefulSet", "digits-etcd", "FailedCreate", "create Pod digits-etcd-0 failed: maximum memory is 1Mi")
    eventually(lambda: ns.status("digits").get("summary") == "PodRejected", what="the status")
    for type_ in ("RendezvousReady", "Running"):
        condition = ns.condition("digits", type_)
        assert condition["reason"] == "PodRejected"
        assert "StatefulSet digits-etcd" in condition["message"]
        assert "maximum memory is 1Mi" in condition["message"]
    (event,) = eventually(lambda: warnings_of(ns, "PodRejected"), what="one Warning")
    assert "maximum memory is 1Mi" in event


@pytest.mark.usefixtures("operator")
def test_an_unbound_claim_is_told_as_what_it_is(ns: Namespace, submit: Callable[..., str]) -> None:
    submit(spec={"checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "data"}}}})
    pods = eventually(lambda: list(ns.workers()), what="worker pods")
    warn(ns, "PersistentVolumeClaim", "data", "ProvisioningFailed", 'storageclass "fast" not found')
    for pod in pods:
        status = unschedulable("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
        ns.patch("pods", pod, {"status": status}, "status")
    eventually(
        lambda: "ProvisioningFailed" in ns.condition("digits", "Running").get("message", ""),
        what="the claim's own words",
    )
    condition = ns.condition("digits", "Running")
    assert condition["reason"] == "ClaimUnbound"
    assert "PersistentVolumeClaim data of Pod digits-worker-" in condition["message"]
    assert "kubectl describe pvc data" in condition["message"]
    eventually(lambda: len(warnings_of(ns, "ClaimUnbound")) == 1, what="one Warning")


@pytest.mark.usefixtures("operator")
def test_a_missing_volume_is_told_in_the_kubelets_words(
    ns: Namespace, nodes: tuple[str, str], submit: Callable[..., str]
) -> None:
    submit(replicas=1)
    (host,) = eventually(lambda: list(ns.workers()), what="the worker pod")
    pod = ns.pod_name(host)
    ns.bind(pod, nodes[0])
    warn(ns, "Pod", pod, "FailedMount", 'MountVolume.SetUp failed for volume "v": configmap "script" not found')
    eventually(lambda: ns.status("digits").get("summary") == "ContainerConfigError", what="the status")
    message = ns.condition("digits", "Running")["message"]
    assert f"Pod {pod} on node {nodes[0]}" in message
    assert 'configmap "script" not found' in message


def test_a_worker_pod_that_is_not_ready_to_train_is_named(
    ns: Namespace, training: Callable[..., Agents], nodes: tuple[str, str]
) -> None:
    """Its pod is ready, and only the agents know that the others train without it."""
    agents = training(replicas=3, node=nodes[0])
    late = ns.pod_name(max(ns.workers()))
    agents.unready(late)
    agents.plan(2, size=2)
    eventually(lambda: late in ns.condition("digits", "Degraded").get("message", ""))
    condition = ns.condition("digits", "Degraded")
    assert (condition["status"], condition["reason"]) == ("True", "WorkersMissing")
    assert "2 of 3 worker pods are training" in condition["message"]
    assert f"Pod {late} on node {nodes[0]}" in condition["message"]
    assert f"kubectl logs {late}" in condition["message"]
