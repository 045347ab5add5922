"""Partitions between chosen machines of the test cluster: packet filter rules in the nodes' network namespaces, removed
at the end.

Each node drops what arrives from the other side, before connection tracking sees it. The machine and the control plane
(API server, DNS) count as one, CONTROL_PLANE. It has no rules: nodes drop what it sends, including its responses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from hack.cluster.output import run
from hack.cluster.settings import CONTROL_PLANE_ADDRESS, HOST_ADDRESS, node_address

CONTROL_PLANE = "control-plane"
CHAIN = "ELASTICJOB-CHAOS"


def sources(machine: str) -> tuple[str, ...]:
    """The source addresses of a machine's packets: its own and its pods'.

    >>> sources("node-1")
    ('10.89.0.11', '10.244.1.0/24')
    """
    if machine == CONTROL_PLANE:
        return (CONTROL_PLANE_ADDRESS, HOST_ADDRESS)
    node = node_address(machine)
    return (node.address, node.pod_range)


def rules(one: Iterable[str], other: Iterable[str]) -> dict[str, list[str]]:
    """The sources that each node drops, so that the two sides cannot reach each other.

    >>> rules(["node-1"], ["node-2", "control-plane"])
    {'node-1': ['10.89.0.12', '10.244.2.0/24', '10.89.0.2', '10.89.0.1'], 'node-2': ['10.89.0.11', '10.244.1.0/24']}
    """
    sides = (tuple(one), tuple(other))
    found: dict[str, list[str]] = {}
    for here, there in (sides, sides[::-1]):
        for node in here:
            if node != CONTROL_PLANE:
                found.setdefault(node, []).extend(address for machine in there for address in sources(machine))
    return found


@contextlib.contextmanager
def partitioned(one: Iterable[str], other: Iterable[str]) -> Iterator[None]:
    """Cuts the two sides off from each other until the end. Raises ClusterError if a node is off."""
    with contextlib.ExitStack() as stack:
        for node, dropped in rules(one, other).items():
            stack.callback(_remove, node)
            _iptables(node, "--new-chain", CHAIN)
            for address in dropped:
                _iptables(node, "--append", CHAIN, "--source", address, "--jump", "DROP")
            _iptables(node, "--insert", "PREROUTING", "--in-interface", "eth0", "--jump", CHAIN)
        yield


def leftovers(nodes: Iterable[str]) -> list[str]:
    """Our rules that are still on a node."""
    return [
        f"{node}: {line}" for node in nodes for line in _iptables(node, "--list-rules").splitlines() if CHAIN in line
    ]


def _remove(node: str) -> None:
    listed = _iptables(node, "--list-rules")
    if f"-A PREROUTING -i eth0 -j {CHAIN}" in listed:
        _iptables(node, "--delete", "PREROUTING", "--in-interface", "eth0", "--jump", CHAIN)
    if f"-N {CHAIN}" in listed:
        _iptables(node, "--flush", CHAIN)
        _iptables(node, "--delete-chain", CHAIN)


def _iptables(node: str, *words: str) -> str:
    namespace = node_address(node).namespace
    return run(["ip", "netns", "exec", namespace, "iptables", "--wait", "5", "--table", "raw", *words])
