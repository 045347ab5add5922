"""A job's history of changes. The only reader of `status.history`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from elasticjob_api import History, StoredHistory

from elasticjob.errors import ElasticJobError, UsageError
from elasticjob.state import job_state


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


FORMATS = (".html", ".svg", ".png")


def drawing(manifest: Mapping[str, Any], suffix: str, now: datetime.datetime) -> bytes:
    """The history as a page or an image. `suffix`: of the file. Raises UsageError, ElasticJobError."""
    from elasticjob.views.page import page
    from elasticjob.views.png import to_png
    from elasticjob.views.svg import image

    if suffix.lower() not in FORMATS:
        raise UsageError(f"A file name that ends with {suffix or 'nothing'}: it must end with .html, .svg or .png.")
    state, history = job_state(manifest), read_history(manifest)
    if suffix.lower() == ".html":
        return page(state, history, now).encode()
    drawn = image(state, history, now)
    return drawn.encode() if suffix.lower() == ".svg" else to_png(drawn)
