"""A job's history of changes. The only reader of `status.history`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_api import History, StoredHistory

from elasticjob.errors import ElasticJobError


def read_history(manifest: Mapping[str, Any]) -> History:
    """Raises ElasticJobError if there is none."""
    body = (manifest.get("status") or {}).get("history")
    history = StoredHistory(body).read() if isinstance(body, Mapping) else History()
    if not history.changes and not history.samples:
        name = manifest["metadata"]["name"]
        raise ElasticJobError(
            f"{name} has no history yet.",
            "The operator begins it with the first round; operators of older releases keep none: elasticjob doctor",
        )
    return history
