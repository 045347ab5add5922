"""Where in the network worker pods are: what the agents order their ranks by. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elasticjob_operator.node_state import Node
from elasticjob_operator.state import Pod


def locations(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> dict[str, str]:
    """By pod, a path from the widest domain to the node. Empty if any order of the pods is as good as another: all are
    in one domain, or no two share one."""
    found = {
        pod.name: "/".join(part for part in (nodes[pod.node].location, pod.node) if part)
        for pod in pods
        if pod.node in nodes
    }
    return found if _orders(found.values()) else {}


def _orders(paths: Iterable[str]) -> bool:
    """Whether there are a domain with several of the paths, and a path outside it."""
    all_paths = list(paths)
    counts: dict[str, int] = {}
    for path in all_paths:
        parts = path.split("/")
        for depth in range(len(parts)):
            domain = "/".join(parts[: depth + 1])
            counts[domain] = counts.get(domain, 0) + 1
    return any(1 < count < len(all_paths) for count in counts.values())
