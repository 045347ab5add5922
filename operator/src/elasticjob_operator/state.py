"""What the operator observes of one job: plain data that `kube` and `etcd` produce and `policies` evaluates.

All times are aware datetimes in UTC. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

import orjson
from elasticjob_runtime.contract import (
    FailureValue,
    HangValue,
    LocationsValue,
    OutcomeValue,
    PlanValue,
    ProgressValue,
    ReplicaValue,
    SpecValue,
    StragglersValue,
    TransitionValue,
    UnreadyValue,
)

from elasticjob_operator.node_state import Heartbeat, Node, NodeCounts
from elasticjob_operator.queue_state import QueueView

LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class PodPhase(str, enum.Enum):
    """core/v1 PodStatus.phase."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    __str__ = str.__str__


_OVER = (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnd:
    """How a container ended."""

    exit_code: int
    reason: str = ""
    """As reported by the kubelet: Completed, Error, OOMKilled, StartError ..."""
    message: str = ""
    """The termination message: the first failure of the job, written by the agent, or the last lines of the log."""
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None
    container: str = ""
    """Name of the init container. Empty: it was the training container."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why a pod does not start: reason and message of the kubelet or the scheduler."""

    reason: str
    """Empty: the scheduler has said nothing about a pod with claims."""
    message: str = ""
    runtime: bool = False
    """It waits for the image of the injected runtime, not for its own."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims of a pod that has no node."""
    since: datetime.datetime | None = None
    """Since when an init container has been running, or an etcd has not been ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Disruption:
    """The pod condition DisruptionTarget: Kubernetes is about to delete the pod, or already has."""

    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """The parts of a job's pod that decisions depend on."""

    name: str
    uid: str
    job_uid: str
    """Of the job that owns it. Empty: no one does, as after `kubectl delete elasticjob --cascade=orphan`."""
    component: str
    index: int = -1
    """Worker index; -1: not a worker pod."""
    run: int = 0
    attempt: int = 1
    template_hash: str = ""
    workload: str = ""
    """Name of the Workload that admits it; empty: the job is in no queue."""
    in_dns: bool = False
    """Its Service selects it."""
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    """As far as the training container is concerned: other containers do not matter."""
    up: bool = False
    """The training container is running, but not ready: a readiness probe of its own fails."""
    node: str = ""
    created_at: datetime.datetime
    scheduled_at: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None
    """metadata.deletionTimestamp: when its grace period ends. None: not deleted."""
    deletion_grace_seconds: int = 0
    reason: str = ""
    """status.reason: Evicted, NodeLost, OutOfcpu ..."""
    message: str = ""
    end: ContainerEnd | None = None
    """None: the training container has not terminated."""
    blocked: Blocked | None = None
    injected: bool = False
    """It was created with the runtime as a volume."""
    init_end: ContainerEnd | None = None
    """How an init container failed. None: none did."""
    disruption: Disruption | None = None

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def deletion_requested_at(self) -> datetime.datetime | None:
        """None: not deleted."""
        grace = datetime.timedelta(seconds=self.deletion_grace_seconds)
        return self.deletion_timestamp - grace if self.deletion_timestamp is not None else None

    @property
    def ended(self) -> bool:
        """The training container has terminated, even if sidecars are still running."""
        return self.end is not None or self.phase in _OVER

    @property
    def first_end(self) -> ContainerEnd | None:
        """How the container ended that made the pod fail or succeed."""
        return self.end or self.init_end

    @property
    def over(self) -> bool:
        """No container is running: the pod holds no resources."""
        return self.phase in _OVER

    @property
    def succeeded(self) -> bool:
        return self.end.exit_code == 0 if self.end is not None else self.phase is PodPhase.SUCCEEDED

    @property
    def failed(self) -> bool:
        return self.ended and not self.succeeded

    @property
    def may_train(self) -> bool:
        """Its agent may be training: whether it is, the agents' plan says."""
        return self.ready or self.up

    @property
    def place(self) -> str:
        """For messages. Empty: it has no node."""
        return f"on node {self.node}" if self.node else ""

    @property
    def running(self) -> bool:
        return self.phase is PodPhase.RUNNING and self.end is None and self.deletion_timestamp is None


POD, SECRET = "Pod", "Secret"
"""Kinds in addition to those of `Kind`. The operator creates and deletes Secrets by name, and reads none."""


class Kind(str, enum.Enum):
    """Kinds of objects that a job owns besides its pods."""

    SERVICE = "Service"
    STATEFUL_SET = "StatefulSet"
    AUTOSCALER = "HorizontalPodAutoscaler"
    NETWORK_POLICY = "NetworkPolicy"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    WORKLOAD = "Workload"
    """Of Kueue: observed as `JobState.queue`."""
    POD_GROUP = "PodGroup.scheduling.k8s.io"
    VOLCANO_POD_GROUP = "PodGroup.scheduling.volcano.sh"
    COSCHEDULING_POD_GROUP = "PodGroup.scheduling.x-k8s.io"

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnedObject:
    kind: Kind
    name: str
    uid: str
    owner_uid: str
    terminating: bool
    created_at: datetime.datetime | None = None
    json: bytes
    """metadata and spec, serialized. As Python objects they take five times the memory, and each of thousands of jobs
    has three."""

    @property
    def body(self) -> Mapping[str, Any]:
        """Parsed on each access."""
        body: Mapping[str, Any] = orjson.loads(self.json)
        return body


class Connectivity(str, enum.Enum):
    """Whether the rendezvous is reachable."""

    CONNECTING = "connecting"
    """Not contacted yet."""
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    """Unreachable; retried automatically."""
    DENIED = "denied"
    """Responds, but rejects the operator's requests, or is no etcd that can be used."""
    UNTRUSTED = "untrusted"
    """Its certificate or the operator's is not accepted by the other side."""
    NO_CREDENTIALS = "no credentials"
    """The Secret with the credentials for it is missing or incomplete; read again automatically."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousView:
    """What the operator knows of a job's rendezvous; while it is unreachable, the last known state."""

    connectivity: Connectivity = Connectivity.CONNECTING
    run_id: str = ""
    """Run that this describes. Empty: the current one."""
    error: str = ""
    unreadable: str = ""
    """What is wrong with an invalid value of the run, which is ignored. Empty: all values are valid."""
    answered_at: datetime.datetime | None = None
    """When its etcd last responded; None: never. An idle connection is probed after 10 s during training, otherwise
    after a minute (see etcd/shared_watch.py)."""
    spec: SpecValue | None = None
    plan: PlanValue | None = None
    progress: ProgressValue | None = None
    """That the script reports."""
    progress_seen_at: datetime.datetime | None = dataclasses.field(default=None, compare=False)
    """When this operator first saw its step. None: not known."""
    counted: ProgressValue | None = None
    """Optimizer steps, if the script reports nothing."""
    transition: TransitionValue | None = None
    stragglers: StragglersValue | None = None
    unready: UnreadyValue | None = None
    locations: LocationsValue | None = None
    outcome: OutcomeValue | None = None
    failure: FailureValue | None = None
    """The first failure of the newest round with a failure."""
    hangs: tuple[HangValue, ...] = ()
    """What agents know of worker processes that take no step, by member."""
    replicas: Mapping[str, ReplicaValue] = dataclasses.field(default_factory=dict)
    """The replica to which a member belongs, by member. Not of those that belong to none."""

    @property
    def empty(self) -> bool:
        """No key of the run exists, as far as is known."""
        known = (self.spec, self.plan, self.progress, self.counted, self.transition, self.outcome, self.failure)
        return not any(known)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TierView:
    """What the operator knows of one etcd tier."""

    asked: bool = False
    """It has been asked since the operator started."""
    error: str = ""
    """Why it cannot be used, one clause. Empty: it answers."""
    runs: int = 0
    """Runs that use it, as far as the statuses of jobs say."""
    bytes: int = 0
    """What its database has in use."""
    leases: int = 0
    since: datetime.datetime | None = None
    """Since when it has taken no new run, as far as this operator has seen."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The API server's response to a dry-run create of a worker pod."""

    template_hash: str
    """Template hash of the pod."""
    image_volume: bool = False
    """The pod had the runtime as an image volume."""
    rejection: str = ""
    """The API server's message; empty: it would create the pod."""
    invalid: bool = False
    """The pod itself is invalid (400, 422); false for quota and admission policies."""
    at: datetime.datetime
    retry_seconds: float = 30.0
    """Seconds until the next attempt after a rejection: quota may be raised, a missing service account created."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """The API server rejected a create for a reason that may pass: quota, an admission policy, a name in use."""

    kinds: frozenset[str]
    """Kinds whose creation failed: Pod, Secret, Service, StatefulSet, HorizontalPodAutoscaler, NetworkPolicy,
    PodDisruptionBudget."""
    message: str
    retry_at: datetime.datetime
    since: datetime.datetime | None = None
    """When the first of these creates was rejected."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What the newest Event about an object says."""

    message: str = ""
    """Empty: there is none, or Events may not be read."""
    warning: bool = False
    at: datetime.datetime
    """When that Event happened last."""
    first_read_at: datetime.datetime
    read_at: datetime.datetime


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """Everything observed of one job at one moment."""

    pods: tuple[Pod, ...] = ()
    """The job's own pods: worker pods and etcd."""
    leftovers: tuple[Pod, ...] = ()
    """Pods of a deleted job that had the same name, and pods that only have the job's labels."""
    explanations: Mapping[tuple[str, str], Explanation] = dataclasses.field(default_factory=dict)
    """By kind and name: answers to requested reads of Events."""
    unconfirmed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """By index, names of worker pods whose creation was requested, with an unknown result."""
    objects: Mapping[tuple[Kind, str], OwnedObject] = dataclasses.field(default_factory=dict)
    foreign: tuple[OwnedObject, ...] = ()
    """Objects with the job's label that it does not own."""
    nodes: Mapping[str, Node] | None = None
    """None: no permission to read nodes. A pod's node that is missing here does not exist."""
    nodes_watched_since: datetime.datetime | None = LONG_AGO
    """Since when nodes have been watched without a gap. None: not watched at the moment."""
    heartbeats: Mapping[str, Heartbeat] = dataclasses.field(default_factory=dict)
    """By node: the last requested read."""
    node_counts: NodeCounts | None = None
    """Counts of `nodes`. None: not counted yet."""
    rendezvous: RendezvousView = RendezvousView()
    tiers: Mapping[str, TierView] = dataclasses.field(default_factory=dict)
    """By name."""
    admission: Admission | None = None
    rejection: Rejection | None = None
    image_volume_rejected: bool = False
    """The API server rejected a pod of this job with the runtime as an image volume, perhaps because of that volume."""
    namespace_terminating: bool = False
    """The job's namespace is terminating, and so is the job: nothing can be created there."""
    served: frozenset[Kind] = frozenset()
    """Kinds that not every cluster serves, and this one does."""
    queue: QueueView | None = None
    """None: the operator is set to leave queues to others."""
