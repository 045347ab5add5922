"""What the parts of a plan have in common."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from elasticjob_operator.api import ElasticJob
from elasticjob_operator.planning.actions import Action, DeletePod, DryRunCreate, Target
from elasticjob_operator.planning.classify import Classified
from elasticjob_operator.policies.failures import judge
from elasticjob_operator.policies.restart_budget import Budget, is_accounted
from elasticjob_operator.resources.pods import template_hash, worker_pod
from elasticjob_operator.state import Pod


def dry_run_create(job: ElasticJob, observed: Classified, why: str) -> tuple[Action, ...]:
    rendezvous = observed.rendezvous
    body = worker_pod(job, index=0, run=rendezvous.run, endpoint=rendezvous.endpoint)
    return (DryRunCreate(template_hash=template_hash(job), body=body, why=why),)


def is_counted(job: ElasticJob, pod: Pod, budget: Budget) -> bool:
    """In the status that is written."""
    return is_accounted(pod, judge(pod, job.spec.restart_policy.rules), job.status.last_failure, budget.latest)


def delete_pod(pod: Pod, why: str, *, force: bool = False) -> DeletePod:
    return DeletePod(name=pod.name, uid=pod.uid, force=force, why=why)


def target_of(observed: Classified) -> Target | None:
    rendezvous = observed.rendezvous
    if not rendezvous.followed:
        return None
    return Target(endpoint=rendezvous.endpoint, run_id=rendezvous.run_id, ready_store_pod=observed.ready_store_pod)


def soonest(timers: Iterable[datetime.datetime | None]) -> datetime.datetime | None:
    return min((each for each in timers if each is not None), default=None)
