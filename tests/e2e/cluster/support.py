"""Helpers of the cluster's tests: pods from the etcd image, and what a cluster could leave behind."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack import cluster
from hack.cluster import network
from hack.cluster.output import run
from hack.cluster.programs import programs_folder
from hack.cluster.settings import CGROUP, RECORD, SHARED_DIRECTORY
from hack.support import eventually

ETCD_SERVER = [
    "etcd",
    "--data-dir=/data/etcd",
    "--listen-client-urls=http://0.0.0.0:2379",
    "--advertise-client-urls=http://0.0.0.0:2379",
]
NODE_PROGRAMS = {"containerd", "containerd-shim-runc-v2", "coredns", "kube-proxy", "kube-scheduler", "kubelet"}
"""Programs that only a cluster with nodes runs; etcd and the API server may belong to another test."""

POSSIBLE_LEFTOVERS = [
    *(
        "/etc/cni",
        "/opt/cni",
        "/run/containerd",
        "/run/netns",
        "/run/xtables.lock",
        "/usr/libexec/kubernetes",
        "/var/lib/cni",
    ),
    *(
        "/var/lib/containerd",
        "/var/lib/kubelet",
        "/var/log/containers",
        "/var/log/pods",
        str(SHARED_DIRECTORY),
        str(RECORD),
    ),
]


def make_pod(
    name: str,
    node: str,
    command: Sequence[str],
    data: str = "",
    image: str = cluster.ETCD_IMAGE,
    restart: str = "Never",
) -> None:
    """A pod on this node, labelled app=<name>. `data`: the folder of the machine that /data is; empty: an emptyDir."""
    volume: dict[str, Any] = {"name": "data", **({"hostPath": {"path": data}} if data else {"emptyDir": {}})}
    container = {
        "name": "main",
        "image": image,
        "command": list(command),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": restart,
            "containers": [container],
            "volumes": [volume],
            "terminationGracePeriodSeconds": 1,
        },
    }
    cluster.kubectl("create", "--filename", "-", stdin=json.dumps(pod))


def make_service(name: str) -> None:
    """A Service on port 2379 of the pods labelled app=<name>."""
    spec = {"selector": {"app": name}, "ports": [{"port": 2379}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("create", "--filename", "-", stdin=json.dumps(service))


def pod_status(name: str) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(cluster.kubectl("get", "pod", name, "--output", "json"))["status"]
    return status


def wait_for_phase(name: str, phase: str) -> dict[str, Any]:
    """Waits until the pod is in this phase and returns its status."""

    def reached() -> dict[str, Any]:
        status = pod_status(name)
        assert status["phase"] == phase, json.dumps(status, indent=1)
        return status

    return eventually(reached, what=f"pod {name} is {phase}")


def node_status(name: str) -> cluster.NodeStatus:
    return next(node for node in cluster.status() if node.name == name)


def remains(before: dict[str, set[str]] | None = None) -> dict[str, set[str]]:
    """Everything that a cluster may leave behind, by kind, except what was there `before`."""
    found = {
        "processes": _cluster_processes(),
        "mounts": {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()},
        "network namespaces": set(network.namespaces()),
        "links": {line.split()[0] for line in run(["ip", "-brief", "link", "show"]).splitlines()},
        "routes": set(run(["ip", "route", "show"]).splitlines()),
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}")},
        "files": {path for path in POSSIBLE_LEFTOVERS if Path(path).exists()},
    }
    return {kind: names - (before or {}).get(kind, set()) for kind, names in found.items()}


def assert_nothing_remains(before: dict[str, set[str]]) -> None:
    """Waits a little: the kernel and process 1 clean up in their own time."""

    def nothing() -> bool:
        left = {kind: names for kind, names in remains(before).items() if names}
        assert not left, left
        return True

    eventually(nothing, what="nothing of the cluster is left")


def _cluster_processes() -> set[str]:
    """Processes in the cluster's cgroups, in a network namespace that is not the machine's, or running a program that
    only it runs."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups, namespace, program = (
                (folder / "cgroup").read_text(),
                os.readlink(folder / "ns/net"),
                os.readlink(folder / "exe"),
            )
        except OSError:  # gone, or a thread of the kernel
            continue
        ours = Path(program).parent == programs_folder() and Path(program).name in NODE_PROGRAMS
        if ours or CGROUP in groups or namespace != os.readlink("/proc/self/ns/net"):
            found.add(f"{folder.name} {program}")
    return found
