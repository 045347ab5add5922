"""Worker pods with the runtime, on a real API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.operator.faulty import Answer, Fault, FaultyServer, Request
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

IMAGE = "registry.example/runtime:1"
SECURITY: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER: dict[str, Any] = {
    "name": "trainer",
    "image": "plain:1",
    "command": ["python", "train.py"],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
TEMPLATE: dict[str, Any] = {"spec": {"securityContext": SECURITY, "containers": [CONTAINER]}}


@pytest.fixture
def restricted(ns: Namespace) -> Namespace:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{ns.name}"
    ns.kube.call("PATCH", path, {"metadata": {"labels": labels}}, kind="application/merge-patch+json")
    return ns


@pytest.fixture
def operator(start_operator: Callable[..., Operator]) -> Operator:
    return start_operator(ELASTICJOB_RUNTIME_IMAGE=IMAGE)


@pytest.mark.parametrize("inject", ["ImageVolume", "InitContainer"])
@pytest.mark.usefixtures("operator")
def test_both_ways_are_allowed_by_the_restricted_pod_security_level(
    restricted: Namespace, submit: Callable[..., str], inject: str
) -> None:
    submit(replicas=1, template=TEMPLATE, runtime={"inject": inject})
    eventually(restricted.workers, what="the worker pod")
    spec = restricted.workers()["digits-worker-0"]["spec"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "elasticjob-runtime"]
    assert ("image" in volume) is (inject == "ImageVolume")
    assert [init_container["name"] for init_container in spec.get("initContainers", [])] == (
        [] if inject == "ImageVolume" else ["elasticjob-runtime"]
    )
    assert spec["containers"][0]["command"] == ["python", "/opt/elasticjob/launch.py", "python", "train.py"]


def test_an_image_volume_that_the_api_server_rejects_becomes_an_init_container(
    ns: Namespace,
    server: FaultyServer,
    tmp_path: Path,
    start_operator: Callable[..., Operator],
    submit: Callable[..., str],
) -> None:
    """As an API server does on which the feature is off; and nothing of it is in the job's conditions or Events."""
    ns.add_node("mounts-images")
    info = {
        "kubeletVersion": "v1.36.0", "containerRuntimeVersion": "containerd://2.3.7", "operatingSystem": "linux",
        **dict.fromkeys(("architecture", "bootID", "kernelVersion", "kubeProxyVersion", "machineID"), ""),
        **dict.fromkeys(("osImage", "systemUUID"), ""),
    }  # fmt: skip
    for node in ns.kube.call("GET", "/api/v1/nodes")["items"]:  # other tests leave nodes, and every node must mount
        path = f"/api/v1/nodes/{node['metadata']['name']}/status"
        ns.kube.call("PATCH", path, {"status": {"nodeInfo": info}}, kind="application/merge-patch+json")
    asked: list[Request] = []

    def refuse_first(request: Request) -> Fault | None:
        if "dryRun" not in request.query or not request.path.endswith("/pods"):
            return None
        asked.append(request)
        return Answer(422, "Invalid") if len(asked) == 1 else None

    try:
        server.fault = refuse_first
        start_operator(server.kubeconfig(tmp_path), ELASTICJOB_RUNTIME_IMAGE=IMAGE)
        submit(replicas=1, template=TEMPLATE)
        eventually(ns.workers, what="the worker pod")
        spec = ns.workers()["digits-worker-0"]["spec"]
        assert [init_container["name"] for init_container in spec["initContainers"]] == ["elasticjob-runtime"]
        assert len(asked) == 2
        eventually(lambda: ns.is_true("digits", "Accepted"), what="the job is accepted")
        assert not [event for event in ns.events("digits") if event["type"] == "Warning"]
    finally:
        ns.remove_node("mounts-images")
