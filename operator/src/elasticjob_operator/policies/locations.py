"""Where in the network worker pods are: what the agents order their ranks by. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping

from elasticjob_operator.node_state import Node
from elasticjob_operator.state import Pod


def locations(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> dict[str, str]:
    """By pod, a path from the widest domain to the node. Empty if any order of the pods is as good as another: all are
    in one domain, or no two share one."""
    known = [pod for pod in pods if pod.node in nodes]
    counts = collections.Counter(pod.node for pod in known)
    paths = {name: "/".join(part for part in (nodes[name].location, name) if part) for name in counts}
    if not _orders((paths[name], count) for name, count in counts.items()):
        return {}
    return {pod.name: paths[pod.node] for pod in known}


def _orders(paths: Iterable[tuple[str, int]]) -> bool:
    """Whether there are a domain with several pods, and a pod outside it. `paths`: with the number of pods of each."""
    total, counts = 0, collections.Counter[str]()
    for path, count in paths:
        total += count
        parts = path.split("/")
        for depth in range(len(parts)):
            counts["/".join(parts[: depth + 1])] += count
    return any(1 < count < total for count in counts.values())
