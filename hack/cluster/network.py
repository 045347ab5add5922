"""The cluster's network: a namespace for the control plane that also holds the bridge, one namespace per node, one link
to the machine.

    machine 10.89.0.1 --elasticjob0-- [ control plane 10.89.0.2 = bridge0 ] --node-1-- eth0 10.89.0.11 [ node-1, pods
    10.244.1.0/24 ]

The bridge is inside a namespace, so the machine's own firewall never sees traffic between nodes, and removing the
namespaces removes everything. Routes to the pods of every possible node exist from the start, so adding a node changes
nothing elsewhere.
"""

from __future__ import annotations

import shutil

from .output import ClusterError, environment, run
from .settings import (
    BRIDGE,
    CONTROL_PLANE_ADDRESS,
    CONTROL_PLANE_NAMESPACE,
    HOST_ADDRESS,
    HOST_LINK,
    MAX_NODES,
    NAMESPACE_PREFIX,
    NodeAddress,
)

# A bridge without its own MAC address uses the lowest of its ports', which changes as nodes come and go.
_BRIDGE_MAC = "02:65:6a:00:00:02"


def create() -> None:
    """Creates the control plane's namespace, the bridge in it and the machine's link to it. None of them may exist
    (`remove_all`)."""
    run(["ip", "netns", "add", CONTROL_PLANE_NAMESPACE])
    _ip(
        f"link add {HOST_LINK} type veth peer name host netns {CONTROL_PLANE_NAMESPACE}",
        f"address add {HOST_ADDRESS}/24 dev {HOST_LINK}",
        f"link set {HOST_LINK} up",
        *_routes_to_pods(),
    )
    _ip(
        "link set lo up",
        f"link add {BRIDGE} address {_BRIDGE_MAC} type bridge",
        f"address add {CONTROL_PLANE_ADDRESS}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"link set host master {BRIDGE} up",
        f"route add default via {HOST_ADDRESS}",
        *_routes_to_pods(),
        namespace=CONTROL_PLANE_NAMESPACE,
    )


def add_node(node: NodeAddress) -> None:
    """Makes the node's namespace and plugs it into the bridge."""
    run(["ip", "netns", "add", node.namespace])
    _ip(
        f"link add {node.link} type veth peer name eth0 netns {node.namespace}",
        f"link set {node.link} master {BRIDGE} up",
        namespace=CONTROL_PLANE_NAMESPACE,
    )
    _ip(
        "link set lo up",
        f"address add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {HOST_ADDRESS}",
        *_routes_to_pods(but=node.number),
        namespace=node.namespace,
    )


def remove_node(node: NodeAddress) -> None:
    """Removes the node's namespace with everything in it, if it exists. Pulls its cable first, so that no peer sees its
    connections close."""
    if node.namespace in namespaces():
        set_link(node, up=False)
        run(["ip", "-n", CONTROL_PLANE_NAMESPACE, "link", "delete", node.link])
        run(["ip", "netns", "delete", node.namespace])


def set_link(node: NodeAddress, up: bool) -> None:
    """Plugs the node's cable in or pulls it, at the bridge's end."""
    run(["ip", "-n", CONTROL_PLANE_NAMESPACE, "link", "set", node.link, "up" if up else "down"])


def link_is_up(node: NodeAddress) -> bool:
    # Not "state UP": that is known only when both ends are up.
    return ",UP" in run(["ip", "-n", CONTROL_PLANE_NAMESPACE, "-brief", "link", "show", "dev", node.link])


def namespaces() -> list[str]:
    """The network namespaces of the cluster that exist, of whichever run."""
    if not _ip_is_installed():  # nothing was ever built on this machine
        return []
    names = [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines()]
    return [name for name in names if name.startswith(NAMESPACE_PREFIX)]


def remove_all() -> None:
    """Removes every namespace and link of the cluster. Its processes have ended before: a namespace lives as long as a
    process in it."""
    for name in namespaces():
        run(["ip", "netns", "delete", name])
    if _ip_is_installed() and _host_link_exists():
        try:
            run(["ip", "link", "delete", HOST_LINK])
        except ClusterError:
            if _host_link_exists():  # otherwise it was removed together with the namespace of its other end
                raise


def _host_link_exists() -> bool:
    return HOST_LINK in run(["ip", "-brief", "link", "show", "type", "veth"])


def _ip_is_installed() -> bool:
    return shutil.which("ip", path=environment()["PATH"]) is not None


def _routes_to_pods(but: int = 0) -> list[str]:
    nodes = [NodeAddress(number) for number in range(1, MAX_NODES + 1) if number != but]
    return [f"route add {node.pod_range} via {node.address}" for node in nodes]


def _ip(*commands: str, namespace: str | None = None) -> None:
    run(["ip", *(["-n", namespace] if namespace else []), "-batch", "-"], stdin="\n".join(commands) + "\n")
