"""A job in a queue, as the decisions on it see it, and what they write."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api import ElasticJob, Reason

from elasticjob_operator import names
from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.queue_state import QueueView, Workload, WorkloadPart
from elasticjob_operator.queueing import bodies, patches, remedies, withdrawal
from elasticjob_operator.queueing.bodies import WORKERS
from elasticjob_operator.state import Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A write to one Workload: exactly one of `create`, `patch` and `delete` is set."""

    reason: str
    workload: Workload | None = None
    """None: it is created."""
    create: Mapping[str, Any] | None = None
    patch: Mapping[str, Any] | None = None
    of_status: bool = False
    """The patch is of the subresource status."""
    delete: bool = False

    @property
    def gives_one(self) -> bool:
        """After it, the job has one more Workload."""
        return self.create is not None or "ownerReferences" in (self.patch or {}).get("metadata", {})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """What the decisions on a job in a queue depend on."""

    job: ElasticJob
    """With the number of replicas that it asks for."""
    view: QueueView
    pods: Sequence[Pod]
    """Worker pods of all runs that hold resources: those that are neither over nor lost with their node."""
    template_hash: str
    """Of the current run."""
    etcd: Mapping[str, Any] | None
    """The StatefulSet of the job's own etcd as it would be created; None: it has none."""
    accepted: bool
    """The API server accepts its worker pods: otherwise nothing is created."""
    now: datetime.datetime
    etcd_runs: bool = False
    """The job's own etcd, which its base admits, holds resources."""

    @property
    def uses_base(self) -> bool:
        """Something runs on the quota of its base, which must not be given back."""
        return bool(self.pods) or self.etcd_runs

    @property
    def minimum(self) -> int:
        return self.job.min_replicas

    @property
    def queue(self) -> str:
        return bodies.queue_of(self.job)

    @property
    def priority_class(self) -> str:
        return self.job.metadata.labels.get(bodies.PRIORITY_LABEL, "")

    @property
    def base(self) -> Workload | None:
        return base_of(self.job, self.view)

    @property
    def surplus(self) -> list[Workload]:
        """In the order of their names."""
        found = [
            other for other in self.view.workloads if other.part is WorkloadPart.SURPLUS and other is not self.base
        ]
        return sorted(found, key=lambda workload: (len(workload.name), workload.name))

    @property
    def strays(self) -> list[Workload]:
        """Those that claim to be the base, and are not: someone else made them, or the job names another one now."""
        return [
            workload
            for workload in self.view.workloads
            if workload.part is WorkloadPart.BASE and workload is not self.base
        ]

    def pods_of(self, workload: Workload) -> list[Pod]:
        """A pod that was created while nothing was known of the queue counts for the base."""
        base = names.base_workload(self.job.name)
        return [pod for pod in self.pods if (pod.workload or base) == workload.name]

    @property
    def misnamed(self) -> list[Pod]:
        """Pods with the name of a Workload that the job does not have: someone has changed their label, or deleted the
        Workload. Each may be on the quota of any other."""
        own = {workload.name for workload in self.surplus}
        known = {"", names.base_workload(self.job.name), bodies.prebuilt_of(self.job), *own}
        return [pod for pod in self.pods if pod.workload not in known]

    def may_use(self, workload: Workload) -> bool:
        """Whether there may be pods on its quota, which must not be given back then."""
        return bool(self.pods_of(workload) or self.misnamed)

    def is_ready(self, workload: Workload) -> bool:
        """All its worker pods are."""
        ready = sum(pod.ready and not pod.terminating for pod in self.pods_of(workload))
        return ready >= workload.counts.get(WORKERS, 0)

    def is_overdue(self, surplus: Workload) -> bool:
        """Its worker pods are not ready, long after it was admitted."""
        due = withdrawal.ready_by(surplus)
        return due is not None and due <= self.now and not self.is_ready(surplus)

    def waiting(self, reason: Reason, workload: Workload | None = None, detail: str = "") -> ConditionUpdate:
        """The condition Queued of a job that must not run."""
        name = workload.name if workload is not None else names.base_workload(self.job.name)
        namespace = self.job.namespace
        return update(
            True,
            reason,
            queue=self.queue,
            workload=name,
            namespace=namespace,
            detail=sentence(detail),
            pods="1 worker pod" if self.minimum == 1 else f"{self.minimum} worker pods",
            remedy=remedies.remedy(reason, detail).format(queue=self.queue, workload=name, namespace=namespace),
        )


def base_of(job: ElasticJob, view: QueueView) -> Workload | None:
    """By its name: anyone who may create Workloads could label another one as base."""
    return view.own_of(bodies.prebuilt_of(job) or names.base_workload(job.name))


def base_missing_since(
    job: ElasticJob, view: QueueView | None, before: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime | None:
    """Since when a job that should have a base has none. `before`: the last answer."""
    if view is None or view.problem or not bodies.queue_of(job) or job.is_suspended or job.status.is_finished:
        return None
    return None if base_of(job, view) is not None else before or now


def delete(workload: Workload, reason: str = "the job does not need it") -> Change:
    return Change(reason=reason, workload=workload, delete=True)


def release(workload: Workload, now: datetime.datetime, reason: str = "its last pod is gone") -> Change:
    return Change(reason=reason, workload=workload, patch=patches.release(workload, now), of_status=True)


def report_ready(workload: Workload, now: datetime.datetime) -> Change:
    patch = patches.pods_ready(workload, now)
    return Change(reason="its worker pods are ready", workload=workload, patch=patch, of_status=True)


def sentence(text: str) -> str:
    """To follow another one: with a space before it and a full stop. Empty for an empty text."""
    return f" {text.strip().rstrip('.')}." if text.strip() else ""
