"""What the planning functions share: a job, its observed state, and its pods as classified."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
from collections.abc import Callable
from typing import Any

from elasticjob_api import ElasticJob, OnPartition, RendezvousBackend

from elasticjob_operator import names
from elasticjob_operator.gang import provider_of
from elasticjob_operator.gang.provider import Provider
from elasticjob_operator.planning.actions import Target
from elasticjob_operator.planning.left_behind import left_behind
from elasticjob_operator.policies import events_to_read, waits
from elasticjob_operator.policies.admission import Acceptance
from elasticjob_operator.policies.condition_updates import Cause
from elasticjob_operator.policies.etcd_access import waits_for_etcd
from elasticjob_operator.policies.events_to_read import Question
from elasticjob_operator.policies.failures import PodFailure
from elasticjob_operator.policies.injection import Injection, injection
from elasticjob_operator.policies.lifecycle import RunTemplate, outlived_its_template, template_of_run
from elasticjob_operator.policies.node_loss import LossRules, Nodes, count_nodes, tolerated_seconds
from elasticjob_operator.policies.pod_state import PodState, PodStatus, pod_status
from elasticjob_operator.policies.rendezvous import (
    RunRendezvous,
    may_be_cut_off,
    rendezvous_of,
    unknown_outcome,
    with_store,
)
from elasticjob_operator.policies.replacement import Replacement, closes_rendezvous, replacement
from elasticjob_operator.policies.restart_budget import Budget, is_counted
from elasticjob_operator.policies.scale_up_delay import TargetSize, delay_scale_up
from elasticjob_operator.policies.scaling import Scaling, scale
from elasticjob_operator.policies.waits import Wait
from elasticjob_operator.queueing.grant import Grant
from elasticjob_operator.resources.etcd import secret_of
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import LONG_AGO, POD, JobState, Kind, OwnedObject, Pod, PodPhase, RendezvousView

Pods = tuple[tuple[Pod, PodStatus], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    job: ElasticJob
    """Its replicas are those of `size`."""
    state: JobState
    settings: Settings
    now: datetime.datetime
    size: TargetSize
    rendezvous: RunRendezvous
    template: RunTemplate
    workers: Pods
    """Worker pods of the current run and attempt, by index."""
    stale: Pods
    """Worker pods of earlier runs, and of earlier attempts of this run."""
    etcd: Pods
    """Pods of the job's own etcd."""
    leftovers: Pods
    """Pods that the garbage collector has deleted with a job that had the same name."""
    scaling: Scaling
    secret: str = ""
    """Name of the Secret with the certificates of the job's own etcd; empty: it has none, or it uses no TLS."""
    certificates_lost: bool = False
    """That Secret was deleted, and a pod cannot start without it."""
    unknown_outcome: Cause | None = None
    """Why no worker pod is created: the job may have ended while no operator was running."""
    left_behind: Wait | None = None
    """Why nothing is created: a deleted job of that name left its objects."""
    grant: Grant | None = None
    """What its queue allows. None: it is in no queue, or needs none now."""

    @property
    def view(self) -> RendezvousView:
        return self.state.rendezvous

    @functools.cached_property
    def staying(self) -> Pods:
        """Worker pods of the current run that hold a wanted index, or have not been replaced yet."""
        removed = {pod.uid for pod in (*self.scaling.surplus, *self.scaling.twins)}
        if not removed and not self.not_live:
            return self.workers
        return tuple(
            (pod, status)
            for pod, status in self.workers
            if pod.uid not in removed and (status.holds_index or pod.index in self.scaling.create)
        )

    @functools.cached_property
    def not_live(self) -> Pods:
        """Worker pods of the current run that are more than pending or running: few, of thousands."""
        return tuple(worker for worker in self.workers if worker[1].state is not PodState.LIVE)

    @functools.cached_property
    def leaving(self) -> tuple[Pod, ...]:
        """Worker pods that are removed because fewer are wanted."""
        if len(self.staying) == len(self.workers):
            return ()
        staying = {pod.uid for pod, _ in self.staying}
        kept = {pod.index for pod, status in self.staying if status.holds_index}
        return tuple(
            pod
            for pod, status in self.workers
            if pod.uid not in staying and pod.index not in kept and status.state is not PodState.LOST
        )

    @property
    def gang(self) -> Provider | None:
        """The scheduler that starts the worker pods of this run together."""
        provider = provider_of(self.job, self.state.served)
        return provider if provider is not None and provider.kind in self.state.served else None

    @property
    def all_pods(self) -> Pods:
        return (*self.workers, *self.stale, *self.etcd, *self.leftovers)

    @property
    def injection(self) -> Injection:
        """How the runtime gets into new worker pods."""
        nodes = _nodes(self.state)
        return injection(
            self.job,
            image=self.settings.runtime_image,
            nodes=nodes.node_counts if nodes is not None else None,
            rejected=self.state.image_volume_rejected,
            pods=[pod for pod, _ in self.workers],
        )

    @property
    def waits_for_etcd(self) -> Cause | None:
        """Why wanted worker pods are not created, if etcd has not accepted the job's credentials."""
        if not self.scaling.create:
            return None
        if self.rendezvous.wait is not None:
            return self.rendezvous.wait.cause
        return waits_for_etcd(self.job, self.rendezvous.access, self.view, self.rendezvous.endpoint)

    @property
    def cut_off(self) -> bool:
        """Etcd may be unreachable."""
        return may_be_cut_off(self.job, self.view, self.now)

    @property
    def etcd_wait(self) -> Wait | None:
        """What the job's own etcd waits for, or its run for a tier."""
        if self.rendezvous.wait is not None:
            return self.rendezvous.wait
        if self.left_behind or self.certificates_lost:
            return self.left_behind
        stateful_set, pods = self._own_etcd
        return waits.of_etcd(self.job, stateful_set, pods, self.state.leftovers, self.state.explanations)

    @functools.cached_property
    def questions(self) -> list[tuple[Question, datetime.datetime]]:
        """Whose Events must be read, and from when on."""
        workers = [
            pod for pod, status in self.workers if pod.phase is PodPhase.PENDING and status.state is PodState.LIVE
        ]
        found = []
        for question, due in events_to_read.questions(self.job, *self._own_etcd, workers):
            answer = self.state.explanations.get(question)
            found.append((question, due if answer is None else max(due, events_to_read.read_again_at(answer))))
        return found

    @property
    def _own_etcd(self) -> tuple[OwnedObject | None, list[Pod]]:
        """(the StatefulSet, its pods that are neither lost nor being deleted)"""
        stateful_set = existing_etcd(self.job, self.state) if self.rendezvous.managed else None
        return stateful_set, [pod for pod, status in self.etcd if status.state is PodState.LIVE]

    @property
    def nodes_to_verify(self) -> list[str]:
        """Nodes whose heartbeat must be read before their pods can be lost."""
        return sorted({status.verify_node for _, status in self.all_pods if status.verify_node})

    @property
    def kept(self) -> Cause | None:
        """Why pods on a silent node are not replaced; the etcd's come before the workers'."""
        pods = (*self.etcd, *self.staying, *self.stale)
        return next((status.kept for _, status in pods if status.kept is not None), None)

    @property
    def timers(self) -> list[datetime.datetime]:
        return [status.requeue_at for _, status in self.all_pods if status.requeue_at is not None]

    @property
    def target(self) -> Target | None:
        """The rendezvous to follow. The etcd of a deleted job is none."""
        if not self.rendezvous.followed or (self.left_behind and self.rendezvous.managed and not self.workers):
            return None
        ready = ",".join(pod.uid for pod, _ in self.etcd if pod.ready) if self.rendezvous.managed else ""
        if ready and self.rendezvous.several:
            ready = "members"  # one that returns is no other etcd
        return Target(
            endpoint=self.rendezvous.endpoint,
            run_id=self.rendezvous.run_id,
            tls=self.rendezvous.tls,
            secret=self.rendezvous.access.secret,
            user=self.rendezvous.access.user,
            ready_store_pod=ready,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assessment(Context):
    """A job that has not ended, with what is decided before anything else."""

    acceptance: Acceptance
    budget: Budget

    @property
    def may_have_pods(self) -> bool:
        return bool(self.acceptance.status or self.workers)

    @functools.cached_property
    def due(self) -> tuple[tuple[Pod, PodFailure, Replacement], ...]:
        """Failed pods, with when each is replaced."""
        policy, counted = self.job.spec.failure_policy, self.job.status.last_failure
        return tuple(
            (pod, failure, replacement(pod, failure, policy, budget=self.budget, counted=counted, now=self.now))
            for pod, status in self.staying
            if (failure := status.failure) is not None
        )

    @functools.cached_property
    def ends_attempt(self) -> bool:
        """A failed pod is replaced now, or leaves as surplus, that has closed the rendezvous. Not once a pod has
        succeeded: the group ends, and the others have their grace period."""
        if not self.due and not self.scaling.surplus:
            return False
        if any(status.state is PodState.SUCCEEDED for _, status in self.staying):
            return False
        replaced = [failure for _, failure, found in self.due if found.delete]
        surplus = {pod.uid for pod in self.scaling.surplus} if self.staying else set()
        leaving = [
            status.failure
            for pod, status in self.workers
            if pod.uid in surplus and status.failure is not None and self.is_counted(pod, status)
        ]
        return any(closes_rendezvous(self.job, failure) for failure in (*replaced, *leaving))

    def is_counted(self, pod: Pod, status: PodStatus) -> bool:
        """Whether the failure of `pod` is counted in the status that is written."""
        failure, written = status.failure, self.job.status
        return failure is None or is_counted(pod, failure, written.last_failure, self.budget.latest)


def assess(context: Context, acceptance: Acceptance, budget: Budget) -> Assessment:
    known: dict[str, Any] = {field.name: getattr(context, field.name) for field in dataclasses.fields(Context)}
    return Assessment(**known, acceptance=acceptance, budget=budget)


def of_earlier_attempts(context: Context) -> list[tuple[Pod, PodFailure]]:
    """Failures of this run's pods that became known after the attempt had ended."""
    return [
        (pod, status.failure)
        for pod, status in context.stale
        if pod.run == context.rendezvous.run and not pod.terminating and status.failure is not None
    ]


def classify(
    job: ElasticJob, state: JobState, settings: Settings, now: datetime.datetime, grant: Grant | None = None
) -> Context:
    """`grant`: what the queue of the job allows; `job` is within it."""
    size = delay_scale_up(job, now)
    job = job.with_replicas(size.replicas)
    status_of, status_of_etcd = _pod_statuses(job, state, settings, now)
    pods = [pod for pod in state.pods if pod.component == names.COMPONENT_WORKER]
    own_etcd = existing_etcd(job, state)
    secret = secret_of(own_etcd.body) if own_etcd is not None else ""
    tls = bool(secret) if own_etcd is not None else None
    rendezvous = rendezvous_of(job, settings, max((pod.run for pod in pods), default=0), tls, state.tiers)
    template = template_of_run(job, rendezvous.run, (pod for pod in pods if pod.run == rendezvous.run), hash_of(job))
    since = own_etcd.created_at if own_etcd is not None else None
    lost = _is_missing(secret, since or LONG_AGO, job, state)
    active = not job.is_suspended and not job.status.is_finished
    if outlived_its_template(job, template) or (lost and active and any(pod.run == rendezvous.run for pod in pods)):
        # Pods with other certificates are of another run, and none is created before those of the last one have ended.
        rendezvous = rendezvous_of(job, settings, rendezvous.run + 1, tls, state.tiers)
        template = template_of_run(job, rendezvous.run, [], hash_of(job))
    all_workers = tuple([(pod, status_of(pod)) for pod in sorted(pods, key=operator.attrgetter("index"))])
    run, attempt = rendezvous.run, rendezvous.attempt
    stale = tuple([worker for worker in all_workers if worker[0].run != run or worker[0].attempt != attempt])
    workers = (
        tuple([worker for worker in all_workers if worker[0].run == run and worker[0].attempt == attempt])
        if stale
        else all_workers
    )
    etcd = tuple((pod, status_of_etcd(pod)) for pod in state.pods if pod.component == names.COMPONENT_ETCD)
    rendezvous = with_store(
        rendezvous, job.status.rendezvous, [(pod, status.state is PodState.LOST) for pod, status in etcd]
    )
    # Worker pod 0 hosts the store of c10d.
    keep = frozenset({0} if job.spec.rendezvous.backend is RendezvousBackend.C10D else ())
    most = {**grant.most, **dict.fromkeys(grant.leaving, 0)} if grant is not None else {}
    scaling = scale(
        job.replicas, workers, keep=keep, most=most, unit=job.replica_size or 1, replicas=state.rendezvous.replicas
    )
    return Context(
        job=job,
        state=state,
        settings=settings,
        now=now,
        size=size,
        rendezvous=rendezvous,
        template=template,
        workers=workers,
        stale=stale,
        etcd=etcd,
        leftovers=tuple((pod, status_of(pod)) for pod in state.leftovers if pod.terminating and pod.job_uid),
        # Pods of two runs together would be more than wanted.
        scaling=dataclasses.replace(scaling, create=()) if stale else scaling,
        secret=(secret or names.certificates_name(job.name, job.uid, rendezvous.run)) if rendezvous.tls else "",
        certificates_lost=lost,
        unknown_outcome=unknown_outcome(job, rendezvous, state.rendezvous, (pod for pod, _ in (*all_workers, *etcd))),
        left_behind=left_behind(job, state),
        grant=grant,
    )


def _is_missing(secret: str, since: datetime.datetime, job: ElasticJob, state: JobState) -> bool:
    """Whether the kubelet says so of a pod that waits to start: the operator may not read Secrets. What was said before
    `since`, when etcd was created, is about an earlier Secret of that name."""
    if not secret.startswith(names.certificates_prefix(job.name, job.uid)):
        return False  # it has none, or a user changed the StatefulSet
    waiting = {(POD, pod.name): pod.created_at for pod in state.pods if pod.phase is PodPhase.PENDING}
    return any(
        asked in waiting
        and answer.at >= max(since, waiting[asked])
        and f'secret "{secret}" not found' in answer.message
        for asked, answer in state.explanations.items()
    )


def existing_etcd(job: ElasticJob, state: JobState) -> OwnedObject | None:
    """The StatefulSet of the job's own etcd, unless it is being deleted."""
    found = state.objects.get((Kind.STATEFUL_SET, names.etcd_name(job.name)))
    return None if found is None or found.terminating else found


def _pod_statuses(
    job: ElasticJob, state: JobState, settings: Settings, now: datetime.datetime
) -> tuple[Callable[[Pod], PodStatus], Callable[[Pod], PodStatus]]:
    """(status of a worker pod, status of an etcd pod)"""
    nodes, failure_rules = _nodes(state), job.spec.failure_policy.rules
    tolerations = (job.spec.workers.template.get("spec") or {}).get("tolerations")
    rules = LossRules(
        lost_seconds=tolerated_seconds(tolerations or [], settings.node_lost_seconds),
        settle_seconds=settings.node_settle_seconds,
        on_partition=job.spec.rendezvous.on_partition,
        fenced=job.has_plans,
    )
    # The next etcd has another generation, so a group that still trains with this one does no harm: do not wait for it.
    rules_of_etcd = dataclasses.replace(rules, fenced=False, lost_seconds=settings.node_lost_seconds)
    if job.etcd_members > 1:
        # A member that still runs on a silent node must not meet a second one with its name. The others go on without.
        rules_of_etcd = dataclasses.replace(rules_of_etcd, on_partition=OnPartition.CONSISTENT)
    return (
        lambda pod: pod_status(pod, nodes, rules, now, failure_rules),
        lambda pod: pod_status(pod, nodes, rules_of_etcd, now),
    )


def _nodes(state: JobState) -> Nodes | None:
    if state.nodes is None:
        return None
    node_counts = state.node_counts if state.node_counts is not None else count_nodes(state.nodes)
    return Nodes(
        by_name=state.nodes,
        watched_since=state.nodes_watched_since,
        heartbeats=state.heartbeats,
        node_counts=node_counts,
    )
