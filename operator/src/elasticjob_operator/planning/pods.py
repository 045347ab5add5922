"""Which pods are created, deleted and replaced, and what is published to the agents."""

from __future__ import annotations

import collections
import datetime
import itertools
from collections.abc import Container, Iterator, Sequence
from typing import Any

from elasticjob_api import FailingNode
from elasticjob_runtime.contract import LocationsValue

from elasticjob_operator import names
from elasticjob_operator.planning.actions import (
    Action,
    CreateCertificates,
    CreateObject,
    CreatePod,
    CreateRunUser,
    DeletePod,
    DryRunCreate,
    EvictMember,
    PatchPod,
    PublishLocations,
    PublishSpec,
    ReadEvents,
    ReadHeartbeat,
)
from elasticjob_operator.planning.context import Assessment, Context
from elasticjob_operator.planning.objects import (
    etcd_to_replace,
    lacks_network_policy,
    lacks_pod_group,
    missing_objects,
    run_user,
)
from elasticjob_operator.policies.locations import locations
from elasticjob_operator.policies.node_avoidance import avoided
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.policies.rendezvous import is_superseded, needs_publishing, wanted_spec
from elasticjob_operator.queueing.grant import Slot
from elasticjob_operator.resources.injection import InjectionWay, inject
from elasticjob_operator.resources.placement import place
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.state import POD, SECRET, Connectivity, Kind, Pod, Rejection

Failing = Sequence[FailingNode]


def delete_pod(pod: Pod, reason: str, *, force: bool = False) -> DeletePod:
    return DeletePod(name=pod.name, uid=pod.uid, force=force, reason=reason)


def dry_run_create(context: Context, reason: str) -> Action:
    return DryRunCreate(
        template_hash=context.template.label,
        image_volume=context.injection.way is InjectionWay.IMAGE_VOLUME,
        body=_worker(context, 0),
        reason=reason,
    )


def _worker(context: Context, index: int, avoid: Sequence[str] = ()) -> dict[str, Any]:
    rendezvous, settings = context.rendezvous, context.settings
    pod = worker_pod(
        context.job,
        index=index,
        run=rendezvous.run,
        attempt=rendezvous.attempt,
        endpoint=rendezvous.endpoint,
        template_hash=context.template.label,
        avoid=avoid,
        certificates_secret=context.secret,
        credentials_secret=rendezvous.access.mounted,
    )
    return inject(pod, context.injection.way, settings.runtime_image, settings.runtime_pull_policy)


def read_heartbeats(context: Context) -> list[Action]:
    reason = "its pods are lost if its kubelet does not respond"
    return [ReadHeartbeat(node=node, reason=reason) for node in context.nodes_to_verify]


def read_events(context: Context) -> list[Action]:
    reason = "they may say what the job waits for"
    return [
        ReadEvents(kind=kind, name=name, reason=reason) for (kind, name), due in context.questions if due <= context.now
    ]


def creations(assessment: Assessment, failing: Failing) -> tuple[list[Action], Rejection | None]:
    """(creates, deletes and patches of what the job needs, the last create failure if it is about any of it). Kinds
    that failed are not created again before the time of the next attempt."""
    if not assessment.may_have_pods or (assessment.left_behind and not assessment.workers):
        return [], None
    if assessment.certificates_lost:
        return etcd_to_replace(assessment), None
    state = assessment.state
    wanted = missing_objects(assessment)
    held = assessment.unknown_outcome or assessment.waits_for_etcd
    wants_pods = bool(assessment.acceptance.status and assessment.scaling.create) and held is None
    if lacks_network_policy(assessment):
        # No pod is reachable before it is protected: its etcd and worker pods follow in the next plan.
        wanted = [action for action in wanted if _created_kind(action) not in (SECRET, Kind.STATEFUL_SET.value)]
        wants_pods = False
    wants_pods = wants_pods and not lacks_pod_group(assessment)
    wanted = [*wanted, *(run_user(assessment) if wants_pods else [])]
    kinds = {kind for action in wanted if (kind := _created_kind(action))} | ({POD} if wants_pods else set())
    failure = state.rejection if state.rejection is not None and state.rejection.kinds & kinds else None
    if failure is not None and Kind.STATEFUL_SET.value in failure.kinds & kinds:
        wants_pods = False  # without their etcd, or with another one of that name, they would fail
    delayed = failure.kinds if failure is not None and assessment.now < failure.retry_at else frozenset()
    if SECRET in delayed:
        # everything else mounts or follows it
        return [action for action in wanted if not _created_kind(action)], failure
    wanted = [action for action in wanted if _created_kind(action) not in delayed]
    return wanted + (_create_pods(assessment, failing) if wants_pods and POD not in delayed else []), failure


def _created_kind(action: Action) -> str:
    """Empty: it creates nothing."""
    match action:
        case CreateCertificates() | CreateRunUser():
            return SECRET
        case CreateObject():
            return action.kind.value
        case _:
            return ""


def _create_pods(context: Context, failing: Failing) -> list[Action]:
    job, avoid, moment = context.job, avoided(context.job, failing), context.now.isoformat()
    unconfirmed, name, uid = context.state.unconfirmed, job.name, job.uid
    reason = f"{job.replicas} worker pods are requested"
    actions: list[Action] = []
    made: dict[tuple[bool, int], dict[str, Any]] = {}  # of each slot one for worker pod 0, and one for all others
    for index, slot in zip(context.scaling.create, _slots(context), strict=False):
        kind = index == 0, id(slot)
        if kind not in made:
            made[kind] = _worker_of_slot(context, index, avoid, slot)
        pod_name = unconfirmed.get(index) or names.worker_name(name, index, uid, moment)
        actions.append(CreatePod(job=name, like=made[kind], index=index, name=pod_name, reason=reason))
    return actions


def _worker_of_slot(context: Context, index: int, avoid: Sequence[str], slot: Slot | None) -> dict[str, Any]:
    body = _worker(context, index, avoid)
    if context.gang is not None:
        context.gang.decorate(body, names.pod_group(context.job.name, context.rendezvous.run))
    if slot is not None:
        body["metadata"]["labels"][names.LABEL_WORKLOAD] = slot.workload
        place(body, slot.placement)
    return body


def _slots(context: Context) -> Iterator[Slot | None]:
    """For each new worker pod, the Workload that admits it; None: the job is in no queue, or goes on without it. Ends
    when all that are admitted are taken."""
    grant = context.grant
    if grant is None or not grant.slots:
        yield from itertools.repeat(None)
        return
    taken = collections.Counter(
        pod.workload or names.base_workload(context.job.name)
        for pod, status in context.staying
        if status.holds_index and not pod.over
    )
    for slot in grant.slots:
        yield from itertools.repeat(slot, max(0, slot.count - taken[slot.workload]))


def removals(assessment: Assessment) -> list[Action]:
    """Deletes surplus pods, pods of earlier runs, and an etcd that was lost with its node: a StatefulSet never deletes
    such a pod."""
    actions: list[Action] = [
        delete_pod(pod, status.reason, force=True)
        for pod, status in assessment.etcd
        if status.state is PodState.LOST and is_superseded(pod, assessment.job.status.rendezvous)
    ]
    scaling, spec = assessment.scaling, assessment.view.spec
    if scaling.surplus or scaling.twins:
        statuses = {pod.uid: status for pod, status in assessment.workers}
        told = frozenset(spec.draining) if spec is not None else frozenset()
        for pods, reason in (
            (scaling.surplus, "fewer worker pods are requested"),
            (scaling.twins, "another pod has its index"),
        ):
            actions += [
                delete_pod(pod, reason)
                for pod in pods
                if not pod.terminating and _may_leave(assessment, pod, statuses[pod.uid], told)
            ]
    actions += [
        delete_pod(pod, "of an earlier run or attempt")
        for pod, status in assessment.stale
        if not pod.terminating and status.state is not PodState.LOST
    ]
    for pod, status in assessment.not_live:
        if status.state is PodState.LOST:
            actions += _evict(assessment, pod, status.reason)
    return [*actions, *lost_pods(assessment), *_give_up_host_names(assessment)]


def _give_up_host_names(assessment: Assessment) -> list[Action]:
    """Takes pods that have been replaced before they have ended out of their Service. It publishes addresses that are
    not ready, and so would publish theirs under the host name of their replacements."""
    ending = [pod for pod, status in assessment.not_live if status.state is PodState.TERMINATING and pod.in_dns]
    if not ending:
        return []
    replaced = {pod.index for pod, status in assessment.staying if status.holds_index} | {*assessment.scaling.create}
    reason = "its replacement has the host name"
    return [
        PatchPod(name=pod.name, uid=pod.uid, patch={"metadata": {"labels": {names.LABEL_JOB_UID: None}}}, reason=reason)
        for pod in ending
        if pod.index in replaced
    ]


def lost_pods(context: Context) -> list[Action]:
    """Deletes pods that were lost with their nodes: nothing else does, and they hold quota, volumes, and the names of
    the etcd's pods."""
    etcd = context.etcd if context.job.is_deleting else ()
    return [
        delete_pod(pod, status.reason, force=True)
        for pod, status in (*context.not_live, *context.stale, *context.leftovers, *etcd)
        if status.state is PodState.LOST
    ]


def _may_leave(assessment: Assessment, pod: Pod, status: PodStatus, told: Container[str]) -> bool:
    """A failed pod must be counted before it is deleted. The agents must know of the removal of a pod that trains,
    unless etcd is unreachable. `told`: of whose removal they know."""
    if status.state is PodState.FAILED:
        return assessment.is_counted(pod, status)
    if status.state is PodState.SUCCEEDED:
        return True
    view = assessment.view
    if not assessment.job.has_plans or view.connectivity not in (Connectivity.CONNECTING, Connectivity.REACHABLE):
        return True
    return view.connectivity is Connectivity.REACHABLE and pod.name in told


def replacements(assessment: Assessment) -> tuple[list[Action], list[datetime.datetime]]:
    """(deletes of failed pods, times of later replacements)"""
    if assessment.ends_attempt:
        return [], []  # once status has the next attempt, all pods are of an earlier one
    actions: list[Action] = []
    for pod, _, found in assessment.due:
        if found.delete:
            actions += [delete_pod(pod, found.reason), *_evict(assessment, pod, found.reason)]
    return actions, [found.requeue_at for _, _, found in assessment.due if found.requeue_at is not None]


def publication(assessment: Assessment) -> list[Action]:
    draining = [pod.name for pod in (*assessment.leaving, *assessment.scaling.twins) if not pod.ended]
    wanted = wanted_spec(
        assessment.job,
        draining=draining,
        max_restarts=assessment.budget.agents_limit,
        store_generation=assessment.rendezvous.store_generation,
    )
    reason = needs_publishing(assessment.view, wanted)
    spec: list[Action] = [PublishSpec(spec=wanted, reason=reason)] if reason else []
    return [*spec, *_locations(assessment)]


def _locations(assessment: Assessment) -> list[Action]:
    """Only where they say something about the order of the ranks, and are not known there yet."""
    if assessment.view.connectivity is not Connectivity.REACHABLE or not assessment.job.has_plans:
        return []
    known = assessment.view.locations
    pods = [pod for pod, status in assessment.staying if status.holds_index]
    found = locations(pods, assessment.state.nodes or {})
    if not found or (known is not None and found.items() <= known.locations.items()):
        return []
    return [PublishLocations(locations=LocationsValue(locations=found), reason="ranks follow the network's topology")]


def _evict(context: Context, pod: Pod, reason: str) -> list[Action]:
    return [EvictMember(member=pod.name, reason=reason)] if context.view.connectivity is Connectivity.REACHABLE else []
