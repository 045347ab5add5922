"""Values of objects of the API server, read leniently."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
Time = datetime.datetime


def parse_time(value: object) -> Time | None:
    """RFC 3339; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.timezone.utc)


def object_at(body: Json, key: str) -> Json:
    """The object at `key`, empty if there is none."""
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def int_or(value: object, default: int) -> int:
    """`value`, or `default` if it is not a number."""
    return value if isinstance(value, int) else default
