"""MultiKueue: a job of one cluster that runs in another one.

In the manager cluster, the operator creates the base Workload of a job with `spec.managedBy:
kueue.x-k8s.io/multikueue`, and nothing else. MultiKueue copies it to the worker clusters, and once it is admitted in
one of them, it copies the job, too, with a label that names the Workload. The operator there makes that Workload its
own instead of creating one.

MultiKueue deletes a copy whose spec differs from the original, so nothing in it is changed.
"""

from __future__ import annotations

from elasticjob_operator import names
from elasticjob_operator.queue_state import Workload
from elasticjob_operator.queueing import bodies
from elasticjob_operator.queueing.base import asks_for_less, create_base, is_outdated, update_pending
from elasticjob_operator.queueing.job import Change, QueuedJob, delete, release, report_ready
from elasticjob_operator.resources.metadata import owner_reference


def in_manager_cluster(queued: QueuedJob) -> list[Change]:
    """What is written to the base Workload of a job that another cluster runs, and that is neither suspended nor
    finished. Its status is that of the copy."""
    base = queued.base
    if base is None:
        known = not queued.priority_class or queued.priority_class in queued.view.priorities
        return [create_base(queued)] if known else []
    if base.terminating:
        return []
    if is_outdated(queued, base):
        return [delete(base, "the job was changed")]
    if base.must_stop:
        return [release(base, queued.now, "the job has no pods here")]
    if not base.is_admitted:
        change = update_pending(queued, base)
        return [change] if change is not None else []
    if base.is_true("PodsReady") or (queued.job.status.ready_replicas or 0) < queued.minimum:
        return []
    return [report_ready(base, queued.now)]


def adopt(queued: QueuedJob, name: str) -> tuple[Change | None, str]:
    """(the write by which the Workload of that name becomes the base of the job, or why it cannot be)"""
    found = queued.view.foreign_of(name)
    if found is None or found.owner_uid or not found.pod_sets:
        return None, f"there is no Workload {name} that MultiKueue has copied for this job"
    if problem := _why_incompatible(queued, found) or _too_little(queued, found):
        return None, problem
    labels = {bodies.JOB_UID_LABEL: queued.job.uid, names.LABEL_JOB_UID: queued.job.uid}
    metadata = {
        "resourceVersion": found.version,
        "labels": labels,
        "ownerReferences": [owner_reference(queued.job)],
    }
    return Change(reason="the job names it", workload=found, patch={"metadata": metadata}), ""


def why_incompatible(queued: QueuedJob, base: Workload) -> str:
    """Why the job cannot run by its prebuilt Workload. Empty: it can, or has none."""
    if not bodies.prebuilt_of(queued.job):
        return ""
    # A job that runs is left alone, as with a base of its own.
    return _why_incompatible(queued, base) or ("" if queued.pods else _too_little(queued, base))


def _too_little(queued: QueuedJob, base: Workload) -> str:
    less = asks_for_less(queued, base)
    return f"Workload {base.name} asks for less than the worker pods: {less}" if less else ""


def _why_incompatible(queued: QueuedJob, base: Workload) -> str:
    if base.queue != queued.queue:
        return f"Workload {base.name} is for LocalQueue {base.queue}"
    if base.is_finished:
        return f"Workload {base.name} counts as finished, and has no quota"
    if is_outdated(queued, base):
        return f"Workload {base.name} was made for another pod template, or for fewer worker pods than minReplicas"
    return ""
