"""What the operator observes of nodes: plain data, as in `state`."""

from __future__ import annotations

import dataclasses
import datetime
import enum


class NodeHealth(str, enum.Enum):
    """The condition Ready of a node."""

    READY = "Ready"
    NOT_READY = "NotReady"
    """The kubelet reports False: it is alive but cannot run pods, for example because the node is shutting down or has
    no container runtime or network."""
    SILENT = "Silent"
    """The control plane reports Unknown: the kubelet has stopped responding. It may be dead or only cut off."""

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """The parts of a node that decisions depend on."""

    name: str
    health: NodeHealth
    since: datetime.datetime
    """When `health` last changed according to the API server: by another clock, and possibly before an outage."""
    seen_at: datetime.datetime
    """When this operator first observed that health. Grace periods are measured from here."""
    recovered_at: datetime.datetime | None = None
    """When this operator last saw the node become ready again. None: never."""
    out_of_service: bool = False
    """The node has the taint node.kubernetes.io/out-of-service: it is certainly shut down."""
    mounts_images: bool = False
    """Its kubelet and its container runtime can mount an image as a volume."""

    location: str = ""
    """Where it is in the network: a path of the values of its topology labels. Empty: it has none of them."""

    @property
    def ready(self) -> bool:
        return self.health is NodeHealth.READY


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Result of a fresh read of a node and its kubelet's Lease."""

    read_at: datetime.datetime
    exists: bool = True
    """The Node object exists, as far as the operator can tell."""
    renewed_at: datetime.datetime | None = None
    """spec.renewTime of the Lease, by the kubelet's clock. None: no Lease, or no permission to read it."""
    unchanged_since: datetime.datetime | None = None
    """Since when this operator has read the same `renewed_at`, by its own clock."""
    lease_seconds: float = 40.0
    """spec.leaseDurationSeconds. A kubelet renews its Lease four times in that period."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeCounts:
    """Counts over all nodes; see policies.node_loss."""

    total: int = 0
    not_ready: int = 0
    recoveries: tuple[datetime.datetime, ...] = ()
    """Recovery times of nodes that are ready now, sorted."""
    mounting_images: int = 0
    """Nodes that can mount an image as a volume."""
