"""A job's history of changes. The only reader of `status.history`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from elasticjob_api import History, StoredHistory
from elasticjob_api.history import goodput

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


def goodput_of(manifest: Mapping[str, Any], until: datetime.datetime) -> float | None:
    """The share of the time in which new steps were trained; None if it is not known."""
    try:
        series = goodput(read_history(manifest), until)
    except ElasticJobError:
        return None
    return series[-1][1] if series else None
