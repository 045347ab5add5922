"""The objects a job needs besides its pods: created if missing, patched if someone changed them, deleted if no longer
needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.planning.actions import Action, CreateObject, DeleteObject, PatchObject
from elasticjob_operator.planning.context import Context
from elasticjob_operator.resources.autoscaler import autoscaler
from elasticjob_operator.resources.drift import correction
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.services import etcd_service, workers_service
from elasticjob_operator.state import Kind


def missing_objects(context: Context) -> list[Action]:
    job, state = context.job, context.state
    actions: list[Action] = []
    if not job.spec.scaling.metrics:
        actions += [
            DeleteObject(kind=each.kind, name=each.name, uid=each.uid, reason="spec.scaling.metrics is empty")
            for each in state.objects.values()
            if each.kind is Kind.AUTOSCALER and not each.terminating
        ]
    for kind, body in _desired(context):
        name = body["metadata"]["name"]
        known = state.objects.get((kind, name))
        if known is None:
            if (kind.value, name) not in state.names_in_use:
                actions.append(CreateObject(kind=kind, body=body, reason="the job needs it"))
        elif not known.terminating and (patch := _correction(body, known.body)):
            actions.append(
                PatchObject(kind=kind, name=name, uid=known.uid, patch=patch, reason="differs from the desired state")
            )
    return actions


def _correction(desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return correction(_to_compare(desired, known), known)


def _to_compare(desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are patched if they differ.

    A StatefulSet that this release would build differently was created by another release. To patch its pod template
    would restart the etcd of every job in the cluster, so that template stays until the job ends. Everything else is
    patched, regardless of who changed it.
    """
    metadata = {key: value for key, value in desired["metadata"].items() if key != "annotations"}
    applied = (desired["metadata"].get("annotations") or {}).get(names.ANNOTATION_APPLIED, "")
    spec = desired["spec"]
    if applied and _at(known, "metadata", "annotations").get(names.ANNOTATION_APPLIED, "") != applied:
        spec = {key: value for key, value in spec.items() if key != "template"}
    return {"metadata": metadata, "spec": spec}


def _desired(context: Context) -> Iterator[tuple[Kind, dict[str, Any]]]:
    job = context.job
    yield Kind.SERVICE, workers_service(job)
    if context.rendezvous.managed:
        yield Kind.SERVICE, etcd_service(job)
        yield Kind.STATEFUL_SET, etcd_stateful_set(job, _etcd_image(context), context.settings.etcd_pod)
    if job.spec.scaling.metrics:
        yield Kind.AUTOSCALER, autoscaler(job)


def _etcd_image(context: Context) -> str:
    """The image that the etcd already has: a new default in a new release of the operator must not restart it."""
    known = context.state.objects.get((Kind.STATEFUL_SET, names.etcd_name(context.job.name)))
    containers = _at(known.body, "spec", "template", "spec").get("containers") if known else None
    running = next((each.get("image") for each in containers or [] if each.get("name") == names.ETCD_CONTAINER), None)
    return running or context.settings.etcd_image


def _at(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        body = body.get(key) or {}
    return body
