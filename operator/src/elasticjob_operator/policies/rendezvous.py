"""Where the agents of a job rendezvous, under which run id, and the membership hint that the operator publishes
there."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from elasticjob_api import (
    ConditionType,
    ElasticJob,
    HangAction,
    Reason,
    RendezvousBackend,
    RendezvousStatus,
    RendezvousType,
)
from elasticjob_runtime.contract import DEFAULT_C10D_PORT, DEFAULT_ETCD_PORT, PlanValue, SpecValue

from elasticjob_operator import names
from elasticjob_operator.allowed import is_allowed
from elasticjob_operator.policies import lifecycle
from elasticjob_operator.policies.condition_updates import Cause, ConditionUpdate, cause, update
from elasticjob_operator.policies.etcd_access import NO_ACCESS, EtcdAccess, access_of, remedy, user_of_run
from elasticjob_operator.policies.etcd_tiers import choose, removed, wait_for_tier
from elasticjob_operator.policies.first_step import fails_fast
from elasticjob_operator.policies.waits import Wait
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Pod, RendezvousView, TierView

SILENT_SECONDS = 3.0
"""How long an etcd that is not ready may be silent before the condition RendezvousReady says so, in seconds. While a
job trains, its etcd sends something every second."""

MOST_NAMES = 8
"""Draining members that the reason names."""

_REFUSED = {
    Connectivity.UNTRUSTED: Reason.ETCD_UNTRUSTED,
    Connectivity.DENIED: Reason.ETCD_DENIED,
    Connectivity.NO_CREDENTIALS: Reason.ETCD_CREDENTIALS_UNUSABLE,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunRendezvous:
    """The rendezvous of a job's current run."""

    run: int
    run_id: str
    attempt: int = names.FIRST_ATTEMPT
    endpoint: str
    """host:port; with TLS: https://host:port. Empty: no etcd tier has taken the run."""
    tier: str = ""
    """The etcd tier of the run; empty: it uses none."""
    wait: Wait | None = None
    """Why the run has no tier, or lost it."""
    unwritten: bool = False
    """Status does not name the tier yet. Nothing is created in a tier before that: a successor of this operator might
    choose another one."""
    managed: bool
    """The etcd is the job's own: the operator creates and deletes it."""
    several: bool = False
    """The job's own etcd has several members, which keep their data."""
    tls: bool = False
    """The job's own etcd uses TLS, with certificates made by the operator."""
    access: EtcdAccess = NO_ACCESS
    """Credentials for an etcd that is not the job's own."""
    followed: bool = True
    """The operator connects to it."""
    allowed: bool = True
    """Jobs may use this endpoint. False: the operator does not connect to it."""
    store_generation: int = 0
    """Generation of the job's own etcd; 0: the job has none."""
    store_pod: str = ""
    """UID of its pod; empty: there is none, or it is lost."""

    def to_status(self, backend: str, template: lifecycle.RunTemplate) -> RendezvousStatus:
        return RendezvousStatus(
            id=self.run_id,
            backend=backend,
            endpoint=self.endpoint,
            tier=self.tier,
            store_generation=self.store_generation or None,
            store_pod=self.store_pod,
            template_hash=template.hash,
            template_generation=template.generation,
        )


def rendezvous_of(
    job: ElasticJob,
    settings: Settings,
    newest_run: int = 0,
    etcd_tls: bool | None = None,
    tiers: Mapping[str, TierView] = MappingProxyType({}),
) -> RunRendezvous:
    """The endpoint in status is kept, so that another default endpoint in a new release of the operator never moves a
    running job, and its own etcd keeps or lacks TLS. A new run uses what spec and settings say now.

    `newest_run`: of the pods that exist; `etcd_tls`: whether the job's own etcd that exists uses TLS, None: there is
    none. An operator that was killed before it wrote status may have started a run that status does not know.
    """
    if not job.has_plans:
        return _of_torchrun(job, newest_run)
    own = _managed_endpoint(job, job.etcd_members, tls=settings.etcd_tls if etcd_tls is None else etcd_tls)
    ours = _own_endpoints(job)
    before, run = job.status.rendezvous, max(_run(job), newest_run)
    known = before if before is not None and before.endpoint and not _starts_new_rendezvous(job) else None
    if known.tier if known is not None else _uses_tiers(job, settings):
        return _in_tier(job, settings, tiers, known, run)
    endpoint = known.endpoint if known is not None else _wanted_endpoint(job, settings, own, ours)
    managed = endpoint in ours
    allowed = managed or endpoint == settings.endpoint or is_allowed(endpoint, settings.allowed_endpoints)
    access = NO_ACCESS if managed else access_of(job, settings, endpoint, run)
    return RunRendezvous(
        run=run,
        run_id=names.run_id(job.uid, run),
        endpoint=endpoint,
        managed=managed,
        several=managed and "," in endpoint,
        tls=managed and endpoint.startswith("https://"),
        access=access,
        followed=allowed and access.allowed,
        allowed=allowed,
    )


def _uses_tiers(job: ElasticJob, settings: Settings) -> bool:
    return job.spec.rendezvous.type is RendezvousType.AUTO and any(tier.open for tier in settings.etcd_tiers.tiers)


def _in_tier(
    job: ElasticJob, settings: Settings, views: Mapping[str, TierView], known: RendezvousStatus | None, run: int
) -> RunRendezvous:
    """In the tier that status names, or in one that takes new runs. A job that is not to run gets none: it would hold
    the place of others. `known`: of this run."""
    run_id, tiers, held = names.run_id(job.uid, run), settings.etcd_tiers, lifecycle.is_held(job)
    chosen = None if held or known is not None else choose(job.uid, tiers, views)
    tier = tiers.named(known.tier) if known is not None else chosen
    found = RunRendezvous(run=run, run_id=run_id, endpoint="", managed=False, followed=False)
    if tier is None:
        wait = removed(job, known) if known is not None else wait_for_tier(job.uid, tiers, views)
        where = (known.endpoint, known.tier) if known is not None else ("", "")
        return dataclasses.replace(found, endpoint=where[0], tier=where[1], wait=None if held else wait)
    before = job.status.rendezvous
    unwritten = before is None or (before.id, before.tier) != (run_id, tier.name)
    return dataclasses.replace(
        found,
        endpoint=tier.endpoint,  # as the operator knows it, whatever status says: its credentials go there
        tier=tier.name,
        unwritten=unwritten,
        access=user_of_run(job, settings.secret_of(tier), run),
        followed=not unwritten,
    )


def _wanted_endpoint(job: ElasticJob, settings: Settings, own: str, ours: set[str]) -> str:
    """`own`: of the job's own etcd; `ours`: all that this may have had."""
    match job.spec.rendezvous.type:
        case RendezvousType.EXTERNAL:
            named = job.spec.rendezvous.endpoint
            return own if named in ours else named  # who names the job's own etcd does not choose whether it uses TLS
        case RendezvousType.DEDICATED:
            return own
        case RendezvousType.AUTO:
            return settings.endpoint or own


def _own_endpoints(job: ElasticJob) -> set[str]:
    """The run that the status describes may have had another number of members."""
    return {_managed_endpoint(job, members, tls=tls) for members in (1, job.etcd_members, 3) for tls in (False, True)}


def _managed_endpoint(job: ElasticJob, members: int, *, tls: bool) -> str:
    return names.managed_endpoint(job.name, job.namespace, DEFAULT_ETCD_PORT, tls=tls, members=members)


def _of_torchrun(job: ElasticJob, newest_run: int) -> RunRendezvous:
    run, before = max(_run(job), newest_run), job.status.rendezvous
    same_run = before is not None and run == names.run_of(before.id, job.uid)
    attempt = names.attempt_of(before.id) if before is not None and same_run else names.FIRST_ATTEMPT
    endpoint = job.spec.rendezvous.endpoint
    if job.spec.rendezvous.backend is RendezvousBackend.C10D:
        host = f"{names.worker_host(job.name, 0)}.{names.workers_service(job.name)}.{job.namespace}.svc"
        endpoint = f"{host}:{DEFAULT_C10D_PORT}"
    return RunRendezvous(
        run=run,
        run_id=names.run_id(job.uid, run, attempt),
        attempt=attempt,
        endpoint=endpoint,
        managed=False,
        followed=False,
    )


def _run(job: ElasticJob) -> int:
    before = job.status.rendezvous
    return (names.run_of(before.id, job.uid) if before else names.FIRST_RUN) + _starts_new_rendezvous(job)


def _starts_new_rendezvous(job: ElasticJob) -> bool:
    """A new run starts: the job is resumed, or was resumed so soon after a change of `spec.rendezvous` that its pods
    were never gone."""
    return lifecycle.starts_new_run(job) or _is_moved(job)


def _is_moved(job: ElasticJob) -> bool:
    before, wanted = job.status.rendezvous, job.spec.rendezvous
    if before is None or not before.endpoint or job.is_suspended or job.status.is_finished:
        return False
    ours = _own_endpoints(job)
    match wanted.type:
        case RendezvousType.EXTERNAL:
            same = wanted.endpoint == before.endpoint or (wanted.endpoint in ours and before.endpoint in ours)
        case RendezvousType.DEDICATED:
            same = before.endpoint in ours
        case RendezvousType.AUTO:
            same = True
    return before.backend not in ("", str(wanted.backend)) or not same


def with_store(
    rendezvous: RunRendezvous, before: RendezvousStatus | None, etcd: Iterable[tuple[Pod, bool]]
) -> RunRendezvous:
    """With the generation of the job's own etcd. `etcd`: its pods, and whether each is lost; `before`: as written in
    status.

    The generation increases before a lost etcd is deleted. A worker group that still trains with that etcd, behind a
    network partition, can then never be mistaken for the newer one.

    Several members keep their data, and a minority of them decides nothing: theirs is one generation.
    """
    if not rendezvous.managed:
        return rendezvous
    if rendezvous.several:
        return dataclasses.replace(rendezvous, store_generation=1)
    number, known = ((before.store_generation or 0), before.store_pod) if before is not None else (0, "")
    pods = sorted(etcd, key=lambda item: item[0].created_at)
    live = [pod.uid for pod, lost in pods if not lost]
    if live and live[-1] != known:
        number, known = number + (1 if known or not number else 0), live[-1]
    elif not live and any(pod.uid == known or not number for pod, _ in pods):
        number, known = number + 1, ""
    return dataclasses.replace(rendezvous, store_generation=number, store_pod=known)


def unknown_outcome(
    job: ElasticJob, rendezvous: RunRendezvous, view: RendezvousView, pods: Iterable[Pod]
) -> Cause | None:
    """Set if `job` may have ended while no operator was running: it has trained, and none of its worker pods is left.
    Its etcd, if it still exists, knows the outcome. `pods`: of workers and etcd. See
    docs/design/0006-no-finalizer.md."""
    if not job.has_plans or job.status.round == 0 or lifecycle.is_new_run(job, rendezvous.run):
        return None
    known: list[Pod] = []
    for pod in pods:
        if pod.index >= 0:
            return None
        known.append(pod)
    before = job.status.rendezvous
    # Of several members, any has the data.
    same_etcd = any(before is not None and (rendezvous.several or pod.uid == before.store_pod) for pod in known)
    if view.connectivity not in (Connectivity.CONNECTING, Connectivity.UNREACHABLE, Connectivity.NO_CREDENTIALS) or (
        rendezvous.managed and not same_etcd
    ):
        return None
    return cause(Reason.OUTCOME_UNKNOWN, endpoint=rendezvous.endpoint)


def is_superseded(pod: Pod, written: RendezvousStatus | None) -> bool:
    """Whether status says that another etcd replaces this pod: only then may the pod be deleted by force."""
    return written is not None and bool(written.store_generation) and written.store_pod != pod.uid


def wanted_spec(job: ElasticJob, *, draining: Iterable[str], max_restarts: int, store_generation: int = 0) -> SpecValue:
    """The membership hint for the agents. `max_restarts`: the limit of their own restart count."""
    hang = job.spec.failure_policy.hang
    return SpecValue(
        min=job.min_replicas,
        max=job.max_replicas,
        wanted=job.replicas,
        draining=sorted(draining),
        allowed=job.allowed_sizes,
        replica_size=job.replica_size,
        max_restarts=max_restarts,
        fail_before_first_step=fails_fast(job),
        hang_restarts=False if hang.action is HangAction.REPORT else None,
        hang_factor=hang.factor,
        hang_min=hang.min_seconds,
        generation=job.generation,
        on_partition=str(job.spec.rendezvous.on_partition),
        store_generation=store_generation,
    )


def needs_publishing(view: RendezvousView, wanted: SpecValue) -> str | None:
    """Why `wanted` must be written. None: etcd has it, or is unreachable."""
    if view.connectivity is not Connectivity.REACHABLE or view.spec == wanted:
        return None
    if view.spec is None:
        return "etcd has no spec of this run"
    if view.spec.draining != wanted.draining:
        several = f"{len(wanted.draining)} members" if wanted.draining else "no members"
        return f"draining {', '.join(wanted.draining) if 0 < len(wanted.draining) <= MOST_NAMES else several}"
    return "the desired membership changed"


def with_world_size(job: ElasticJob, plan: PlanValue | None) -> PlanValue | None:
    """`plan` with the number of its training processes; 0 if it cannot be known.

    The agents of elasticrun count them. Those of torchrun with etcd-v3 do not, because torch itself exchanges how many
    processes each agent starts: there the number is the job's --nproc-per-node, if that is a number.
    """
    procs = job.spec.workers.procs_per_worker
    if plan is None or plan.nproc or not isinstance(procs, int):
        return plan
    return dataclasses.replace(plan, world_size=plan.size * procs)


def silent_since(rendezvous: RunRendezvous, view: RendezvousView, etcd_pods: Iterable[Pod]) -> datetime.datetime | None:
    """When the job's own etcd last responded, if its readiness probe fails too. None: not known to be unhealthy."""
    pods = list(etcd_pods)
    if not rendezvous.managed or not pods or any(pod.ready for pod in pods):
        return None
    return view.answered_at


def may_be_cut_off(job: ElasticJob, view: RendezvousView, now: datetime.datetime) -> bool:
    """Whether a job that was training has an etcd that has not responded for a while. It is reachable, or known not to
    be, within seconds: an idle connection is probed."""
    if view.connectivity is not Connectivity.REACHABLE or view.answered_at is None:
        return False
    silent = now - view.answered_at >= datetime.timedelta(seconds=SILENT_SECONDS)
    return silent and job.status.is_true(ConditionType.RUNNING)


def rendezvous_ready(
    rendezvous: RunRendezvous,
    view: RendezvousView,
    etcd_pods: Sequence[Pod],
    *,
    was_ready: bool,
    kept: Cause | None = None,
    wait: Wait | None = None,
    trains: bool = False,
    now: datetime.datetime,
) -> ConditionUpdate | None:
    """None: nothing is known yet, leave the condition as it is. `kept`: why an etcd on a silent node is not
    replaced. `wait`: what the job's own etcd waits for. `trains`: as the condition Running says."""
    endpoint = rendezvous.endpoint
    if view.connectivity is Connectivity.CONNECTING:
        return None
    if view.connectivity is Connectivity.REACHABLE and view.unreadable:
        return update(False, Reason.VALUE_NOT_UNDERSTOOD, endpoint=endpoint, error=view.unreadable)
    silent = (
        silent_since(rendezvous, view, etcd_pods) if was_ready and view.connectivity is Connectivity.REACHABLE else None
    )
    if silent is not None and now - silent >= datetime.timedelta(seconds=SILENT_SECONDS):
        error = "its pod is not ready, and it stopped responding"
        return _unreachable(rendezvous, etcd_pods, error, trains=trains)
    if view.connectivity is Connectivity.REACHABLE:
        return update(True, Reason.ETCD_READY, endpoint=endpoint)
    if view.connectivity in _REFUSED:
        help_ = remedy(rendezvous.access, view, managed=rendezvous.managed)
        return update(False, _REFUSED[view.connectivity], endpoint=endpoint, error=view.error, remedy=help_)
    if kept is not None:
        return ConditionUpdate(status=False, reason=kept.reason, message=kept.message)
    pods = list(etcd_pods)
    if rendezvous.managed and (not was_ready or not any(pod.ready for pod in pods)):
        return _starting(endpoint, wait)
    return _unreachable(rendezvous, pods, view.error, trains=trains)


def _unreachable(rendezvous: RunRendezvous, pods: Sequence[Pod], error: str, *, trains: bool) -> ConditionUpdate:
    pod = next((candidate for candidate in pods if not candidate.ready), next(iter(pods), None))
    where, help_ = "", "check the address, NetworkPolicies, and whether that etcd is up."
    if rendezvous.managed and pod is not None:
        where = f" (Pod {pod.name}{f' on node {pod.node}' if pod.node else ''})"
        help_ = f"see its pod and its node: kubectl describe pod {pod.name}."
        help_ += " Training continues meanwhile." if trains else ""
    return update(
        False,
        Reason.ETCD_UNREACHABLE,
        endpoint=rendezvous.endpoint,
        where=where,
        error=error.rstrip("."),
        remedy=help_,
    )


def _starting(endpoint: str, wait: Wait | None) -> ConditionUpdate:
    starting = update(False, Reason.ETCD_STARTING, endpoint=endpoint)
    if wait is None:
        return starting
    reason = wait.reason if wait.serious else starting.reason
    return dataclasses.replace(starting, reason=reason, message=f"{starting.message} {wait.cause.message}")


def store_ready(rendezvous: RunRendezvous, worker: Pod | None) -> ConditionUpdate:
    """RendezvousReady with backend c10d. `worker`: worker pod 0; None: there is none."""
    ready = worker is not None and worker.running
    return update(ready, Reason.STORE_READY if ready else Reason.STORE_STARTING, endpoint=rendezvous.endpoint)
