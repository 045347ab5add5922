"""Names, addresses and folders of the test cluster. One cluster runs per machine, so all of them are fixed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSION = "v1.36.3"
MODULE_FOLDER = Path(__file__).resolve().parent
CHECKOUT = MODULE_FOLDER.parents[1]

# In the checkout, for users.
DOT_CLUSTER = CHECKOUT / ".cluster"
KUBECONFIG = DOT_CLUSTER / "kubeconfig"
LINKS = DOT_CLUSTER / "bin"

# On the machine, so that the next run finds it, from whichever checkout.
RECORD = Path("/run/elasticjob-cluster.json")
CGROUP = "elasticjob-cluster"
NAMESPACE_PREFIX = "elasticjob-"
CONTROL_PLANE_NAMESPACE = NAMESPACE_PREFIX + "control-plane"
HOST_LINK = "elasticjob0"
BRIDGE = "bridge0"

HOST_ADDRESS = "10.89.0.1"
CONTROL_PLANE_ADDRESS = "10.89.0.2"
SERVICE_RANGE = "10.96.0.0/16"
DNS_ADDRESS = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
MAX_NODES = 50

SHARED_DIRECTORY = Path("/var/lib/elasticjob-shared")
"""One folder of the machine, at this same path on the machine and on every node: a hostPath volume on it acts like NFS.
World-writable, emptied by `up`, removed by `down`."""


def cache_folder() -> Path:
    """Where built programs, images and the state of a running cluster live: `ELASTICJOB_CACHE`, else
    `~/.cache/elasticjob`."""
    configured = os.environ.get("ELASTICJOB_CACHE")
    return (Path(configured) if configured else Path.home() / ".cache" / "elasticjob").resolve() / "cluster"


def state_folder() -> Path:
    """Where the cluster that this process starts keeps certificates, node folders and logs. On the cache's file system,
    so that nodes can be hard-linked from the template."""
    return cache_folder() / "state"


@dataclass(frozen=True)
class NodeAddress:
    """Where one node lives: everything follows from its number, 1 to MAX_NODES."""

    number: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def namespace(self) -> str:
        return NAMESPACE_PREFIX + self.name

    @property
    def link(self) -> str:
        """Name of the bridge's end of the veth pair (at most 15 characters)."""
        return self.name

    @property
    def address(self) -> str:
        return f"10.89.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"


def node_address(name: str) -> NodeAddress:
    """`node-3` -> its addresses. Raises ValueError for a name that is not one of ours."""
    prefix, _, number = name.partition("-")
    if prefix != "node" or not number.isdigit() or not 1 <= int(number) <= MAX_NODES:
        raise ValueError(f"{name!r} is not a node of the test cluster: its nodes are node-1, node-2, ...")
    return NodeAddress(int(number))
