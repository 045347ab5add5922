"""What a deleted job must not leave behind: processes, objects, folders and network namespaces of its pods, packet
filter rules, files."""

from __future__ import annotations

import json
from pathlib import Path

from hack.chaos import network, processes
from hack.cluster.settings import state_folder
from hack.drivers import ClusterDriver

KINDS = (
    "elasticjobs,pods,services,endpointslices,statefulsets,configmaps,secrets,persistentvolumeclaims,"
    "poddisruptionbudgets,networkpolicies"
)


def leftovers(driver: ClusterDriver, job: str, checkpoints: Path) -> list[str]:
    """Descriptions of what is left. Retry for a while, because kubelets need time. Raises KubeError."""
    nodes = [folder.name for folder in (state_folder() / "nodes").glob("node-*")]
    pods = json.loads(driver.kubectl.run("get", "pods", "--all-namespaces", "--output", "json"))["items"]
    found = [
        f"object {name}" for name in driver.kubectl.run("get", KINDS, "--output", "name").split() if f"/{job}" in name
    ]
    found += [f"process {command[:120]}" for command in processes.all_commands() if "/chaos/train.py" in command]
    found += [f"rule {rule}" for rule in network.leftovers(nodes)]
    for node in nodes:
        found += _of_node(node, [pod for pod in pods if pod["spec"].get("nodeName") == node])
    found += [f"file {path}" for path in checkpoints.glob(".*.tmp")]
    return found


def _of_node(node: str, pods: list[dict[str, object]]) -> list[str]:
    """Folders and network namespaces of pods that the API server does not know."""
    known = {str(pod["metadata"]["uid"]) for pod in pods}  # type: ignore[index]
    files = state_folder() / "nodes" / node
    found = [
        f"{node}: folder of pod {path.name}"
        for path in (files / "var-lib" / "kubelet" / "pods").glob("*")
        if path.name not in known
    ]
    namespaces = list((files / "run" / "netns").glob("cni-*"))
    if len(namespaces) > len(pods):
        found.append(f"{node}: {len(namespaces)} network namespaces of pods, for {len(pods)} pods")
    return found
