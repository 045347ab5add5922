"""With which priority a job waits, as Kueue's own integrations choose it: by the WorkloadPriorityClass that the job
names, else by the PriorityClass of its worker pods, else by the cluster's default PriorityClass, else 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from elasticjob_operator.queue_state import Workload
from elasticjob_operator.queueing.bodies import GROUP
from elasticjob_operator.queueing.job import Change, QueuedJob

_GROUP_OF_PODS = "scheduling.k8s.io"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Priority:
    value: int = 0
    name: str = ""
    """Of its class. Empty: it has none."""
    of_pods: bool = False
    """The class is a PriorityClass, not a WorkloadPriorityClass."""

    @property
    def fields(self) -> dict[str, Any]:
        """Of a Workload's spec. Both change together: Kueue reads only the value."""
        if not self.name:
            return {"priority": self.value}
        group, kind = (_GROUP_OF_PODS, "PriorityClass") if self.of_pods else (GROUP, "WorkloadPriorityClass")
        return {"priorityClassRef": {"group": group, "kind": kind, "name": self.name}, "priority": self.value}


def priority_of(queued: QueuedJob) -> Priority | None:
    """None: there is no WorkloadPriorityClass of the name that the job gives."""
    view, named = queued.view, queued.priority_class
    if named:
        return Priority(value=view.priorities[named], name=named) if named in view.priorities else None
    spec = queued.job.spec
    of_pods = spec.scheduling.priority_class_name or (spec.workers.template.get("spec") or {}).get("priorityClassName")
    default = next((name for name, known in view.pod_priorities.items() if known.is_default), "")
    name = str(of_pods or default)
    if name not in view.pod_priorities:
        return Priority()
    return Priority(value=view.pod_priorities[name].value, name=name, of_pods=True)


def may_change(base: Workload, wanted: Priority) -> bool:
    """Whether Kueue accepts that priority for a Workload that exists. While it has quota, it may only go from one
    WorkloadPriorityClass to another."""
    if not base.is_reserved and base.priority != wanted.value:
        return True
    if (wanted.name, wanted.of_pods) == (base.priority_class, base.has_pod_priority):
        return False
    if not base.is_reserved:
        return True
    return bool(wanted.name and base.priority_class) and not (wanted.of_pods or base.has_pod_priority)


def below(base: Workload) -> int:
    """Of surplus without a class of its own."""
    return (base.priority or 0) - 1


def follow_base(base: Workload, surplus: Iterable[Workload]) -> list[Change]:
    """Surplus stays below the base when the job gets another priority."""
    return [
        Change(
            reason="the base has another priority",
            workload=workload,
            patch={"metadata": {"resourceVersion": workload.version}, "spec": {"priority": below(base)}},
        )
        for workload in surplus
        if not workload.priority_class and workload.priority != below(base)
    ]
