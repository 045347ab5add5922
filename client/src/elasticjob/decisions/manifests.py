"""Manifests as users write them: YAML or JSON, one or several documents. Pure."""

from __future__ import annotations

from typing import Any

from elasticjob.errors import InvalidManifestError
from elasticjob.names import API_VERSION, GROUP, KIND

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
