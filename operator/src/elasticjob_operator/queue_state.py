"""What the operator observes of Kueue (kueue.x-k8s.io/v1beta2): the Workloads of a job, flavors and priorities.

Plain data, without I/O. The fields of a Workload: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

import orjson


class WorkloadPart(str, enum.Enum):
    """Which worker pods of a job a Workload is for."""

    BASE = "base"
    """Those without which the job does not train: minReplicas, and the job's own etcd."""
    SURPLUS = "surplus"
    """Those that the job can give back without stopping."""

    __str__ = str.__str__


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """What an admission adds to pods."""

    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    gates: tuple[str, ...] = ()
    """Scheduling gates."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Flavor:
    """A ResourceFlavor: a kind of nodes."""

    node_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PodPriority:
    """A PriorityClass."""

    value: int
    is_default: bool = False
    """Of pods that name none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What was admitted of a podSet."""

    flavors: tuple[str, ...] = ()
    """Without duplicates."""
    has_topology: bool = False
    """Kueue has chosen domains of a topology, and removes the gate of each pod once it has one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawals:
    """Surplus that was given back because its worker pods were not ready."""

    count: int = 0
    """In a row."""
    last: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One Workload of a job."""

    name: str
    uid: str
    owner_uid: str
    version: str
    """metadata.resourceVersion"""
    job_uid: str = ""
    """By its label: of the job that it was made for."""
    generation: int = 0
    part: WorkloadPart = WorkloadPart.BASE
    template_hash: str = ""
    """Of the worker pods that it was made for."""
    terminating: bool = False
    queue: str = ""
    priority_class: str = ""
    has_pod_priority: bool = False
    """`priority_class` is a PriorityClass of pods, not a WorkloadPriorityClass."""
    priority: int | None = None
    active: bool = True
    pod_sets_json: bytes = b"[]"
    """spec.podSets, serialized: with the pod template it takes much more memory as Python objects."""
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Pods by podSet."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    assignments: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    """By podSet. Empty: no quota is reserved."""
    updates: Mapping[str, tuple[Placement, ...]] = dataclasses.field(default_factory=dict)
    """By podSet: what admission checks add to its pods."""
    withdrawals: Withdrawals = dataclasses.field(default_factory=Withdrawals)
    """Of the base only."""
    unanswered: tuple[str, ...] = ()
    """Its admission checks that are not Ready, each with its state and message."""

    @property
    def pod_sets(self) -> list[dict[str, Any]]:
        """Parsed on each access."""
        pod_sets: list[dict[str, Any]] = orjson.loads(self.pod_sets_json)
        return pod_sets

    def condition(self, type_: str) -> Mapping[str, Any]:
        """Empty: it has none of that type."""
        return next((condition for condition in self.conditions if condition.get("type") == type_), {})

    def is_true(self, type_: str) -> bool:
        return bool(self.condition(type_).get("status") == "True")

    @property
    def is_reserved(self) -> bool:
        """It holds quota, or Kueue still counts it as admitted."""
        return bool(self.assignments) or self.is_true("QuotaReserved") or self.is_true("Admitted")

    @property
    def must_stop(self) -> bool:
        """Kueue wants its quota back, or someone has deactivated it."""
        return self.is_reserved and (self.is_true("Evicted") or not self.active)

    @property
    def is_admitted(self) -> bool:
        """Its pods may run. Evicted comes first: a rejected check evicts what is only reserved."""
        return self.is_true("Admitted") and not self.must_stop and not self.terminating

    @property
    def is_finished(self) -> bool:
        return self.is_true("Finished")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """What is known of Kueue, for one job."""

    problem: str = ""
    """Why queues cannot be used: Kueue is not installed, or may not be watched. Empty: they can."""
    workloads: tuple[Workload, ...] = ()
    """The job's own."""
    foreign: tuple[Workload, ...] = ()
    """With its labels, but of a deleted job of that name, or without an owner: MultiKueue copies such from another
    cluster."""
    base_missing_since: datetime.datetime | None = None
    """Since when Kueue is served and the job has no base, as far as the operator has seen."""
    taken: frozenset[str] = frozenset()
    """Names for surplus of the job that Workloads have, also of other jobs: the base of a job z-surplus-0 has the name
    of the first surplus of a job z."""
    flavors: Mapping[str, Flavor] = dataclasses.field(default_factory=dict)
    priorities: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Values of WorkloadPriorityClasses."""
    pod_priorities: Mapping[str, PodPriority] = dataclasses.field(default_factory=dict)

    def foreign_of(self, name: str) -> Workload | None:
        return next((workload for workload in self.foreign if workload.name == name), None)

    def own_of(self, name: str) -> Workload | None:
        return next((workload for workload in self.workloads if workload.name == name), None)
