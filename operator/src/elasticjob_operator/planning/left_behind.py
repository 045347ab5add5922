"""What a deleted job of the same name left behind, as after `kubectl delete --cascade=orphan`. Nothing is created until
it is gone: the worker pods of the new job would meet the etcd of the old one."""

from __future__ import annotations

from elasticjob_api import KIND, ElasticJob, Reason

from elasticjob_operator import names
from elasticjob_operator.policies.waits import Wait
from elasticjob_operator.resources.etcd import secret_of
from elasticjob_operator.state import JobState, Kind, Pod

_MOST = 50
"""Objects in one message. The next ones are named once these are gone."""


def left_behind(job: ElasticJob, state: JobState) -> Wait | None:
    """Objects with names that the job needs, and worker pods that no one will delete. None: there are none."""
    etcd = names.etcd_name(job.name)
    needed = _needed(job, etcd)
    objects = [item for item in state.foreign if (item.kind, item.name) in needed]
    orphans = [pod for pod in state.leftovers if _is_orphan(job, pod)]
    if not objects and not orphans:
        return None
    found = [f"{item.kind.value.lower()}/{item.name}" for item in objects] + [f"pod/{pod.name}" for pod in orphans]
    # Nothing but the StatefulSet tells the name of its Secret.
    secrets = [secret_of(item.body) for item in objects if item.kind is Kind.STATEFUL_SET]
    found = sorted([*found, *(f"secret/{secret}" for secret in secrets if secret.startswith(f"{etcd}-"))])
    garbage = not orphans and all(item.owner_uid or item.terminating for item in objects)
    remedy = "nothing, unless it lasts" if garbage else "give this job another name, or delete them, and it starts"
    return Wait(
        reason=Reason.WAITING_FOR_WORKERS if garbage else Reason.NAME_IN_USE,
        kind=KIND,
        name=job.name,
        holder="(deleted)",
        detail=f"objects of it are left: {len(found)}",
        since=job.metadata.creation_timestamp,
        remedy=f"{remedy}: kubectl delete {' '.join(found[:_MOST])} -n {job.namespace}",
    )


def _needed(job: ElasticJob, etcd: str) -> set[tuple[Kind, str]]:
    """Users may give the same names to objects of theirs of other kinds."""
    services = (names.workers_service(job.name), etcd, names.etcd_peers(job.name))
    needed = {(Kind.SERVICE, name) for name in services} | {(Kind.STATEFUL_SET, etcd)}
    needed |= {(Kind.NETWORK_POLICY, name) for name in (names.workers_policy(job.name), etcd)}
    if job.spec.rendezvous.etcd is not None and job.spec.rendezvous.etcd.members > 1:
        needed.add((Kind.DISRUPTION_BUDGET, etcd))
    if job.spec.scaling.metrics:
        needed.add((Kind.AUTOSCALER, job.name))
    return needed


def _is_orphan(job: ElasticJob, pod: Pod) -> bool:
    """A worker pod that is older than the job. A younger one is a copy of one of the job's own."""
    created = job.metadata.creation_timestamp
    if created is None or pod.component != names.COMPONENT_WORKER or pod.job_uid or pod.terminating or pod.over:
        return False
    return pod.created_at < created and names.host_of(pod.name) == names.worker_host(job.name, pod.index)
