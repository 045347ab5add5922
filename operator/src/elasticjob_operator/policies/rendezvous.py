"""Where and under which id the agents of a job meet, and what the operator tells them there."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from elasticjob_runtime.contract import DEFAULT_C10D_PORT, DEFAULT_ETCD_PORT, SpecValue

from elasticjob_operator import names
from elasticjob_operator.allowed import is_allowed
from elasticjob_operator.api import ElasticJob, Reason, RendezvousBackend, RendezvousStatus, message
from elasticjob_operator.policies import lifecycle
from elasticjob_operator.policies.node_loss import Held
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Pod, RendezvousView

SILENT_SECONDS = 3.0
"""For how long an etcd that is not ready may be silent until status says so, s. While it trains, a job's etcd has an
answer each second."""


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
    allowed: bool = True
    """Jobs may name this endpoint; else it is not followed."""
    store_generation: int = 0
    """Number of the job's own etcd; 0: it has none."""
    store_pod: str = ""
    """uid of its pod; empty: there is none, or it is given up."""

    def to_status(self, backend: str) -> RendezvousStatus:
        return RendezvousStatus(
            id=self.run_id,
            backend=backend,
            endpoint=self.endpoint,
            store_generation=self.store_generation or None,
            store_pod=self.store_pod,
        )


def rendezvous_of(job: ElasticJob, settings: Settings, newest_run: int = 0) -> Rendezvous:
    """What status says stays, so that another default endpoint in a new release of the operator never moves a job that
    runs. A new run goes where spec and settings say now.

    `newest_run`: of the pods that there are. An operator that died before it wrote so may have begun a run that status
    does not know.
    """
    if not job.has_plans:
        return _of_torchrun(job, newest_run)
    own = names.managed_endpoint(job.name, job.namespace, DEFAULT_ETCD_PORT)
    before, run = job.status.rendezvous, max(_run(job), newest_run)
    known = before.endpoint if before is not None and not _meets_anew(job) else ""
    endpoint = known or job.spec.rendezvous.endpoint or settings.endpoint or own
    # What comes from the settings is theirs who run the operator, and so is what did so before.
    named = endpoint == job.spec.rendezvous.endpoint and endpoint not in (settings.endpoint, own)
    allowed = not named or is_allowed(endpoint, settings.allowed_endpoints)
    run_id = names.run_id(job.uid, run)
    return Rendezvous(
        run=run, run_id=run_id, endpoint=endpoint, managed=endpoint == own, followed=allowed, allowed=allowed
    )


def _of_torchrun(job: ElasticJob, newest_run: int) -> Rendezvous:
    run = max(_run(job), newest_run)
    endpoint = job.spec.rendezvous.endpoint
    if job.spec.rendezvous.backend is RendezvousBackend.C10D:
        host = f"{names.worker_name(job.name, 0)}.{names.workers_service(job.name)}.{job.namespace}.svc"
        endpoint = f"{host}:{DEFAULT_C10D_PORT}"
    return Rendezvous(run=run, run_id=names.run_id(job.uid, run), endpoint=endpoint, managed=False, followed=False)


def _run(job: ElasticJob) -> int:
    before = job.status.rendezvous
    return (names.run_of(before.id, job.uid) if before else names.FIRST_RUN) + _meets_anew(job)


def _meets_anew(job: ElasticJob) -> bool:
    """The next run begins: resumed, or resumed so soon after `spec.rendezvous` was changed that its pods were never
    gone."""
    return lifecycle.starts_new_run(job) or _is_moved(job)


def _is_moved(job: ElasticJob) -> bool:
    before, wanted = job.status.rendezvous, job.spec.rendezvous
    if before is None or not before.endpoint or job.is_suspended or job.status.is_finished:
        return False
    return before.backend not in ("", str(wanted.backend)) or wanted.endpoint not in ("", before.endpoint)


def with_store(rendezvous: Rendezvous, before: RendezvousStatus | None, etcd: Iterable[tuple[Pod, bool]]) -> Rendezvous:
    """With the number of the job's own etcd. `etcd`: its pods, and whether each is lost; `before`: as it is written.

    Each etcd has a number, and one that is given up loses its place to the next number before it is deleted: a group
    that goes on with it, behind a partition, can then never pass for the newer one.
    """
    if not rendezvous.managed:
        return rendezvous
    number, known = ((before.store_generation or 0), before.store_pod) if before is not None else (0, "")
    pods = sorted(etcd, key=lambda each: each[0].created_at)
    live = [pod.uid for pod, lost in pods if not lost]
    if live and live[-1] != known:
        number, known = number + (1 if known or not number else 0), live[-1]
    elif not live and any(pod.uid == known or not number for pod, _ in pods):
        number, known = number + 1, ""
    return dataclasses.replace(rendezvous, store_generation=number, store_pod=known)


def unknown_end(job: ElasticJob, rendezvous: Rendezvous, view: RendezvousView, pods: Iterable[Pod]) -> Held | None:
    """Whether `job` may have ended while no operator looked: it had trained, and none of its worker pods is left to
    say. The etcd of that time knows, if it is still there. `pods`: of workers and etcd. See
    docs/design/0006-no-finalizer.md."""
    known = list(pods)
    if (
        not job.has_plans
        or job.status.round == 0
        or lifecycle.is_new_run(job, rendezvous.run)
        or any(pod.index >= 0 for pod in known)
    ):
        return None
    before = job.status.rendezvous
    same_etcd = any(before is not None and pod.uid == before.store_pod for pod in known)
    if view.connectivity not in (Connectivity.CONNECTING, Connectivity.UNREACHABLE) or (
        rendezvous.managed and not same_etcd
    ):
        return None
    return Held(reason=Reason.OUTCOME_UNKNOWN, message=message(Reason.OUTCOME_UNKNOWN, endpoint=rendezvous.endpoint))


def is_superseded(pod: Pod, written: RendezvousStatus | None) -> bool:
    """Whether status says that another etcd takes the place of this pod's: only then may it be taken away by force."""
    return written is not None and bool(written.store_generation) and written.store_pod != pod.uid


def wanted_spec(
    job: ElasticJob, *, members: Iterable[int], draining: Iterable[str], max_restarts: int, store_generation: int = 0
) -> SpecValue:
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
        on_partition=str(job.spec.rendezvous.on_partition),
        store_generation=store_generation,
    )


def needs_publishing(view: RendezvousView, wanted: SpecValue) -> str:
    """Why `wanted` must be written; empty: the store has it, or cannot be reached."""
    if view.connectivity is not Connectivity.REACHABLE:
        return ""
    if view.spec is None:
        return "etcd has no spec of this run"
    if view.spec == wanted:
        return ""
    if view.spec.draining != wanted.draining:
        return f"draining {', '.join(wanted.draining) or 'no members'}"
    return "the desired membership changed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """The condition RendezvousReady."""

    status: bool | None
    reason: Reason
    message: str


def silent_since(rendezvous: Rendezvous, view: RendezvousView, etcd_pods: Iterable[Pod]) -> datetime.datetime | None:
    """When the job's own etcd last answered, if its kubelet says that it answers no probe either. None: it is well, as
    far as is known."""
    pods = list(etcd_pods)
    if not rendezvous.managed or not pods or any(pod.ready for pod in pods):
        return None
    return view.answered_at


def readiness(
    rendezvous: Rendezvous,
    view: RendezvousView,
    etcd_pods: Sequence[Pod],
    *,
    was_ready: bool,
    held: Held | None = None,
    now: datetime.datetime,
) -> Readiness | None:
    """`held`: why a lost etcd is not replaced. None: nothing is known yet, leave the condition as it is."""
    endpoint = rendezvous.endpoint
    if view.connectivity is Connectivity.CONNECTING:
        return None
    if view.connectivity is Connectivity.REACHABLE and view.unreadable:
        text = message(Reason.VALUE_NOT_UNDERSTOOD, endpoint=endpoint, error=view.unreadable)
        return Readiness(status=False, reason=Reason.VALUE_NOT_UNDERSTOOD, message=text)
    silent = (
        silent_since(rendezvous, view, etcd_pods) if was_ready and view.connectivity is Connectivity.REACHABLE else None
    )
    if silent is not None and now - silent >= datetime.timedelta(seconds=SILENT_SECONDS):
        text = message(
            Reason.ETCD_UNREACHABLE, endpoint=endpoint, error="its pod is not ready, and it stopped responding"
        )
        return Readiness(status=False, reason=Reason.ETCD_UNREACHABLE, message=text)
    if view.connectivity is Connectivity.REACHABLE:
        return Readiness(status=True, reason=Reason.ETCD_READY, message=message(Reason.ETCD_READY, endpoint=endpoint))
    if view.connectivity is Connectivity.DENIED:
        text = message(Reason.ETCD_DENIED, endpoint=endpoint, error=view.error)
        return Readiness(status=False, reason=Reason.ETCD_DENIED, message=text)
    if held is not None:
        return Readiness(status=False, reason=held.reason, message=held.message)
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
    return Readiness(
        status=reason is Reason.STORE_READY, reason=reason, message=message(reason, endpoint=rendezvous.endpoint)
    )
