"""The objects a job needs besides its pods: created if missing, patched if someone changed them, deleted if no longer
needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob_operator import gang, names
from elasticjob_operator.planning.actions import (
    Action,
    CreateCertificates,
    CreateObject,
    CreateRunUser,
    DeleteCertificates,
    DeleteObject,
    PatchObject,
)
from elasticjob_operator.planning.context import Context, existing_etcd
from elasticjob_operator.queue_state import Placement
from elasticjob_operator.resources.autoscaler import autoscaler
from elasticjob_operator.resources.certificates import certificates_secret, credentials_secret, peer_names, server_names
from elasticjob_operator.resources.drift import correction, exact_correction
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.etcd_members import etcd_disruption_budget
from elasticjob_operator.resources.network_policies import etcd_network_policy, worker_network_policy
from elasticjob_operator.resources.services import etcd_peers_service, etcd_service, workers_service
from elasticjob_operator.state import Kind, PodPhase

_OPTIONAL = {
    Kind.AUTOSCALER: "spec.scaling.metrics is empty",
    Kind.NETWORK_POLICY: "the job needs no such NetworkPolicy, or the operator is set to create none",
    **dict.fromkeys(gang.KINDS, "its run has ended, or the job needs no gang"),
}
"""Kinds that are deleted from a running job that no longer needs them, and why."""

NAMED_FROM_THE_START = 100
"""The most worker pods that have DNS names before they run."""


def missing_objects(context: Context) -> list[Action]:
    job, state, desired = context.job, context.state, list(_desired(context))
    names_of_desired = {(kind, body["metadata"]["name"]) for kind, body in desired}
    actions: list[Action] = [
        DeleteObject(kind=item.kind, name=item.name, uid=item.uid, reason=_OPTIONAL[item.kind])
        for item in state.objects.values()
        if item.kind in _OPTIONAL and (item.kind, item.name) not in names_of_desired and not item.terminating
    ]
    if context.secret and existing_etcd(job, state) is None and not context.workers:
        # Created before everything else: worker pods that exist trust no others.
        actions.append(
            CreateCertificates(
                body=certificates_secret(job, context.secret),
                dns_names=server_names(job),
                peer_names=peer_names(job),
                reason="the job's etcd needs it",
            )
        )
    for kind, body in desired:
        name = body["metadata"]["name"]
        known = state.objects.get((kind, name))
        if known is None:
            actions.append(CreateObject(kind=kind, body=body, reason="the job needs it"))
        elif not known.terminating and (patch := _correction(kind, body, known.body)):
            actions.append(
                PatchObject(kind=kind, name=name, uid=known.uid, patch=patch, reason="differs from the desired state")
            )
    return actions


def etcd_to_replace(context: Context) -> list[Action]:
    """Its certificates were deleted. The next one gets new ones."""
    reason, etcd = f"Secret {context.secret} was deleted", existing_etcd(context.job, context.state)
    if etcd is None:
        return []
    return [
        DeleteCertificates(name=context.secret, reason=reason),
        DeleteObject(kind=etcd.kind, name=etcd.name, uid=etcd.uid, reason=reason),
    ]


def lacks_network_policy(context: Context) -> bool:
    """Whether a NetworkPolicy is missing: no pod that it protects is created before it exists."""
    wanted = {(kind, body["metadata"]["name"]) for kind, body in _network_policies(context)}
    return not wanted <= context.state.objects.keys()


def lacks_pod_group(context: Context) -> bool:
    """Whether worker pods would be scheduled one by one, because the group that they name does not exist yet."""
    if context.gang is None:
        return False
    return (context.gang.kind, names.pod_group(context.job.name, context.rendezvous.run)) not in context.state.objects


def run_user(context: Context) -> list[Action]:
    """The user of the run in the shared etcd, before the worker pods that log in as it: whether it exists is known only
    to etcd."""
    job, access, run = context.job, context.rendezvous.access, context.rendezvous.run
    if not access.user or access.secret is None:
        return []
    earlier = names.run_user(names.run_id(job.uid, run - 1)) if run > names.FIRST_RUN else ""
    return [
        CreateRunUser(
            body=credentials_secret(job, access.mounted),
            user=access.user,
            run_id=context.rendezvous.run_id,
            credentials=access.secret,
            earlier_user=earlier,
            reason="worker pods log in as it",
        )
    ]


def _correction(kind: Kind, desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    patch = correction(_to_compare(desired, known), known)
    if kind in gang.FIXED:
        patch.pop("spec", None)
    if kind is not Kind.NETWORK_POLICY:
        return patch
    spec = exact_correction(desired["spec"], known.get("spec") or {})
    return {key: value for key, value in {**patch, "spec": spec}.items() if value}


def _to_compare(desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are patched if they differ.

    A StatefulSet that this release would build differently was created by another release. To patch its pod template
    would restart the etcd of every job in the cluster, so that template stays until the job ends. Everything else is
    patched, regardless of who changed it.
    """
    metadata = {key: value for key, value in desired["metadata"].items() if key != "annotations"}
    applied = (desired["metadata"].get("annotations") or {}).get(names.ANNOTATION_APPLIED, "")
    # The claims of an existing StatefulSet cannot be changed.
    spec = {key: value for key, value in desired["spec"].items() if key != "volumeClaimTemplates"}
    if applied and _at(known, "metadata", "annotations").get(names.ANNOTATION_APPLIED, "") != applied:
        spec = {key: value for key, value in spec.items() if key != "template"}
    return {"metadata": metadata, "spec": spec}


def _desired(context: Context) -> Iterator[tuple[Kind, dict[str, Any]]]:
    job = context.job
    yield from _network_policies(context)
    if _wants_names(context):
        yield Kind.SERVICE, workers_service(job)
    if context.rendezvous.managed:
        yield Kind.SERVICE, etcd_service(job)
        yield (
            Kind.STATEFUL_SET,
            etcd_stateful_set(
                job,
                _etcd_image(context),
                context.settings.etcd_pod,
                context.secret,
                context.rendezvous.run,
                context.grant.etcd if context.grant is not None else Placement(),
            ),
        )
        if job.etcd_members > 1:
            yield Kind.SERVICE, etcd_peers_service(job)
            yield Kind.DISRUPTION_BUDGET, etcd_disruption_budget(job)
    if context.gang is not None:
        yield context.gang.kind, context.gang.pod_group(job, context.rendezvous.run)
    if job.spec.scaling.metrics:
        yield Kind.AUTOSCALER, autoscaler(job)


def _wants_names(context: Context) -> bool:
    """Whether the worker pods get DNS names, which elasticrun does not need.

    For each change of a pod, Kubernetes lists all pods of its Service and writes its endpoints again. While a thousand
    pods start, that takes the control plane more time than the pods themselves, so a large job gets its Service when
    they run.
    """
    job = context.job
    starts = context.scaling.create or any(pod.phase is PodPhase.PENDING for pod, _ in context.staying)
    return (
        job.replicas <= NAMED_FROM_THE_START
        or not starts
        or not job.has_plans
        or job.status.round > 0
        or (Kind.SERVICE, names.workers_service(job.name)) in context.state.objects
    )


def _network_policies(context: Context) -> Iterator[tuple[Kind, dict[str, Any]]]:
    job, wanted = context.job, context.settings.network_policies
    if wanted is None:
        return
    workers = worker_network_policy(job, metrics_port=wanted.metrics_port, metrics_from=wanted.metrics_from)
    if workers is not None:
        yield Kind.NETWORK_POLICY, workers
    if context.rendezvous.managed:
        yield Kind.NETWORK_POLICY, etcd_network_policy(job, operator=wanted.operator)


def _etcd_image(context: Context) -> str:
    """The image that the etcd already has: a new default in a new release of the operator must not restart it."""
    known = context.state.objects.get((Kind.STATEFUL_SET, names.etcd_name(context.job.name)))
    containers = _at(known.body, "spec", "template", "spec").get("containers") if known else None
    running = next(
        (container.get("image") for container in containers or [] if container.get("name") == names.ETCD_CONTAINER),
        None,
    )
    return running or context.settings.etcd_image


def _at(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        body = body.get(key) or {}
    return body
