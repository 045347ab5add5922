"""One node of the cluster, from the machine's side: start, power, cable, images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from . import cgroups, network, template
from .certificates import make_kubelet_kubeconfig
from .containerd import wait_for_containerd
from .node_main import NodeSpec
from .output import DIE_WITH_PARENT, ClusterError, environment, run, tail
from .programs import program, programs_folder
from .settings import CHECKOUT, NodeAddress, cache_folder, node_address


class Node:
    """A node in the cluster whose files are in `state`."""

    def __init__(self, state: Path, address: NodeAddress) -> None:
        self.address = address
        self.name = address.name
        self.folder = state / "nodes" / address.name
        self.logs = state / "logs" / address.name
        self._state = state
        self._group = f"nodes/{self.name}"

    def power_on(self) -> None:
        """Starts the node; its containerd runs when this returns, its kubelet is about to register. A new node's files
        are made first."""
        self.logs.mkdir(parents=True, exist_ok=True)
        containerd = self.folder / "var-lib" / "containerd"
        if template.loaded_images(containerd) != template.loaded_images(template.template_folder()):
            template.copy_template(containerd)
        run(["rm", "-rf", self.folder / "run"])  # a socket of an earlier start would look alive
        network.add_node(self.address)
        folders = cgroups.create(self._group)
        namespaces = ["ip", "netns", "exec", self.address.namespace, "unshare", "--cgroup", "--mount", "--uts"]
        command = [*namespaces, sys.executable, "-m", "hack.cluster.node_main", self._spec().to_json()]
        log = self.logs / "node.log"
        with log.open("ab") as output:
            joined = [*DIE_WITH_PARENT, "sh", "-c", cgroups.JOIN_AND_EXECUTE, " ".join(map(str, folders)), *command]
            started = subprocess.run(
                joined,
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                check=False,
            )
        if started.returncode:
            raise ClusterError(f"{self.name} did not start, log: {log}\n{tail(log)}")

    def power_off(self) -> None:
        """Ends everything on the node at once, without any other machine noticing. Its files stay. Does nothing if the
        node is off."""
        if self.address.namespace in network.namespaces():
            network.set_link(self.address, up=False)
        cgroups.kill(self._group)
        cgroups.remove(self._group)
        network.remove_node(self.address)

    def is_on(self) -> bool:
        return bool(cgroups.processes(self._group))

    def is_frozen(self) -> bool:
        return cgroups.is_frozen(self._group)

    def freeze(self) -> None:
        cgroups.freeze(self._group)

    def thaw(self) -> None:
        cgroups.thaw(self._group)

    def add_image(self, name: str) -> None:
        """Gives the node an image of the template. A node that is off gets it when it starts."""
        if self.is_on():
            folder = self.folder / "var-lib" / "containerd"
            containerd = wait_for_containerd(
                self._group, self.logs / "containerd.log", folder, Path("/var/lib/containerd")
            )
            template.add_image(name, containerd, folder)

    def _spec(self) -> NodeSpec:
        return NodeSpec(
            name=self.name,
            folder=str(self.folder),
            logs=str(self.logs),
            programs=str(programs_folder()),
            kubeconfig=str(make_kubelet_kubeconfig(self._state, self.name)),
            proxy_kubeconfig=str(self._state / "super-admin.conf"),
            certificate_authority=str(self._state / "pki" / "ca.crt"),
            cgroup_mounts=[(hierarchy.root.name, hierarchy.v1_options) for hierarchy in cgroups.hierarchies()],
            visible=[str(CHECKOUT), str(cache_folder())],
        )


def all_nodes(state: Path) -> list[Node]:
    """All nodes of the cluster, on or off, in order."""
    names = [folder.name for folder in (state / "nodes").glob("node-*")]
    return sorted((Node(state, node_address(name)) for name in names), key=lambda node: node.address.number)


def ready_nodes(kubeconfig: Path, since: float = 0.0) -> set[str]:
    """The names of the nodes that are Ready, take new pods, and have renewed their lease since `since` (seconds, as
    time.time())."""
    kinds = ["nodes,leases.coordination.k8s.io", "--namespace", "kube-node-lease"]
    listed = json.loads(run([program("kubectl"), "--kubeconfig", kubeconfig, "get", *kinds, "--output", "json"]))
    return ready_names(listed["items"], since)


def ready_names(items: Sequence[dict[str, Any]], since: float) -> set[str]:
    """The same, from nodes and leases as the API server returns them."""
    leases = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Lease"}
    nodes = {item["metadata"]["name"]: item for item in items if item["kind"] == "Node"}
    return {name for name, node in nodes.items() if _takes_pods(node) and _renewed(leases.get(name, {})) >= since}


def _takes_pods(node: dict[str, Any]) -> bool:
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in node["status"].get("conditions", [])
    )
    return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))


def _renewed(lease: dict[str, Any]) -> float:
    text = lease.get("renewTime")
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0
