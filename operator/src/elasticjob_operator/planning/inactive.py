"""The plan of a job that does not run: suspended, or ended. Its pods go, or stay with their logs; then goes what only
pods needed."""

from __future__ import annotations

import datetime

from elasticjob_operator.api import ConditionType, ElasticJob
from elasticjob_operator.planning.actions import Action, ClearRun, DeleteJob, DeleteObject, Plan, ReadHeartbeat
from elasticjob_operator.planning.classify import Classified
from elasticjob_operator.planning.common import delete_pod, dry_run_create, is_counted, soonest, target_of
from elasticjob_operator.planning.events import tell
from elasticjob_operator.planning.status import finished_status, suspended_status
from elasticjob_operator.policies import admission, lifecycle
from elasticjob_operator.policies.cleanup import clean_up
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import Connectivity, JobState


def suspended(
    job: ElasticJob,
    world: JobState,
    observed: Classified,
    verdict: admission.Verdict,
    budget: Budget,
    now: datetime.datetime,
) -> Plan:
    """Nothing is held: first the pods go, then the rest."""
    pods = (*observed.workers, *observed.stale)
    actions: list[Action] = []
    if verdict.ask:
        actions += dry_run_create(job, observed, why="retrying after a rejection")
    for pod, stand in pods:
        if stand.state is PodState.LOST:
            actions.append(delete_pod(pod, stand.why, force=True))
        elif stand.state is PodState.FAILED and pod.run == observed.rendezvous.run and not is_counted(job, pod, budget):
            continue  # counted first, in the status of this plan
        elif stand.state not in (PodState.LEAVING, PodState.STRANDED):
            actions.append(delete_pod(pod, "the job is suspended"))
    actions += _heartbeats(observed)
    gone = not pods
    keys_left = _keys_left(world, observed)
    if gone:
        actions += _release(world, keys_left, "the job is suspended")
    status = suspended_status(job, world, observed, verdict, budget, now)
    timers = [
        *observed.timers,
        verdict.requeue_at,
        now if budget.new_failure or verdict.ask or observed.to_ask else None,
    ]
    return Plan(
        status=status,
        actions=tuple(actions),
        stories=tell(job.status, status),
        target=target_of(observed) if not gone or keys_left else None,
        requeue_at=soonest(timers),
    )


def _heartbeats(observed: Classified) -> list[Action]:
    return [
        ReadHeartbeat(node=node, why="its pods are lost if its kubelet does not respond") for node in observed.to_ask
    ]


def _keys_left(world: JobState, observed: Classified) -> bool:
    """The run has left keys in an etcd that outlives it."""
    view = world.rendezvous
    return not observed.rendezvous.managed and view.connectivity is Connectivity.REACHABLE and not view.empty


def _release(world: JobState, keys_left: bool, why: str) -> list[Action]:
    """What a job without pods needs no longer."""
    objects: list[Action] = [
        DeleteObject(kind=each.kind, name=each.name, uid=each.uid, why=why)
        for each in world.objects.values()
        if not each.terminating
    ]
    return [*objects, ClearRun(why=why)] if keys_left else objects


def finished(job: ElasticJob, world: JobState, observed: Classified, now: datetime.datetime) -> Plan:
    """Terminal is terminal: only what is left over is of interest."""
    pods = (*observed.workers, *observed.stale)
    expiry = lifecycle.expiry(job, now)
    if expiry.delete:
        why = f"finished {job.spec.lifecycle.ttl_seconds_after_finished} s ago"
        return Plan(
            status=job.status, actions=(DeleteJob(name=job.name, uid=job.uid, why=why),), target=target_of(observed)
        )
    completed = job.status.completion_time or now
    failed = job.status.is_true(ConditionType.FAILED)
    standings = [(pod, stand.state) for pod, stand in pods]
    rest = clean_up(job.spec.lifecycle.clean_pods, standings, completed, now, job_failed=failed)
    actions: list[Action] = [delete_pod(pod, "the job has finished") for pod in rest.delete]
    actions += [delete_pod(pod, "the job has finished, and the node is gone", force=True) for pod in rest.force]
    actions += _heartbeats(observed)
    keys_left = _keys_left(world, observed)
    if rest.all_ended:
        actions += _release(world, keys_left, "the job has finished")
    followed = not rest.all_ended or keys_left
    return Plan(
        status=finished_status(job, observed),
        actions=tuple(actions),
        target=target_of(observed) if followed else None,
        requeue_at=soonest([rest.requeue_at, expiry.requeue_at, *observed.timers, now if observed.to_ask else None]),
    )
