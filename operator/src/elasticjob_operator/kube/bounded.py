"""Reads what the API server returns within bounds: any user may have filled an object.

The API server accepts JSON of 10,000 levels and 3 MB, in fields that it does not know and in managedFields. orjson
parses 1,024 levels and writes 254, and a megabyte of empty objects takes twenty once it is parsed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

Json = dict[str, Any]

MOST_LEVELS = 64
"""Levels of a job's spec. The deepest field of a pod template is at about 20."""
MOST_BYTES, MOST_VALUES = 256 * 1024, 50_000
"""Of a job's spec as JSON, and of its status and metadata; values are counted by their commas and brackets."""
FAULT = "elasticjob.dev/fault"
"""What is wrong with a job that comes without its spec."""

_CUT = 200
_UNREAD = frozenset({"managedFields", "ownerReferences", "finalizers", "selfLink"})
_IDENTITY = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def parse(data: bytes) -> Any:
    """What is too deep for orjson is cut off at level 200. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(_without_depths(data))


def _without_depths(data: bytes) -> bytes:
    kept, level, start = [], 0, 0
    for token in _TOKENS.finditer(data):
        match data[token.start()]:
            case 0x5B | 0x7B:  # [ {
                level += 1
                if level == _CUT + 1:
                    kept.append(data[start : token.start()])
            case 0x5D | 0x7D:  # ] }
                if level == _CUT + 1:
                    kept.append(b"null")
                    start = token.end()
                level -= 1
    return b"".join([*kept, data[start:]])


def bounded_job(body: Mapping[str, Any]) -> Json:
    """An ElasticJob without what is never read; without its spec and with FAULT where it is too deep or too large."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _UNREAD}
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
    job = {**body, "metadata": metadata}
    for field in ("metadata", "spec", "status"):
        if fault := _fault(job.get(field), field):
            return without_spec({**job, "status": {} if field == "status" else job.get("status")}, fault)
    return job


def without_spec(job: Mapping[str, Any], fault: str) -> Json:
    """What is left of a job that is not read."""
    metadata = {name: value for name, value in job["metadata"].items() if name in _IDENTITY}
    kept = {name: job[name] for name in ("apiVersion", "kind", "status") if name in job}
    return {**kept, "metadata": metadata, FAULT: fault}


def _fault(value: Any, field: str) -> str:
    try:
        text = orjson.dumps(value)
    except TypeError:  # more than 254 levels
        text = b""
    if len(text) > MOST_BYTES or values_in(text) > MOST_VALUES:
        size = f"{len(text):,} bytes and about {values_in(text):,} values"
        return f"{field}: {size} are too many; at most {MOST_BYTES:,} bytes and {MOST_VALUES:,} values are read"
    if text and text.count(b"{") + text.count(b"[") <= MOST_LEVELS:
        return ""
    path = _deeper(value, MOST_LEVELS)
    return "" if path is None else f"{field}{path[:80]}: nested more than {MOST_LEVELS} levels deep; remove that field"


def values_in(text: bytes) -> int:
    """About how many values JSON has, for an estimate of its size once it is parsed."""
    return sum(text.count(bracket) for bracket in (b"{", b"[", b","))


def _deeper(value: Any, levels: int) -> str | None:
    """Path of the first value that has more levels; None: there is none."""
    if not isinstance(value, dict | list):
        return None
    if not levels:
        return ""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        below = _deeper(item, levels - 1)
        if below is not None:
            return f".{key}{below}"
    return None
