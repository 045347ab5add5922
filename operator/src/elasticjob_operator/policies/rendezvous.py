"""Where and under which id the agents of a job meet, and what the operator tells them there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from elasticjob_runtime.contract import DEFAULT_C10D_PORT, DEFAULT_ETCD_PORT, SpecValue

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob, Reason, RendezvousBackend, RendezvousStatus, message
from elasticjob_operator.policies import lifecycle
from elasticjob_operator.settings import Settings
from elasticjob_operator.world import Pod, Reach, RendezvousView


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """The rendezvous of a job's current run."""

    run: int
    run_id: str
    endpoint: str
    """host:port"""
    managed: bool
    """The etcd is the job's own: the operator makes it and takes it away."""
    followed: bool = True
    """The operator reads and writes there."""

    def to_status(self, backend: str) -> RendezvousStatus:
        return RendezvousStatus(id=self.run_id, backend=backend, endpoint=self.endpoint)


def rendezvous_of(job: ElasticJob, settings: Settings, newest_run: int = 0) -> Rendezvous:
    """What status says stays, so that another default endpoint in a new release of the operator never moves a job that runs.

    `newest_run`: of the pods that there are. An operator that died before it wrote so may have begun a run that status does not know.
    """
    if not job.has_plans:
        return _of_torchrun(job, newest_run)
    own = names.managed_endpoint(job.name, job.namespace, DEFAULT_ETCD_PORT)
    before, run = job.status.rendezvous, max(_run(job), newest_run)
    endpoint = (before.endpoint if before else "") or job.spec.rendezvous.endpoint or settings.endpoint or own
    return Rendezvous(run=run, run_id=names.run_id(job.uid, run), endpoint=endpoint, managed=endpoint == own)


def _of_torchrun(job: ElasticJob, newest_run: int) -> Rendezvous:
    run = max(_run(job), newest_run)
    endpoint = job.spec.rendezvous.endpoint
    if job.spec.rendezvous.backend is RendezvousBackend.C10D:
        host = f"{names.worker_name(job.name, 0)}.{names.workers_service(job.name)}.{job.namespace}.svc"
        endpoint = f"{host}:{DEFAULT_C10D_PORT}"
    return Rendezvous(run=run, run_id=names.run_id(job.uid, run), endpoint=endpoint, managed=False, followed=False)


def _run(job: ElasticJob) -> int:
    before = job.status.rendezvous
    return (names.run_of(before.id, job.uid) if before else names.FIRST_RUN) + lifecycle.starts_new_run(job)


def wanted_spec(job: ElasticJob, *, members: Iterable[int], draining: Iterable[str], max_restarts: int) -> SpecValue:
    """The membership hint for the agents. `max_restarts`: what they may compare their own count with."""
    return SpecValue(
        min=job.min_replicas,
        max=job.max_replicas,
        wanted=job.replicas,
        members=[names.worker_name(job.name, index) for index in sorted(members)],
        draining=sorted(draining),
        allowed=job.allowed_sizes,
        max_restarts=max_restarts,
        generation=job.generation,
    )


def needs_publishing(view: RendezvousView, wanted: SpecValue) -> str:
    """Why `wanted` must be written; empty: the store has it, or cannot be reached."""
    if view.reach is not Reach.REACHABLE:
        return ""
    if view.spec is None:
        return "the store has no spec of this run"
    if view.spec == wanted:
        return ""
    if view.spec.draining != wanted.draining:
        return f"draining {', '.join(wanted.draining) or 'nobody'}"
    return "the wanted membership changed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """The condition RendezvousReady."""

    status: bool | None
    reason: Reason
    message: str


def readiness(rendezvous: Rendezvous, view: RendezvousView, etcd_pods: Iterable[Pod], *, was_ready: bool) -> Readiness | None:
    """None: nothing is known yet, leave the condition as it is."""
    endpoint = rendezvous.endpoint
    if view.reach is Reach.CONNECTING:
        return None
    if view.reach is Reach.REACHABLE:
        return Readiness(status=True, reason=Reason.ETCD_READY, message=message(Reason.ETCD_READY, endpoint=endpoint))
    if view.reach is Reach.DENIED:
        text = message(Reason.ETCD_DENIED, endpoint=endpoint, error=view.error)
        return Readiness(status=False, reason=Reason.ETCD_DENIED, message=text)
    pods = list(etcd_pods)
    if rendezvous.managed and (not was_ready or not any(pod.ready for pod in pods)):
        text = message(Reason.ETCD_STARTING, endpoint=endpoint)
        blocked = next((f" {pod.name}: {pod.blocked.reason}: {pod.blocked.message}" for pod in pods if pod.blocked), "")
        return Readiness(status=False, reason=Reason.ETCD_STARTING, message=text + blocked)
    text = message(Reason.ETCD_UNREACHABLE, endpoint=endpoint, error=view.error)
    return Readiness(status=False, reason=Reason.ETCD_UNREACHABLE, message=text)


def readiness_of_store(rendezvous: Rendezvous, worker: Pod | None) -> Readiness:
    """Of c10d. `worker`: worker 0; None: there is none."""
    reason = Reason.STORE_READY if worker is not None and worker.running else Reason.STORE_STARTING
    return Readiness(status=reason is Reason.STORE_READY, reason=reason, message=message(reason, endpoint=rendezvous.endpoint))
