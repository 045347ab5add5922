"""Manifests as users write them: YAML or JSON, one or several documents. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob.decisions.job_request import JobOptions, sizes_of
from elasticjob.errors import InvalidManifestError, UsageError
from elasticjob.names import API_VERSION, GROUP, KIND, QUEUE, QUEUE_PRIORITY
from elasticjob.state.values import object_at

Json = dict[str, Any]
CONVERTIBLE = {
    "PyTorchJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "ElasticJob": "elastic.pytorch.org or elastic.iml.github.io",
}


def parse_manifests(text: str, source: str) -> list[Json]:
    """The ElasticJobs in a text. `source`: its file, for messages. Raises InvalidManifestError."""
    from elasticjob.decisions.documents import parse  # yaml takes 20 ms

    found = parse(text, source)
    for manifest in found:
        _check(manifest, source)
    return found


def with_flags(manifests: Sequence[Json], options: JobOptions, *, resize: bool = False) -> list[Json]:
    """The manifests with what flags say about them: GPUs, variables, queue, priority, suspension, and with `resize` the
    number of worker pods. Raises UsageError where it is not clear what a flag is about."""
    if options == JobOptions("", "") and not resize:
        return list(manifests)
    if len(manifests) != 1:
        raise UsageError(
            f"There are {len(manifests)} manifests: it is not clear which one the flags change.",
            "Edit the manifests instead.",
        )
    manifest = copy.deepcopy(manifests[0])
    workers = manifest.setdefault("spec", {}).setdefault("workers", {})
    if resize:
        for bound in ("minReplicas", "maxReplicas"):
            workers.pop(bound, None)
        workers |= sizes_of(options)
    if options.env or options.gpus:
        _change_container(workers, options)
    if options.suspend:
        manifest["spec"]["suspend"] = True
    labels = {key: value for key, value in ((QUEUE, options.queue), (QUEUE_PRIORITY, options.queue_priority)) if value}
    if labels:
        manifest["metadata"]["labels"] = {**object_at(manifest["metadata"], "labels"), **labels}
    return [manifest]


def _change_container(workers: Json, options: JobOptions) -> None:
    containers = object_at(object_at(workers, "template"), "spec").get("containers") or []
    named = workers.get("container")
    container = next((container for container in containers if named in (None, container.get("name"))), None)
    if container is None:
        raise UsageError("The manifest has no training container to give variables or GPUs.")
    if options.env:
        kept = [variable for variable in container.get("env") or () if variable.get("name") not in options.env]
        container["env"] = kept + [{"name": name, "value": str(value)} for name, value in options.env.items()]
    if options.gpus:
        resources = container.setdefault("resources", {})
        for part in ("limits", *(["requests"] if options.gpu_resource in resources.get("requests", {}) else [])):
            resources.setdefault(part, {})[options.gpu_resource] = str(options.gpus)


def _check(manifest: Any, source: str) -> None:
    kind, version = manifest.get("kind"), str(manifest.get("apiVersion", ""))
    if (kind, version) != (KIND, API_VERSION):
        group = version.partition("/")[0]
        shown = f"{kind or 'an object without kind'} of {version or 'no apiVersion'}"
        if group == GROUP and kind == KIND:
            raise InvalidManifestError(f"{source}: this client reads {API_VERSION}, not {version}.")
        remedy = f"Convert it: elasticjob convert -f {source}" if kind in CONVERTIBLE else ""
        raise InvalidManifestError(f"{source} has {shown}, not an ElasticJob of {API_VERSION}.", remedy)
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise InvalidManifestError(f"{source}: metadata.name is missing.")
    _check_replicas(object_at(object_at(manifest, "spec"), "workers"), source)


def _check_replicas(workers: Mapping[str, Any], source: str) -> None:
    """The API server takes an explicit 1 for its default, which means minReplicas."""
    replicas, least = workers.get("replicas"), workers.get("minReplicas")
    if isinstance(replicas, int) and isinstance(least, int) and replicas < least:
        raise InvalidManifestError(
            f"{source}: spec.workers.replicas ({replicas}) is below minReplicas ({least}).",
            "Raise replicas, lower minReplicas, or remove replicas to start with minReplicas.",
        )
