"""Workloads that someone took from their job, by removing its owner reference. Kueue marks such a Workload as finished,
and gives its quota away.

The job goes on by what the Workload says, and becomes its owner again.
"""

from __future__ import annotations

import dataclasses

from elasticjob_api import ElasticJob

from elasticjob_operator import names
from elasticjob_operator.queue_state import QueueView, Workload
from elasticjob_operator.queueing import bodies
from elasticjob_operator.queueing.job import Change
from elasticjob_operator.resources.metadata import owner_reference


def with_lost(job: ElasticJob, view: QueueView) -> tuple[QueueView, list[Workload]]:
    """(the view as if the job were their owner, those that it is not the owner of)"""
    lost = [workload for workload in view.foreign if _was_owned(job, workload)]
    owned = (dataclasses.replace(workload, owner_uid=job.uid) for workload in lost)
    foreign = tuple(workload for workload in view.foreign if workload not in lost)
    return dataclasses.replace(view, workloads=(*view.workloads, *owned), foreign=foreign), lost


def own_again(job: ElasticJob, workload: Workload) -> Change:
    metadata = {"resourceVersion": workload.version, "ownerReferences": [owner_reference(job)]}
    return Change(reason="its owner was removed", workload=workload, patch={"metadata": metadata})


def _was_owned(job: ElasticJob, workload: Workload) -> bool:
    """A copy that MultiKueue has just made has the label of the original's job, which has another UID."""
    if workload.owner_uid or workload.terminating or workload.job_uid != job.uid:
        return False
    base = bodies.prebuilt_of(job) or names.base_workload(job.name)
    return workload.name == base or workload.name.startswith(names.surplus_workload(job.name, 0)[:-1])
