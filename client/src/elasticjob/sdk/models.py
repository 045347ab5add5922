"""What this client's version of the API's models says about a manifest. Importing them takes half a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_api import ElasticJob, InvalidJobError

from elasticjob.errors import InvalidManifestError


def check(manifest: Mapping[str, Any]) -> None:
    """Raises InvalidManifestError with a line for each wrong field. The API server checks more."""
    metadata = {"namespace": "default", **(manifest.get("metadata") or {})}
    try:
        ElasticJob.parse({**manifest, "metadata": metadata})
    except InvalidJobError as error:
        lines = "\n".join(f"  {line}" for line in str(error).splitlines())
        raise InvalidManifestError(f"The job is not valid:\n{lines}") from error
