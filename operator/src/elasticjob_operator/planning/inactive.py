"""The plan of a job that does not run because it is suspended or finished: delete its pods, or keep them for their
logs, then delete what only pods need."""

from __future__ import annotations

from elasticjob_api import ConditionType

from elasticjob_operator import names
from elasticjob_operator.planning.actions import (
    Action,
    ClearRun,
    DeleteCertificates,
    DeleteJob,
    DeleteObject,
    Plan,
    earliest,
)
from elasticjob_operator.planning.context import Assessment, Context, existing_etcd
from elasticjob_operator.planning.events import events_of_status
from elasticjob_operator.planning.pods import delete_pod, dry_run_create, lost_pods, read_heartbeats
from elasticjob_operator.planning.status import finished_status, suspended_status
from elasticjob_operator.policies import lifecycle
from elasticjob_operator.policies.cleanup import clean_up
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.resources.etcd import secret_of
from elasticjob_operator.state import Connectivity


def plan_for_suspended(assessment: Assessment) -> Plan:
    """Pods are deleted first, then everything else."""
    pods = (*assessment.workers, *assessment.stale)
    acceptance, now = assessment.acceptance, assessment.now
    why = "the job is suspended" if assessment.grant is None else "the job waits in its queue"
    actions: list[Action] = []
    if acceptance.dry_run:
        actions.append(dry_run_create(assessment, "retrying after a rejection"))
    for pod, status in pods:
        if pod.run == assessment.rendezvous.run and not assessment.is_counted(pod, status):
            continue  # this plan counts its failure; the next one deletes the pod
        if not pod.terminating and status.state is not PodState.LOST:
            actions.append(delete_pod(pod, why))
    actions += [*lost_pods(assessment), *read_heartbeats(assessment)]
    follows = bool(pods) or _keys_left(assessment) or _keys_unknown(assessment)
    if not pods:
        actions += _delete_objects(assessment, why)
    written = suspended_status(assessment)
    resumed = not pods and not assessment.job.is_suspended  # while it ended: it begins its next run now
    continues_at_once = assessment.budget.new_failure or acceptance.dry_run or assessment.nodes_to_verify or resumed
    return Plan(
        status=written,
        actions=tuple(actions),
        events=events_of_status(assessment.job.status, written),
        target=assessment.target if follows else None,
        requeue_at=earliest([*assessment.timers, acceptance.requeue_at, now if continues_at_once else None]),
    )


def plan_for_deleted(context: Context) -> Plan:
    """The job is deleted in the foreground: the garbage collector deletes its objects first."""
    continues_at_once = [context.now] if context.nodes_to_verify else []
    return Plan(
        status=context.job.status,
        actions=(*lost_pods(context), *read_heartbeats(context)),
        target=context.target,
        requeue_at=earliest([*context.timers, *continues_at_once]),
    )


def plan_for_finished(context: Context) -> Plan:
    """A finished job stays finished: only what is left of it matters."""
    job, now = context.job, context.now
    expiry = lifecycle.expiry(job, now)
    if expiry.delete:
        reason = f"finished {job.spec.lifecycle.ttl_seconds_after_finished} s ago"
        return Plan(
            status=job.status, actions=(DeleteJob(name=job.name, uid=job.uid, reason=reason),), target=context.target
        )
    cleanup = clean_up(
        job.spec.lifecycle.clean_pods,
        [(pod, status.state) for pod, status in (*context.workers, *context.stale)],
        job.status.completion_time or now,
        now,
        job_failed=job.status.is_true(ConditionType.FAILED),
    )
    actions: list[Action] = [delete_pod(pod, "the job has finished") for pod in cleanup.delete]
    actions += [*lost_pods(context), *read_heartbeats(context)]
    if cleanup.all_ended:
        actions += _delete_objects(context, "the job has finished")
    timers = [cleanup.requeue_at, expiry.requeue_at, *context.timers, now if context.nodes_to_verify else None]
    follows = not cleanup.all_ended or _keys_left(context) or _keys_unknown(context)
    return Plan(
        status=finished_status(context),
        actions=tuple(actions),
        target=context.target if follows else None,
        requeue_at=earliest(timers),
    )


def _keys_left(context: Context) -> bool:
    """The run has keys in an etcd that is not the job's own."""
    view = context.view
    return not context.rendezvous.managed and view.connectivity is Connectivity.REACHABLE and not view.empty


def _keys_unknown(context: Context) -> bool:
    """The run may have keys in an etcd that is not the job's own, and that was not contacted yet: the operator has
    started anew. Its objects are still there, so nothing was cleaned up before."""
    connecting = context.target is not None and context.view.connectivity is Connectivity.CONNECTING
    objects = any(not item.terminating for item in context.state.objects.values())
    return not context.rendezvous.managed and connecting and objects


def _delete_objects(context: Context, reason: str) -> list[Action]:
    """Deletes what a job without pods no longer needs. The objects go last, or together with the keys: as long as they
    are there, an operator that starts anew looks for keys."""
    if _keys_unknown(context):
        return []
    etcd = existing_etcd(context.job, context.state)
    secret = secret_of(etcd.body) if etcd is not None else ""
    if not secret.startswith(names.certificates_prefix(context.job.name, context.job.uid)):
        secret = ""  # a user changed the StatefulSet: that Secret is not the job's
    objects: list[Action] = [DeleteCertificates(name=secret, reason=reason)] if secret else []
    objects += [
        DeleteObject(kind=item.kind, name=item.name, uid=item.uid, reason=reason)
        for item in context.state.objects.values()
        if not item.terminating
    ]
    if not _keys_left(context):
        return objects
    access = context.rendezvous.access
    run_secret: list[Action] = [DeleteCertificates(name=access.mounted, reason=reason)] if access.user else []
    return [*run_secret, *objects, ClearRun(reason=reason)]
