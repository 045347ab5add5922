"""How a queue takes part in the plan: what Kueue has admitted caps what is planned, and a job that must not run is
planned like a suspended one."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from elasticjob_api import ElasticJob

from elasticjob_operator.planning.actions import Action, CreateObject, DeleteObject, PatchObject
from elasticjob_operator.planning.context import Context, classify, existing_etcd
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.queue_state import QueueView, Workload
from elasticjob_operator.queueing.bodies import MULTIKUEUE, queue_of
from elasticjob_operator.queueing.grant import Grant, grant, releases
from elasticjob_operator.queueing.job import Change, QueuedJob
from elasticjob_operator.queueing.prebuilt import in_manager_cluster
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Kind, Pod


def granted(context: Context, *, accepted: bool) -> Grant | None:
    """What the queue of the job allows. None: it is in no queue, or suspended by its owner."""
    view = context.state.queue
    if view is None or not queue_of(context.job) or context.job.is_suspended or context.job.status.is_finished:
        return None
    return grant(_queued(context, view, holding_pods(context), accepted=accepted, runs=etcd_runs(context)))


def _queued(context: Context, view: QueueView, pods: Sequence[Pod], *, accepted: bool, runs: bool) -> QueuedJob:
    return QueuedJob(
        job=context.job,
        view=view,
        pods=pods,
        template_hash=context.template.label,
        etcd=_etcd(context),
        accepted=accepted,
        now=context.now,
        etcd_runs=runs,
    )


def for_another_cluster(job: ElasticJob, state: JobState, settings: Settings, now: datetime.datetime) -> list[Action]:
    """The Workload that MultiKueue copies to the cluster in which the job runs."""
    view = state.queue
    if job.spec.managed_by != MULTIKUEUE or view is None or view.problem or job.is_deleting:
        return []
    if job.is_suspended or job.status.is_finished or not queue_of(job):
        return [_action(change) for change in releases(job, view, (), now)]
    context = classify(job, state, settings, now)
    return queue_actions(context, in_manager_cluster(_queued(context, view, (), accepted=True, runs=False)))


def within(job: ElasticJob, allowed: Grant) -> ElasticJob:
    """The job as far as its queue lets it run."""
    if not allowed.held:
        return job.with_replicas(min(job.replicas, allowed.replicas))
    return job.model_copy(update={"spec": job.spec.model_copy(update={"suspend": True})})


def holding_pods(context: Context) -> list[Pod]:
    """Worker pods, of all runs, that hold quota."""
    return [
        pod for pod, status in (*context.workers, *context.stale) if not pod.over and status.state is not PodState.LOST
    ]


def etcd_runs(context: Context) -> bool:
    """Whether pods of the job's own etcd hold quota, or may be created by its StatefulSet."""
    running = any(not pod.over and status.state is not PodState.LOST for pod, status in context.etcd)
    return running or existing_etcd(context.job, context.state) is not None


def releasing(context: Context) -> list[Action]:
    """Workloads of a job that needs none now: it is suspended, has finished, or has left its queue."""
    view = context.state.queue
    if view is None or view.problem or not view.workloads:
        return []
    changes = releases(context.job, view, holding_pods(context), context.now, etcd_runs=etcd_runs(context))
    return queue_actions(context, changes)


def queue_actions(context: Context, changes: Iterable[Change]) -> list[Action]:
    """Without creates that the API server has just rejected, nor writes by which a Workload becomes the job's own."""
    rejection = context.state.rejection
    delayed = rejection is not None and Kind.WORKLOAD in rejection.kinds and context.now < rejection.retry_at
    return [_action(change) for change in changes if not delayed or not change.gives_one]


def retry_at(context: Context) -> datetime.datetime | None:
    """When the create of a Workload is tried again."""
    rejection = context.state.rejection
    if rejection is None or Kind.WORKLOAD not in rejection.kinds or context.now >= rejection.retry_at:
        return None
    return rejection.retry_at


def _action(change: Change) -> Action:
    if change.create is not None:
        return CreateObject(kind=Kind.WORKLOAD, body=change.create, reason=change.reason)
    workload = change.workload
    assert isinstance(workload, Workload)
    if change.patch is None:
        return DeleteObject(kind=Kind.WORKLOAD, name=workload.name, uid=workload.uid, reason=change.reason)
    return PatchObject(
        kind=Kind.WORKLOAD,
        name=workload.name,
        uid=workload.uid,
        patch=change.patch,
        subresource="status" if change.of_status else "",
        reason=change.reason,
    )


def _etcd(context: Context) -> dict[str, Any] | None:
    if not context.rendezvous.managed:
        return None
    return etcd_stateful_set(context.job, context.settings.etcd_image, context.settings.etcd_pod)
