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
from collections.abc import Iterable, Sequence

from elasticjob_operator.api import ConditionType, ElasticJob, FailingNode
from elasticjob_operator.building.pods import InvalidTemplateError, template_hash, worker_pod
from elasticjob_operator.planning.actions import (
    Action,
    AskServer,
    ClearRun,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    EvictMember,
    Plan,
    PublishSpec,
    Target,
)
from elasticjob_operator.planning.objects import missing_objects
from elasticjob_operator.planning.observed import Observed, sort_out
from elasticjob_operator.planning.status import ended_status, finished_status, status_of, suspended_status
from elasticjob_operator.planning.stories import tell
from elasticjob_operator.policies import admission, completion, lifecycle
from elasticjob_operator.policies.activity import judge_activity
from elasticjob_operator.policies.cleanup import clean_up
from elasticjob_operator.policies.failures import judge
from elasticjob_operator.policies.growth import settle
from elasticjob_operator.policies.nodes import avoided, failing_nodes
from elasticjob_operator.policies.rendezvous import needs_publishing, wanted_spec
from elasticjob_operator.policies.replacement import replace
from elasticjob_operator.policies.restarts import Budget, account, is_accounted
from elasticjob_operator.policies.standing import Standing
from elasticjob_operator.settings import Settings
from elasticjob_operator.world import Pod, Reach, RendezvousView, World


def plan(job: ElasticJob, world: World, settings: Settings, now: datetime.datetime) -> Plan:
    """What to do now, what status to write, and when to look again."""
    if job.is_deleting or job.is_managed_by_another:
        return Plan(status=job.status)
    growth = settle(job, now)
    job = job.with_replicas(growth.replicas)
    observed = sort_out(job, world, settings, now, growth)
    if world.namespace_goes:
        return Plan(status=job.status, target=_target(observed))
    if job.status.is_finished:
        return _finished(job, world, observed, now)
    if world.rendezvous.run_id not in ("", observed.rendezvous.run_id):
        world = dataclasses.replace(world, rendezvous=RendezvousView())  # of the last run
    verdict = _admission(job, world, observed, now)
    if verdict.accepted is None and not observed.workers:
        return Plan(status=job.status, actions=_ask(job, observed, why="the template is new"), look_again=now)
    if lifecycle.starts_new_run(job):
        job = job.model_copy(update={"status": lifecycle.forget_last_run(job.status)})
    return _active(job, world, settings, observed, verdict, now)


def _active(
    job: ElasticJob, world: World, settings: Settings, observed: Observed, verdict: admission.Verdict, now: datetime.datetime
) -> Plan:
    """A job that has not ended."""
    staying = [pod for pod, _ in observed.staying]
    failed = [pod for pod, stand in observed.workers if stand.standing is Standing.FAILED]
    budget = account(job, world.rendezvous, failed, now)
    if job.is_suspended:
        done = completion.judge_suspended(job, world.rendezvous, budget)
    else:
        done = _completion(job, world, observed, staying, budget, now)
    if done.end is not None:
        status = ended_status(job, world, observed, verdict, budget, done.end, now)
        return Plan(status=status, stories=tell(job.status, status, ()), target=_target(observed), look_again=now)
    if job.is_suspended:
        return _suspended(job, world, observed, verdict, budget, now)
    counted_now = budget.new_failure.worker if budget.new_failure else ""
    failing = failing_nodes(job, observed.workers, world.nodes, counted_now, now)
    actions, timers = _actions(job, world, settings, observed, verdict, budget, failing, now)
    status = status_of(job, world, observed, verdict, budget, now).model_copy(update={"failing_nodes": failing or None})
    timers += [*observed.timers, done.look_again, verdict.look_again, budget.look_again, observed.growth.scale_up_at]
    return Plan(
        status=status,
        actions=actions,
        stories=tell(job.status, status, actions),
        target=_target(observed) if observed.workers or verdict.accepted else None,
        look_again=_soonest(timers),
    )


def _completion(
    job: ElasticJob, world: World, observed: Observed, staying: list[Pod], budget: Budget, now: datetime.datetime
) -> completion.Completion:
    """By what the agents and the pods say, or by time."""
    done = completion.judge(job, world.rendezvous, staying, budget, now)
    if done.end is not None:
        return done
    activity = judge_activity(job, world.rendezvous, observed.staying, budget, refusal=world.refusal.message if world.refusal else "")
    trained = job.status.epoch > 0 or world.rendezvous.plan is not None or activity.running
    late = lifecycle.deadlines(job, trained=trained, waiting=activity.running_message, now=now)
    return completion.Completion(end=late.end, look_again=_soonest([done.look_again, late.look_again]))


def _suspended(
    job: ElasticJob, world: World, observed: Observed, verdict: admission.Verdict, budget: Budget, now: datetime.datetime
) -> Plan:
    """Nothing is held: first the pods go, then the rest."""
    pods = (*observed.workers, *observed.stale)
    actions: list[Action] = []
    if verdict.ask:
        actions += _ask(job, observed, why="asking again after a refusal")
    for pod, stand in pods:
        if stand.standing is Standing.LOST:
            actions.append(_delete(pod, stand.why, force=True))
        elif stand.standing is Standing.FAILED and pod.run == observed.rendezvous.run and not _is_counted(job, pod):
            continue  # counted first, in the status of this plan
        elif stand.standing is not Standing.LEAVING:
            actions.append(_delete(pod, "the job is suspended"))
    gone = not pods
    keys_left = _keys_left(world, observed)
    if gone:
        actions += _release(world, keys_left, "the job is suspended")
    status = suspended_status(job, world, observed, verdict, budget, now)
    timers = [*observed.timers, verdict.look_again, now if budget.new_failure or verdict.ask else None]
    return Plan(
        status=status,
        actions=tuple(actions),
        stories=tell(job.status, status, actions),
        target=_target(observed) if not gone or keys_left else None,
        look_again=_soonest(timers),
    )


def _keys_left(world: World, observed: Observed) -> bool:
    """The run has left keys in an etcd that outlives it."""
    view = world.rendezvous
    return not observed.rendezvous.managed and view.reach is Reach.REACHABLE and not view.empty


def _release(world: World, keys_left: bool, why: str) -> list[Action]:
    """What a job without pods needs no longer."""
    objects: list[Action] = [
        DeleteObject(kind=each.kind, name=each.name, uid=each.uid, why=why) for each in world.objects.values() if not each.terminating
    ]
    return [*objects, ClearRun(why=why)] if keys_left else objects


def _finished(job: ElasticJob, world: World, observed: Observed, now: datetime.datetime) -> Plan:
    """Terminal is terminal: only what is left over is of interest."""
    pods = (*observed.workers, *observed.stale)
    expiry = lifecycle.expiry(job, now)
    if expiry.delete:
        why = f"ended {job.spec.lifecycle.ttl_seconds_after_finished} s ago"
        return Plan(status=job.status, actions=(DeleteJob(name=job.name, uid=job.uid, why=why),), target=_target(observed))
    completed = job.status.completion_time or now
    failed = job.status.is_true(ConditionType.FAILED)
    standings = [(pod, stand.standing) for pod, stand in pods]
    rest = clean_up(job.spec.lifecycle.clean_pods, standings, completed, now, job_failed=failed)
    actions: list[Action] = [_delete(pod, "the job has ended") for pod in rest.delete]
    actions += [_delete(pod, "the job has ended, and the node is gone", force=True) for pod in rest.force]
    keys_left = _keys_left(world, observed)
    if rest.all_ended:
        actions += _release(world, keys_left, "the job has ended")
    followed = not rest.all_ended or keys_left
    return Plan(
        status=finished_status(job, observed),
        actions=tuple(actions),
        target=_target(observed) if followed else None,
        look_again=_soonest([rest.look_again, expiry.look_again, *observed.timers]),
    )


def _admission(job: ElasticJob, world: World, observed: Observed, now: datetime.datetime) -> admission.Verdict:
    try:
        digest = template_hash(job)
    except InvalidTemplateError as error:
        return admission.refused_template(error)
    return admission.judge(job, digest, [pod for pod, _ in observed.workers], world.admission, now)


def _ask(job: ElasticJob, observed: Observed, why: str) -> tuple[Action, ...]:
    rendezvous = observed.rendezvous
    body = worker_pod(job, index=0, run=rendezvous.run, endpoint=rendezvous.endpoint)
    return (AskServer(template_hash=template_hash(job), body=body, why=why),)


def _actions(
    job: ElasticJob,
    world: World,
    settings: Settings,
    observed: Observed,
    verdict: admission.Verdict,
    budget: Budget,
    failing: Sequence[FailingNode],
    now: datetime.datetime,
) -> tuple[tuple[Action, ...], list[datetime.datetime | None]]:
    actions: list[Action] = []
    timers: list[datetime.datetime | None] = [now if budget.new_failure else None]
    if verdict.ask:
        actions += _ask(job, observed, why="asking again after a refusal")
        timers.append(now)
    held_back = world.refusal is not None and now < world.refusal.retry_at
    if held_back and world.refusal is not None:
        timers.append(world.refusal.retry_at)
    elif verdict.accepted:
        actions += missing_objects(job, world, settings, observed.rendezvous)
        actions += _creations(job, observed, failing)
    elif observed.workers:
        actions += missing_objects(job, world, settings, observed.rendezvous)
    actions += _removals(job, world, observed)
    replacements, due = _replacements(job, world, observed, budget, now)
    actions += replacements
    if verdict.accepted or observed.workers:
        actions += _publication(job, world, observed, budget)
    return tuple(actions), timers + due


def _creations(job: ElasticJob, observed: Observed, failing: Sequence[FailingNode]) -> list[Action]:
    rendezvous, avoid = observed.rendezvous, avoided(job, failing)
    return [
        CreatePod(
            body=worker_pod(job, index=index, run=rendezvous.run, endpoint=rendezvous.endpoint, avoid=avoid),
            why=f"{job.replicas} workers wanted",
        )
        for index in observed.scaling.create
    ]


def _removals(job: ElasticJob, world: World, observed: Observed) -> list[Action]:
    """Pods that are too many, those of earlier runs, and an etcd that died with its node: a StatefulSet waits for its kubelet for ever."""
    actions: list[Action] = [_delete(pod, stand.why, force=True) for pod, stand in observed.etcd if stand.standing is Standing.LOST]
    stands = {pod.uid: stand for pod, stand in observed.workers}
    for pod in observed.scaling.surplus:
        standing = stands[pod.uid].standing
        if standing is Standing.LOST:
            actions += _force_out(pod, stands[pod.uid].why, world)
        elif standing is not Standing.LEAVING and _may_leave(job, pod, standing, world):
            actions.append(_delete(pod, "fewer workers wanted"))
    for pod, stand in observed.stale:
        if stand.standing is Standing.LOST:
            actions.append(_delete(pod, stand.why, force=True))
        elif stand.standing is not Standing.LEAVING:
            actions.append(_delete(pod, "of an earlier run"))
    return actions


def _may_leave(job: ElasticJob, pod: Pod, standing: Standing, world: World) -> bool:
    """A failed pod is counted first. Of one that trains the agents know that it leaves - or cannot be told."""
    if standing is Standing.FAILED:
        return _is_counted(job, pod)
    if standing is Standing.SUCCEEDED:
        return True
    view = world.rendezvous
    if not job.has_plans or view.reach in (Reach.UNREACHABLE, Reach.DENIED):
        return True
    return view.reach is Reach.REACHABLE and view.spec is not None and pod.name in view.spec.draining


def _is_counted(job: ElasticJob, pod: Pod) -> bool:
    """In the status that is written."""
    return is_accounted(pod, judge(pod, job.spec.restart_policy.rules), job.status.last_failure)


def _replacements(
    job: ElasticJob, world: World, observed: Observed, budget: Budget, now: datetime.datetime
) -> tuple[list[Action], list[datetime.datetime | None]]:
    actions: list[Action] = []
    timers: list[datetime.datetime | None] = []
    for pod, stand in observed.staying:
        if stand.standing is Standing.LOST:
            actions += _force_out(pod, stand.why, world)
        elif stand.standing is Standing.FAILED:
            verdict = replace(pod, job.spec.restart_policy, restarts=budget.total, counted=job.status.last_failure, now=now)
            timers.append(verdict.look_again)
            if verdict.delete:
                actions += [_delete(pod, verdict.why), *_evict(pod, verdict.why, world)]
    return actions, timers


def _publication(job: ElasticJob, world: World, observed: Observed, budget: Budget) -> list[Action]:
    draining = [pod.name for pod in observed.scaling.surplus if not pod.ended]
    wanted = wanted_spec(job, members=observed.scaling.members, draining=draining, max_restarts=budget.limit_of_agents)
    why = needs_publishing(world.rendezvous, wanted)
    return [PublishSpec(spec=wanted, why=why)] if why else []


def _force_out(pod: Pod, why: str, world: World) -> list[Action]:
    return [_delete(pod, why, force=True), *_evict(pod, why, world)]


def _evict(pod: Pod, why: str, world: World) -> list[Action]:
    return [EvictMember(member=pod.name, why=why)] if world.rendezvous.reach is Reach.REACHABLE else []


def _delete(pod: Pod, why: str, *, force: bool = False) -> DeletePod:
    return DeletePod(name=pod.name, uid=pod.uid, force=force, why=why)


def _target(observed: Observed) -> Target | None:
    rendezvous = observed.rendezvous
    if not rendezvous.followed:
        return None
    return Target(endpoint=rendezvous.endpoint, run_id=rendezvous.run_id, awake=observed.waking)


def _soonest(timers: Iterable[datetime.datetime | None]) -> datetime.datetime | None:
    return min((each for each in timers if each is not None), default=None)
