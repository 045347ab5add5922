"""What a job waits for, on a real API server: the test plays the controllers and kubelets that tell it in Events."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.test_workers import nodes

__all__ = ["nodes"]


def warn(ns: Namespace, kind: str, name: str, reason: str, message: str) -> None:
    """As a controller or a kubelet does."""
    about = {"kind": kind, "name": name, "namespace": ns.name}
    now = rfc3339()
    event = {"type": "Warning", "reason": reason, "message": message, "firstTimestamp": now, "lastTimestamp": now}
    ns.create("events", {"metadata": {"generateName": f"{name}."}, "involvedObject": about, **event})


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
