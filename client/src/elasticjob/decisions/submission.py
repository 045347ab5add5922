"""Fields that a cluster's older CRD does not know. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

_UNKNOWN = re.compile(r'unknown field "([^"]+)"')


def unknown_fields(message: str) -> list[str]:
    """Paths in the API server's answer to a strictly checked manifest.

    >>> unknown_fields('strict decoding error: unknown field "spec.a.b", unknown field "spec.c"')
    ['spec.a.b', 'spec.c']
    """
    return list(dict.fromkeys(_UNKNOWN.findall(message)))


def without_fields(manifest: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """A copy without these fields."""
    result = copy.deepcopy(manifest)
    for path in paths:
        *parents, last = path.split(".")
        holder: Any = result
        for parent in parents:
            holder = holder.get(parent) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(last, None)
    return result
