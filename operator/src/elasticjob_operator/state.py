"""What the operator observes of one job: plain data, made by `cluster` and `rendezvous`, judged by `policies`.

All times are aware datetimes in UTC. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

import orjson
from elasticjob_runtime.contract import FailureValue, OutcomeValue, PlanValue, ProgressValue, SpecValue

LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class PodPhase(str, enum.Enum):
    """core/v1 PodStatus.phase."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnd:
    """How the training container ended."""

    exit_code: int
    reason: str = ""
    """The kubelet's word: Completed, Error, OOMKilled, StartError ..."""
    message: str = ""
    """The termination message: what the agent wrote of the job's first failure."""
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why a pod does not start: the kubelet's or the scheduler's reason and words."""

    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Disruption:
    """The condition DisruptionTarget: Kubernetes itself is about to take the pod away, or has."""

    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """The part of a pod of ours that decisions need."""

    name: str
    uid: str
    job_uid: str
    component: str
    index: int = -1
    """Worker index; -1: not a worker."""
    run: int = 0
    template_hash: str = ""
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    node: str = ""
    created_at: datetime.datetime
    scheduled_at: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None
    """metadata.deletionTimestamp: by when the kubelet will have ended it. None: nobody deleted it."""
    reason: str = ""
    """status.reason: Evicted, NodeLost, OutOfcpu ..."""
    message: str = ""
    end: ContainerEnd | None = None
    """None: the training container has not ended."""
    blocked: Blocked | None = None
    disruption: Disruption | None = None

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def ended(self) -> bool:
        """The training has ended in this pod, whatever sidecars still do."""
        return self.end is not None or self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def over(self) -> bool:
        """No container of it runs any more: it holds no resources."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def succeeded(self) -> bool:
        return self.end.exit_code == 0 if self.end is not None else self.phase is PodPhase.SUCCEEDED

    @property
    def failed(self) -> bool:
        return self.ended and not self.succeeded

    @property
    def running(self) -> bool:
        return self.phase is PodPhase.RUNNING and not self.ended and not self.terminating


class NodeHealth(str, enum.Enum):
    """The condition Ready of a node, by who says so."""

    READY = "Ready"
    NOT_READY = "NotReady"
    """Its kubelet says False: alive, and able to report, but not to run pods (it shuts down, or has no container
    runtime or network)."""
    SILENT = "Silent"
    """The control plane says Unknown: the kubelet has not been heard for a while. It may be dead, or only cut off."""

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """The part of a node that decisions need."""

    name: str
    health: NodeHealth
    since: datetime.datetime
    """When `health` last changed, as the API server has it: the time of somebody else's clock, perhaps of before an
    outage."""
    seen_at: datetime.datetime
    """When this operator first saw that health: what waits are counted from."""
    recovered_at: datetime.datetime | None = None
    """When this operator last saw it become ready after it was not. None: never."""
    out_of_service: bool = False
    """Somebody marked it with the taint node.kubernetes.io/out-of-service: it is certainly off."""

    @property
    def ready(self) -> bool:
        return self.health is NodeHealth.READY


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """What a fresh read of a node and of its kubelet's Lease said."""

    read_at: datetime.datetime
    exists: bool = True
    """The Node object is there, as far as may be known."""
    renewed_at: datetime.datetime | None = None
    """spec.renewTime of the Lease, by the kubelet's clock. None: there is no Lease, or it may not be read."""
    unchanged_since: datetime.datetime | None = None
    """Since when this operator has read that same `renewed_at`, by its own clock."""
    lease_seconds: float = 40.0
    """spec.leaseDurationSeconds; a kubelet renews four times as often."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeCounts:
    """All nodes, counted: see policies.node_loss."""

    total: int = 0
    not_ready: int = 0
    recoveries: tuple[datetime.datetime, ...] = ()
    """When nodes that are ready now recovered, in order."""


POD = "Pod"
"""The kind of pods, beside those of `Kind`."""


class Kind(str, enum.Enum):
    """Kinds of objects that a job owns beside its pods."""

    SERVICE = "Service"
    STATEFUL_SET = "StatefulSet"
    AUTOSCALER = "HorizontalPodAutoscaler"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnedObject:
    kind: Kind
    name: str
    uid: str
    owner_uid: str
    terminating: bool
    json: bytes
    """Of metadata and spec. As bytes: as objects of Python it takes five times as much, and thousands of jobs have
    three of these each."""

    @property
    def body(self) -> Mapping[str, Any]:
        """Made anew each time."""
        body: Mapping[str, Any] = orjson.loads(self.json)
        return body


class Connectivity(str, enum.Enum):
    """Whether the rendezvous answers."""

    CONNECTING = "connecting"
    """Not asked yet: nothing is known."""
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    """Asked, no answer; asked again by itself."""
    DENIED = "denied"
    """Answers, but refuses the operator, or is no etcd."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousView:
    """What the operator knows of a job's rendezvous. While it cannot be reached: what it said last."""

    connectivity: Connectivity = Connectivity.CONNECTING
    run_id: str = ""
    """Of which run this tells; empty: of the current one."""
    error: str = ""
    unreadable: str = ""
    """What is wrong with a value of the run, which is taken as missing; empty: nothing."""
    answered_at: datetime.datetime | None = None
    """When its etcd last answered anything; None: never yet. A silent one is asked after 10 s while a run trains, else
    after a minute (see etcd/shared_watch.py)."""
    spec: SpecValue | None = None
    plan: PlanValue | None = None
    progress: ProgressValue | None = None
    outcome: OutcomeValue | None = None
    failure: FailureValue | None = None
    """The first failure of the newest round that had one."""

    @property
    def empty(self) -> bool:
        """No key of the run is there, as far as known."""
        return not (self.spec or self.plan or self.progress or self.outcome or self.failure)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The API server's answer to a dry-run create of a worker pod."""

    template_hash: str
    """Of the pod that was tried."""
    rejection: str = ""
    """The API server's message; empty: it would create the pod."""
    invalid: bool = False
    """The pod itself is at fault (400, 422), not quota or an admission rule."""
    at: datetime.datetime
    retry_seconds: float = 30.0
    """After a refusal: how long until it is tried again, s. The quota may grow, a missing service account may be
    made."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """The API server rejected a create for a reason that may pass: quota, an admission policy, a name in use."""

    kinds: frozenset[str]
    """Kinds whose creation failed: Pod, Service, StatefulSet, HorizontalPodAutoscaler."""
    message: str
    retry_at: datetime.datetime


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """Everything observed of one job at one moment."""

    pods: tuple[Pod, ...] = ()
    """The job's own pods, workers and etcd."""
    names_in_use: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of pods, Services and StatefulSets of an earlier job of the same name, on their way out."""
    objects: Mapping[tuple[Kind, str], OwnedObject] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] | None = None
    """None: the operator may not read nodes. A node of a pod that is not in here does not exist."""
    nodes_watched_since: datetime.datetime | None = LONG_AGO
    """Since when nodes are watched without a gap. None: they are not watched just now."""
    heartbeats: Mapping[str, Heartbeat] = dataclasses.field(default_factory=dict)
    """By node: the last fresh read of each that was asked for."""
    node_counts: NodeCounts | None = None
    """Of `nodes`. None: not counted yet."""
    rendezvous: RendezvousView = RendezvousView()
    admission: Admission | None = None
    rejection: Rejection | None = None
    namespace_terminating: bool = False
    """The job's namespace is being terminated, and the job with it: nothing can be created there any more."""
