"""What this client's version of the API's models says about a manifest. Importing them takes half a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic
from elasticjob_api import ElasticJob, InvalidJobError, Spec
from pydantic.alias_generators import to_snake

from elasticjob.errors import InvalidManifestError


def check(manifest: Mapping[str, Any]) -> None:
    """Raises InvalidManifestError with a line for each wrong field. The API server checks more."""
    metadata = {"namespace": "default", **(manifest.get("metadata") or {})}
    try:
        ElasticJob.parse({**manifest, "metadata": metadata})
    except InvalidJobError as error:
        lines = "\n".join(f"  {line}" for line in str(error).splitlines())
        raise InvalidManifestError(f"The job is not valid:\n{lines}") from error


def has_field(path: str) -> bool:
    """Whether the spec has a field: `spec.workers.runtime.inject`."""
    first, *names = path.split(".")
    model: Any = Spec
    for name in names:
        fields = getattr(model, "model_fields", None)
        if fields is None or to_snake(name) not in fields:
            return False
        model = _model_of(fields[to_snake(name)].annotation)
    return first == "spec" and bool(names)


def _model_of(annotation: Any) -> Any:
    """The model in an annotation such as `Checkpoint | None`."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((_model_of(each) for each in getattr(annotation, "__args__", ()) if _model_of(each)), None)
