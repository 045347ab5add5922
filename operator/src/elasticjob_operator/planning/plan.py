"""`plan(job, world, settings, now)`: the whole of the operator's judgement, top down.

not ours?   nothing: another controller's job, one on its way out
finished?   what is left to clean up
ended now?  say so in status; the next plan cleans up
suspended?  everything goes
else        the objects that must be there, pods that are missing, useless or too many, the hint for the agents
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from elasticjob_operator.api import ElasticJob, FailingNode
from elasticjob_operator.planning.actions import (
    Action,
    CreateObject,
    CreatePod,
    EvictMember,
    Plan,
    PublishSpec,
    ReadHeartbeat,
)
from elasticjob_operator.planning.classify import Classified, classify
from elasticjob_operator.planning.common import delete_pod, dry_run_create, is_counted, soonest, target_of
from elasticjob_operator.planning.events import tell
from elasticjob_operator.planning.inactive import finished, suspended
from elasticjob_operator.planning.objects import missing_objects
from elasticjob_operator.planning.status import ended_status, progress_of, status_of
from elasticjob_operator.policies import admission, completion, lifecycle
from elasticjob_operator.policies.node_avoidance import avoided, failing_nodes
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.rendezvous import (
    SILENT_SECONDS,
    is_superseded,
    needs_publishing,
    silent_since,
    wanted_spec,
)
from elasticjob_operator.policies.replacement import replace
from elasticjob_operator.policies.restart_budget import Budget, account
from elasticjob_operator.policies.running import Activity, judge_activity, worker_failed
from elasticjob_operator.policies.scale_up_delay import settle
from elasticjob_operator.policies.stalling import judge_stall
from elasticjob_operator.policies.world_size import counted
from elasticjob_operator.resources.pods import template_hash, worker_pod
from elasticjob_operator.resources.template import InvalidTemplateError
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import POD, Connectivity, JobState, Pod, Rejection, RendezvousView


def plan(job: ElasticJob, world: JobState, settings: Settings, now: datetime.datetime) -> Plan:
    """What to do now, what status to write, and when to look again."""
    if job.is_deleting or job.is_managed_by_another:
        return Plan(status=job.status)
    growth = settle(job, now)
    job = job.with_replicas(growth.replicas)
    observed = classify(job, world, settings, now, growth)
    if world.namespace_terminating:
        return Plan(status=job.status, target=target_of(observed))
    if job.status.is_finished:
        return finished(job, world, observed, now)
    if world.rendezvous.run_id not in ("", observed.rendezvous.run_id):
        world = dataclasses.replace(world, rendezvous=RendezvousView())  # of the last run
    world = dataclasses.replace(
        world, rendezvous=dataclasses.replace(world.rendezvous, plan=counted(job, world.rendezvous.plan))
    )
    verdict = _admission(job, world, observed, now)
    if verdict.accepted is None and not observed.workers:
        return Plan(status=job.status, actions=dry_run_create(job, observed, why="the template is new"), requeue_at=now)
    if lifecycle.is_new_run(job, observed.rendezvous.run):
        job = job.model_copy(update={"status": lifecycle.forget_last_run(job.status)})
    return _active(job, world, settings, observed, verdict, now)


def _active(
    job: ElasticJob,
    world: JobState,
    settings: Settings,
    observed: Classified,
    verdict: admission.Verdict,
    now: datetime.datetime,
) -> Plan:
    """A job that has not ended."""
    staying = [pod for pod, _ in observed.staying]
    failed = [pod for pod, stand in observed.workers if stand.state is PodState.FAILED]
    budget = account(job, world.rendezvous, failed, now)
    if job.is_suspended:
        done = completion.judge_suspended(job, world.rendezvous, budget)
        if done.end is not None:
            return _ended(job, world, observed, verdict, budget, done.end, now)
        return suspended(job, world, observed, verdict, budget, now)
    counted_now = budget.new_failure.worker if budget.new_failure else ""
    failing = failing_nodes(job, observed.workers, world.nodes, counted_now, now)
    creations, rejection = _creations(job, world, settings, observed, verdict, failing, now)
    activity = judge_activity(
        job, world.rendezvous, observed.staying, budget, rejection=rejection, held=observed.held or observed.unknown_end
    )
    done = _completion(job, world, staying, budget, activity, now)
    if done.end is not None:
        return _ended(job, world, observed, verdict, budget, done.end, now)
    replacements, timers = _replacements(job, world, observed, budget, now)
    actions = [*creations, *_removals(job, world, observed, budget), *replacements]
    actions += [
        ReadHeartbeat(node=node, why="its pods are lost if its kubelet does not respond") for node in observed.to_ask
    ]
    if verdict.ask:
        actions += dry_run_create(job, observed, why="retrying after a rejection")
    if verdict.accepted or observed.workers:
        actions += _publication(job, world, observed, budget)
    status = status_of(job, world, observed, verdict, budget, activity, now).model_copy(
        update={"failing_nodes": failing or None}
    )
    timers += [*observed.timers, done.requeue_at, verdict.requeue_at, budget.requeue_at, observed.growth.scale_up_at]
    timers.append(now if _gives_etcd_up(job, observed) else None)
    timers += _doubts(job, world, observed, activity, now)
    timers += [
        rejection.retry_at if rejection and now < rejection.retry_at else None,
        now if budget.new_failure or verdict.ask or observed.to_ask else None,
    ]
    return Plan(
        status=status,
        actions=tuple(actions),
        stories=tell(
            job.status, status, worker_failed(job, budget, budget.total) if _is_counted_now(job, budget) else ""
        ),
        target=target_of(observed) if observed.workers or verdict.accepted else None,
        requeue_at=soonest(timers),
    )


def _doubts(
    job: ElasticJob, world: JobState, observed: Classified, activity: Activity, now: datetime.datetime
) -> list[datetime.datetime | None]:
    """When silence begins to mean something: that of etcd, that of the training."""
    view = world.rendezvous
    silent = silent_since(observed.rendezvous, view, [pod for pod, _ in observed.etcd])
    due = silent + datetime.timedelta(seconds=SILENT_SECONDS) if silent is not None else None
    stall = judge_stall(job, view, progress_of(job, view, now), running=activity.running, now=now)
    return [due if due is not None and due > now else None, stall.requeue_at if stall is not None else None]


def _gives_etcd_up(job: ElasticJob, observed: Classified) -> bool:
    """It is deleted as soon as status says that another takes its place."""
    lost = [pod for pod, stand in observed.etcd if stand.state is PodState.LOST]
    return any(not is_superseded(pod, job.status.rendezvous) for pod in lost)


def _is_counted_now(job: ElasticJob, budget: Budget) -> bool:
    """A failure that status does not tell of yet."""
    return budget.total > job.status.restarts.total and budget.last_failure != job.status.last_failure


def _ended(
    job: ElasticJob,
    world: JobState,
    observed: Classified,
    verdict: admission.Verdict,
    budget: Budget,
    end: completion.End,
    now: datetime.datetime,
) -> Plan:
    """At the moment of its end: the next plan cleans up."""
    status = ended_status(job, world, observed, verdict, budget, end, now)
    return Plan(status=status, stories=tell(job.status, status), target=target_of(observed), requeue_at=now)


def _completion(
    job: ElasticJob, world: JobState, staying: list[Pod], budget: Budget, activity: Activity, now: datetime.datetime
) -> completion.Completion:
    """By what the agents and the pods say, or by time."""
    done = completion.judge(job, world.rendezvous, staying, budget, now)
    if done.end is not None:
        return done
    trained = job.status.round > 0 or world.rendezvous.plan is not None or activity.running
    late = lifecycle.deadlines(job, trained=trained, waiting=activity.running_message, now=now)
    return completion.Completion(end=late.end, requeue_at=soonest([done.requeue_at, late.requeue_at]))


def _admission(job: ElasticJob, world: JobState, observed: Classified, now: datetime.datetime) -> admission.Verdict:
    if not observed.rendezvous.allowed:
        return admission.refused_endpoint(observed.rendezvous.endpoint)
    try:
        digest = template_hash(job)
    except InvalidTemplateError as error:
        return admission.refused_template(error)
    return admission.judge(job, digest, [pod for pod, _ in observed.workers], world.admission, now)


def _creations(
    job: ElasticJob,
    world: JobState,
    settings: Settings,
    observed: Classified,
    verdict: admission.Verdict,
    failing: Sequence[FailingNode],
    now: datetime.datetime,
) -> tuple[list[Action], Rejection | None]:
    """What the job needs and has not, but for kinds that are held back after a rejection; and that rejection, if it is
    about any of it."""
    if not (verdict.accepted or observed.workers):
        return [], None
    wanted = missing_objects(job, world, settings, observed.rendezvous)
    wants_pods = bool(verdict.accepted and observed.scaling.create) and observed.unknown_end is None
    kinds = {each.kind.value for each in wanted if isinstance(each, CreateObject)} | ({POD} if wants_pods else set())
    rejection = world.rejection if world.rejection is not None and world.rejection.kinds & kinds else None
    held = rejection.kinds if rejection is not None and now < rejection.retry_at else frozenset()
    wanted = [each for each in wanted if not (isinstance(each, CreateObject) and each.kind.value in held)]
    return wanted + (_pods(job, observed, failing) if wants_pods and POD not in held else []), rejection


def _pods(job: ElasticJob, observed: Classified, failing: Sequence[FailingNode]) -> list[Action]:
    rendezvous, avoid = observed.rendezvous, avoided(job, failing)
    return [
        CreatePod(
            body=worker_pod(job, index=index, run=rendezvous.run, endpoint=rendezvous.endpoint, avoid=avoid),
            why=f"{job.replicas} worker pods are requested",
        )
        for index in observed.scaling.create
    ]


def _removals(job: ElasticJob, world: JobState, observed: Classified, budget: Budget) -> list[Action]:
    """Pods that are too many, those of earlier runs, and an etcd that died with its node: a StatefulSet waits for its
    kubelet for ever."""
    actions: list[Action] = [
        delete_pod(pod, stand.why, force=True)
        for pod, stand in observed.etcd
        if stand.state is PodState.LOST and is_superseded(pod, job.status.rendezvous)
    ]
    stands = {pod.uid: stand for pod, stand in observed.workers}
    for pod in observed.scaling.surplus:
        state = stands[pod.uid].state
        if state is PodState.LOST:
            actions += _force_out(pod, stands[pod.uid].why, world)
        elif state not in (PodState.LEAVING, PodState.STRANDED) and _may_leave(job, pod, state, world, budget):
            actions.append(delete_pod(pod, "fewer worker pods are requested"))
    for pod, stand in observed.stale:
        if stand.state is PodState.LOST:
            actions.append(delete_pod(pod, stand.why, force=True))
        elif stand.state not in (PodState.LEAVING, PodState.STRANDED):
            actions.append(delete_pod(pod, "of an earlier run"))
    return actions


def _may_leave(job: ElasticJob, pod: Pod, state: PodState, world: JobState, budget: Budget) -> bool:
    """A failed pod is counted first. Of one that trains the agents know that it leaves - or cannot be told."""
    if state is PodState.FAILED:
        return is_counted(job, pod, budget)
    if state is PodState.SUCCEEDED:
        return True
    view = world.rendezvous
    if not job.has_plans or view.connectivity in (Connectivity.UNREACHABLE, Connectivity.DENIED):
        return True
    return view.connectivity is Connectivity.REACHABLE and view.spec is not None and pod.name in view.spec.draining


def _replacements(
    job: ElasticJob, world: JobState, observed: Classified, budget: Budget, now: datetime.datetime
) -> tuple[list[Action], list[datetime.datetime | None]]:
    actions: list[Action] = []
    timers: list[datetime.datetime | None] = []
    for pod, stand in observed.staying:
        if stand.state is PodState.LOST:
            actions += _force_out(pod, stand.why, world)
        elif stand.replace:
            actions.append(delete_pod(pod, stand.why))
        elif stand.state is PodState.FAILED:
            last, policy = job.status.last_failure, job.spec.restart_policy
            verdict = replace(pod, policy, restarts=budget.total, counted=last, now=now, latest=budget.latest)
            timers.append(verdict.requeue_at)
            if verdict.delete:
                actions += [delete_pod(pod, verdict.why), *_evict(pod, verdict.why, world)]
    return actions, timers


def _publication(job: ElasticJob, world: JobState, observed: Classified, budget: Budget) -> list[Action]:
    draining = [pod.name for pod in observed.scaling.surplus if not pod.ended]
    wanted = wanted_spec(
        job,
        members=observed.scaling.members,
        draining=draining,
        max_restarts=budget.limit_of_agents,
        store_generation=observed.rendezvous.store_generation,
    )
    why = needs_publishing(world.rendezvous, wanted)
    return [PublishSpec(spec=wanted, why=why)] if why else []


def _force_out(pod: Pod, why: str, world: JobState) -> list[Action]:
    return [delete_pod(pod, why, force=True), *_evict(pod, why, world)]


def _evict(pod: Pod, why: str, world: JobState) -> list[Action]:
    return [EvictMember(member=pod.name, why=why)] if world.rendezvous.connectivity is Connectivity.REACHABLE else []
