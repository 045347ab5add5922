"""The objects beside its pods that a job needs: created where missing, put right where somebody changed them, else
taken away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob
from elasticjob_operator.planning.actions import Action, CreateObject, DeleteObject, PatchObject
from elasticjob_operator.policies.rendezvous import Rendezvous
from elasticjob_operator.resources.autoscaler import autoscaler
from elasticjob_operator.resources.drift import correction
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.services import etcd_service, workers_service
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Kind


def missing_objects(job: ElasticJob, world: JobState, settings: Settings, rendezvous: Rendezvous) -> list[Action]:
    actions: list[Action] = []
    if not job.spec.scaling.metrics:
        actions += [
            DeleteObject(kind=each.kind, name=each.name, uid=each.uid, why="spec.scaling.metrics is empty")
            for each in world.objects.values()
            if each.kind is Kind.AUTOSCALER and not each.terminating
        ]
    for kind, body in _desired(job, world, settings, rendezvous):
        name = body["metadata"]["name"]
        known = world.objects.get((kind, name))
        if known is None:
            if (kind.value, name) not in world.names_in_use:
                actions.append(CreateObject(kind=kind, body=body, why="the job needs it"))
        elif not known.terminating and (patch := _correction(body, known.body)):
            actions.append(
                PatchObject(kind=kind, name=name, uid=known.uid, patch=patch, why="differs from the desired state")
            )
    return actions


def _correction(desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return correction(_to_compare(desired, known), known)


def _to_compare(desired: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What is put right where it differs.

    A StatefulSet that this release would build otherwise was made by another release: nobody changed it, and to put its
    pod template right would restart the etcd of every job in the cluster. So that template stays until the job ends;
    the rest is put right, whoever changed it.
    """
    metadata = {key: value for key, value in desired["metadata"].items() if key != "annotations"}
    applied = (desired["metadata"].get("annotations") or {}).get(names.ANNOTATION_APPLIED, "")
    spec = desired["spec"]
    if applied and _at(known, "metadata", "annotations").get(names.ANNOTATION_APPLIED, "") != applied:
        spec = {key: value for key, value in spec.items() if key != "template"}
    return {"metadata": metadata, "spec": spec}


def _desired(
    job: ElasticJob, world: JobState, settings: Settings, rendezvous: Rendezvous
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    yield Kind.SERVICE, workers_service(job)
    if rendezvous.managed:
        yield Kind.SERVICE, etcd_service(job)
        yield Kind.STATEFUL_SET, etcd_stateful_set(job, _etcd_image(job, world, settings), settings.etcd_pod)
    if job.spec.scaling.metrics:
        yield Kind.AUTOSCALER, autoscaler(job)


def _etcd_image(job: ElasticJob, world: JobState, settings: Settings) -> str:
    """A new default in a new release of the operator restarts nobody's etcd."""
    known = world.objects.get((Kind.STATEFUL_SET, names.etcd_name(job.name)))
    containers = _at(known.body, "spec", "template", "spec").get("containers") if known else None
    running = next((each.get("image") for each in containers or [] if each.get("name") == names.ETCD_CONTAINER), None)
    return running or settings.etcd_image


def _at(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        body = body.get(key) or {}
    return body
