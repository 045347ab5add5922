"""Manifests as users write them: YAML or JSON, one or several documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.errors import InvalidManifestError
from elasticjob.names import API_VERSION, GROUP, KIND
from elasticjob.state.values import object_at

Json = dict[str, Any]
CONVERTIBLE = {
    "PyTorchJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "ElasticJob": "elastic.pytorch.org or elastic.iml.github.io",
}


def parse_manifests(text: str, source: str) -> list[Json]:
    """The ElasticJobs in a text. `source`: its file, for messages. Raises InvalidManifestError."""
    import yaml

    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = ": ".join(filter(None, (error.context, error.problem)))
        raise InvalidManifestError(f"{source}{where}: {problem}.") from error
    except yaml.YAMLError as error:
        raise InvalidManifestError(f"{source} is not YAML: {error}") from error
    found = [each for document in documents for each in _items(document, source)]
    if not found:
        raise InvalidManifestError(f"{source} has no manifest.")
    for manifest in found:
        _check(manifest, source)
    return found


def _items(document: Any, source: str) -> list[Any]:
    if not isinstance(document, dict):
        raise InvalidManifestError(f"{source} has no manifest, but {type(document).__name__} {str(document)[:40]!r}.")
    return document.get("items") or [] if document.get("kind") == "List" else [document]


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
