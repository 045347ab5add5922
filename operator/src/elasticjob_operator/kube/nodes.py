"""Health of nodes as this operator saw it change, and kubelet heartbeats read before an irrevocable action.

Kubelets' Leases are not watched: each node would cause an event every 10 s, and only few nodes are ever lost. Two reads
right before the action give the same information.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping, Sequence

from elasticjob_operator.kube.api_resources import LEASES, NODES
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import KubeClient, NotFoundError, RejectedError
from elasticjob_operator.kube.convert import node_of
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.node_state import Heartbeat, Node, NodeCounts
from elasticjob_operator.policies.node_loss import count_nodes

NODE_LEASES = "kube-node-lease"
"""Namespace of the Leases that kubelets renew."""
CACHED_SECONDS = 1.0
"""Pods of one node share a read, s."""
REMEMBERED = 1000
"""Nodes whose heartbeats are remembered."""

Clock = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class NodeCache(ObjectCache[Node]):
    """Nodes as this operator saw them. Calls `changed(("", name))`."""

    def __init__(
        self, changed: Callable[[NamespacedName], None], clock: Clock = utc_now, topology: Sequence[str] = ()
    ) -> None:
        """`topology`: labels of nodes; see Settings.topology_labels."""
        super().__init__(self._seen, lambda body: ("", body["metadata"]["name"]), changed)
        self._clock = clock
        self._topology = topology
        self._counted: tuple[Mapping[str, Node], NodeCounts] | None = None

    def _seen(self, body: Json) -> Node:
        return node_of(body, self.get(("", body["metadata"]["name"])), self._clock(), self._topology)

    @property
    def node_counts(self) -> NodeCounts:
        """Of all nodes; recounted only when one changes."""
        nodes = self.by_name
        if self._counted is None or self._counted[0] is not nodes:
            self._counted = nodes, count_nodes(nodes)
        return self._counted[1]


class Heartbeats:
    """Fresh reads of nodes and of their kubelets' Leases."""

    def __init__(self, api: KubeClient, clock: Clock = utc_now) -> None:
        self._client = api
        self._clock = clock
        self._known: dict[str, Heartbeat] = {}
        self._reads: dict[str, asyncio.Lock] = {}

    @property
    def by_node(self) -> Mapping[str, Heartbeat]:
        return self._known

    async def read(self, node: str) -> None:
        """Raises ApiError or ConnectionError. An object that may not be read (403) counts as missing."""
        async with self._reads.setdefault(node, asyncio.Lock()):
            before = self._known.get(node)
            if before is not None and (self._clock() - before.read_at).total_seconds() < CACHED_SECONDS:
                return
            lease, body = await asyncio.gather(
                self._get(LEASES.path(NODE_LEASES, node)), self._get(NODES.path("", node))
            )
            self._known[node] = heartbeat_of(lease, before, exists=body is not None, now=self._clock())
        self._forget()

    async def _get(self, path: str) -> Json | None:
        try:
            return await self._client.request("GET", path)
        except NotFoundError:
            return None
        except RejectedError as error:
            if error.status != 403:
                raise
            return None

    def _forget(self) -> None:
        while len(self._known) > REMEMBERED:
            node = next(iter(self._known))
            del self._known[node]
            self._reads.pop(node, None)


def heartbeat_of(lease: Json | None, before: Heartbeat | None, *, exists: bool, now: datetime.datetime) -> Heartbeat:
    """`lease`: the kubelet's; None: there is none. `before`: what was read last."""
    spec = (lease or {}).get("spec") or {}
    renewed = datetime.datetime.fromisoformat(spec["renewTime"]) if spec.get("renewTime") else None
    unchanged = before is not None and before.renewed_at == renewed
    return Heartbeat(
        read_at=now,
        exists=exists,
        renewed_at=renewed,
        unchanged_since=before.unchanged_since if before is not None and unchanged else now,
        lease_seconds=float(spec.get("leaseDurationSeconds") or 40.0),
    )
