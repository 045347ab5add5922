"""The plan of a job: everything the operator decides, top down.

managed by another controller?              nothing; for MultiKueue, its base Workload
being deleted?                              delete what was lost with its node: the garbage collector waits for it
finished?                                   what is left to clean up
in a queue?                                 what it has admitted caps everything below, or the job is as if suspended
finished now?                               write so in status; the next plan cleans up
suspended?                                  delete everything
otherwise                                   create what is missing, delete what is surplus or failed, publish the
                                            membership hint for the agents
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api import (
    ConditionType,
    ElasticJob,
    FailingNode,
    InvalidJobError,
    Reason,
    Status,
    message,
    set_condition,
    summary_of,
)

from elasticjob_operator.gang import problem_of
from elasticjob_operator.planning.actions import Action, JobEvent, Plan, earliest
from elasticjob_operator.planning.context import Assessment, Context, assess, classify, of_earlier_attempts
from elasticjob_operator.planning.events import events_of_status
from elasticjob_operator.planning.inactive import plan_for_deleted, plan_for_finished, plan_for_suspended
from elasticjob_operator.planning.pods import (
    creations,
    delete_pod,
    dry_run_create,
    publication,
    read_events,
    read_heartbeats,
    removals,
    replacements,
)
from elasticjob_operator.planning.queue import for_another_cluster, granted, queue_actions, releasing, retry_at, within
from elasticjob_operator.planning.status import (
    ended_status,
    stall_of,
    status_of,
    status_without_namespace,
    with_suspects,
)
from elasticjob_operator.policies import admission, lifecycle, stragglers
from elasticjob_operator.policies.completion import not_ended, outcome, outcome_of_suspended
from elasticjob_operator.policies.condition_updates import ConditionUpdate, cause
from elasticjob_operator.policies.etcd_tiers import look_again_at
from elasticjob_operator.policies.history import with_history
from elasticjob_operator.policies.node_avoidance import failing_nodes
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.rendezvous import SILENT_SECONDS, is_superseded, silent_since, with_world_size
from elasticjob_operator.policies.restart_budget import count_restarts
from elasticjob_operator.policies.running import Training, training, worker_failed
from elasticjob_operator.policies.waits import first_wait
from elasticjob_operator.resources.injection import InjectionWay, check_injectable
from elasticjob_operator.resources.pods import check_template
from elasticjob_operator.resources.template import InvalidTemplateError
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Rejection, RendezvousView


def plan(job: ElasticJob, state: JobState, settings: Settings, now: datetime.datetime) -> Plan:
    """What to do now, the status to write, and when to plan again."""
    if job.is_managed_by_another:
        return Plan(status=job.status, actions=tuple(for_another_cluster(job, state, settings, now)))
    context = classify(job, state, settings, now)
    if job.is_deleting:
        return plan_for_deleted(context)
    if state.namespace_terminating:
        return Plan(status=status_without_namespace(context), target=context.target)
    if job.status.is_finished:
        return _with_actions(plan_for_finished(context), releasing(context))
    context = dataclasses.replace(context, state=dataclasses.replace(state, rendezvous=_view_of_run(context)))
    acceptance = _acceptance(context)
    if acceptance.status is None and not context.workers:
        return Plan(status=job.status, actions=(dry_run_create(context, "the template is new"),), requeue_at=now)
    grant = granted(context, accepted=bool(acceptance.status))
    if grant is not None:
        job = within(job, grant)
        context = classify(job, context.state, settings, now, grant)
    queue = queue_actions(context, grant.changes) if grant is not None else releasing(context)
    told: list[JobEvent] = []
    if lifecycle.is_new_run(context.job, context.rendezvous.run):
        if context.certificates_lost:
            text = message(Reason.CERTIFICATES_DELETED, secret=context.secret)
            told.append(JobEvent(reason=Reason.CERTIFICATES_DELETED, message=text, warning=True))
        status = lifecycle.forget_last_run(job.status)
        context = dataclasses.replace(context, job=context.job.model_copy(update={"status": status}))
    failed = [(pod, status.failure) for pod, status in context.not_live if status.failure is not None]
    budget = count_restarts(context.job, context.view, failed, now, of_earlier_attempts(context))
    assessment = assess(context, acceptance, budget)
    found = _plan_for_suspended(assessment) if lifecycle.is_held(job) else _plan_for_active(assessment)
    status = with_history(assessment.job, job.status, found.status, assessment.view, now)
    found = _with_actions(found, queue, earliest([retry_at(context), grant.requeue_at if grant is not None else None]))
    return dataclasses.replace(found, status=status, events=(*told, *found.events))


def _with_actions(found: Plan, actions: Sequence[Action], requeue_at: datetime.datetime | None = None) -> Plan:
    return dataclasses.replace(
        found, actions=(*found.actions, *actions), requeue_at=earliest([found.requeue_at, requeue_at])
    )


def plan_for_invalid_spec(body: Mapping[str, Any], error: InvalidJobError, now: datetime.datetime) -> Plan:
    """`body`: the object from the API server. A newer operator may have created what this one cannot read, so nothing
    is touched."""
    before = Status.model_validate(body.get("status") or {})
    generation = body.get("metadata", {}).get("generation")
    conditions = set_condition(
        before.conditions,
        type=ConditionType.ACCEPTED,
        status=False,
        reason=Reason.INVALID_SPEC,
        message=message(Reason.INVALID_SPEC, error=error),
        generation=generation,
        now=now,
    )
    status = before.model_copy(
        update={"observed_generation": generation, "conditions": conditions, "summary": summary_of(conditions)}
    )
    return Plan(status=status, events=events_of_status(before, status))


def _view_of_run(context: Context) -> RendezvousView:
    """What is known of the current run's rendezvous."""
    view = context.state.rendezvous
    if view.run_id not in ("", context.rendezvous.run_id):
        return RendezvousView()  # of the last run
    return dataclasses.replace(view, plan=with_world_size(context.job, view.plan))


def _acceptance(context: Context) -> admission.Acceptance:
    if not context.rendezvous.allowed:
        return admission.not_accepted(cause(Reason.ENDPOINT_NOT_ALLOWED, endpoint=context.rendezvous.endpoint))
    if not context.rendezvous.access.allowed:
        secret = context.job.spec.rendezvous.secret_name
        return admission.not_accepted(cause(Reason.SECRET_NOT_ALLOWED, secret=secret))
    if (problem := problem_of(context.job, context.state.served)) is not None and not context.workers:
        return admission.not_accepted(cause(Reason.GANG_UNAVAILABLE, problem=problem))
    injection = context.injection
    if injection.problem is not None:
        return admission.not_accepted(injection.problem)
    try:
        check_template(context.job)
        if injection.way is not InjectionWay.NONE:
            check_injectable(context.job)
    except InvalidTemplateError as error:
        return admission.not_accepted(cause(Reason.INVALID_POD_TEMPLATE, error=error))
    workers = [pod for pod, _ in context.workers]
    return admission.acceptance(
        context.job,
        context.template.label,
        workers,
        context.state.admission,
        context.now,
        image_volume=injection.way is InjectionWay.IMAGE_VOLUME,
    )


def _plan_for_suspended(assessment: Assessment) -> Plan:
    end = outcome_of_suspended(assessment.job, assessment.view, assessment.budget)
    return plan_for_suspended(assessment) if end.status is None else _plan_for_end(assessment, end)


def _plan_for_active(assessment: Assessment) -> Plan:
    job, now = assessment.job, assessment.now
    slow = stragglers.slow_ranks(assessment.view, assessment.staying)
    of_job = (job, assessment.view, slow, assessment.staying, now)
    slow_node = stragglers.node_to_avoid(*of_job)
    failing = _failing_nodes(assessment, slow_node)
    created, rejection = creations(assessment, failing)
    trains = _training(assessment, rejection)
    end = _outcome(assessment, trains)
    if end.status is not None:
        return _plan_for_end(assessment, end)
    replaced, replaced_later = replacements(assessment)
    actions = [*created, *removals(assessment), *replaced, *read_heartbeats(assessment), *read_events(assessment)]
    if (replaced_now := stragglers.pod_to_replace(*of_job)) is not None:
        actions.append(delete_pod(*replaced_now))
    if assessment.acceptance.dry_run:
        actions.append(dry_run_create(assessment, "retrying after a rejection"))
    target = assessment.target if assessment.may_have_pods else None
    if target is not None:
        actions += publication(assessment)
    found = stragglers.found(job, slow if trains.is_running else [])
    status = with_suspects(status_of(assessment, trains), failing, found, assessment)
    stall = stall_of(assessment, trains)
    timers = [
        *replaced_later,
        *_timers(assessment, rejection),
        end.requeue_at,
        stragglers.replace_again_at(job, slow, now),
        now if slow_node is not None else None,
    ]
    return Plan(
        status=status,
        actions=tuple(actions),
        events=events_of_status(job.status, status, _uncounted_failure(assessment)),
        target=target,
        requeue_at=earliest(timers),
        stalls_at=stall.requeue_at if stall is not None else None,
    )


def _failing_nodes(assessment: Assessment, slow_node: FailingNode | None) -> Sequence[FailingNode]:
    new, nodes = assessment.budget.new_failure, assessment.state.nodes
    failing = failing_nodes(assessment.job, assessment.workers, nodes, new.worker if new else "", assessment.now)
    return stragglers.with_node(failing, slow_node)


def _timers(assessment: Assessment, rejection: Rejection | None) -> list[datetime.datetime | None]:
    """When to plan again, whatever trains."""
    now = assessment.now
    return [
        *assessment.timers,
        *(due for _, due in assessment.questions),
        *_silence_timers(assessment),
        assessment.acceptance.requeue_at,
        assessment.budget.requeue_at,
        assessment.size.scale_up_at,
        rejection.retry_at if rejection and now < rejection.retry_at else None,
        look_again_at(assessment.rendezvous.wait, now),
        now if _continues_at_once(assessment) else None,
    ]


def _training(assessment: Assessment, rejection: Rejection | None) -> Training:
    wait = first_wait(
        assessment.job,
        rejection=rejection,
        etcd=assessment.etcd_wait,
        workers=[pod for pod, status in assessment.staying if status.state is PodState.LIVE],
        stale=[pod for pod, _ in assessment.stale],
        answers=assessment.state.explanations,
        unready=assessment.view.unready,
    )
    return training(
        assessment.job,
        assessment.view,
        assessment.staying,
        assessment.budget,
        wait=wait,
        kept=assessment.kept or assessment.unknown_outcome or assessment.waits_for_etcd,
        cut_off=assessment.cut_off,
    )


def _plan_for_end(assessment: Assessment, end: ConditionUpdate) -> Plan:
    """The job has ended now: the next plan cleans up."""
    status, before = ended_status(assessment, end), assessment.job.status
    return Plan(
        status=status,
        events=events_of_status(before, status),
        target=assessment.target,
        requeue_at=assessment.now,
    )


def _outcome(assessment: Assessment, trains: Training) -> ConditionUpdate:
    """As the agents and pods report it, or because of a deadline."""
    job, view, now = assessment.job, assessment.view, assessment.now
    end = outcome(job, view, [pod for pod, _ in assessment.staying], assessment.budget, now)
    if end.status is not None:
        return end
    trained = job.status.round > 0 or view.plan is not None or trains.is_running
    late = lifecycle.deadlines(job, trained=trained, waiting=trains.running.message, now=now)
    return late if late.status is not None else not_ended(earliest([end.requeue_at, late.requeue_at]))


def _uncounted_failure(assessment: Assessment) -> str:
    """The message of the last failure, if status does not have it yet."""
    budget, written = assessment.budget, assessment.job.status
    new = budget.total > written.restarts.total and budget.last_failure != written.last_failure
    return worker_failed(assessment.job, budget) if new else ""


def _silence_timers(assessment: Assessment) -> list[datetime.datetime | None]:
    """When the silence of etcd becomes a condition, and when to look whether worker pods that it does not reach still
    train."""
    now = assessment.now
    silent = silent_since(assessment.rendezvous, assessment.view, [pod for pod, _ in assessment.etcd])
    due = silent + datetime.timedelta(seconds=SILENT_SECONDS) if silent is not None else None
    unsure = assessment.cut_off and any(pod.running and not pod.may_train for pod, _ in assessment.staying)
    look = now + datetime.timedelta(seconds=1) if unsure else None
    return [look, due if due is not None and due > now else None]


def _continues_at_once(assessment: Assessment) -> bool:
    """The next plan does what must wait for this one's status or reads: it deletes a failed pod that is counted now, or
    an etcd that is superseded now; it uses the etcd tier that is chosen now; it replaces all pods of an attempt that
    ends now; it uses the answer to a dry-run create or the heartbeat of a node."""
    lost_etcd = [pod for pod, status in assessment.etcd if status.state is PodState.LOST]
    return bool(
        assessment.budget.new_failure
        or assessment.ends_attempt
        or assessment.acceptance.dry_run
        or assessment.nodes_to_verify
        or assessment.rendezvous.unwritten
        or any(not is_superseded(pod, assessment.job.status.rendezvous) for pod in lost_etcd)
    )
