"""Values of objects of the API server, read leniently."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

Json = Mapping[str, Any]
Time = datetime.datetime
T = TypeVar("T")


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


def at(path: str, default: Any, convert: Callable[[Any], Any] | None = None) -> Any:
    """A field of a dataclass that `read` takes from `path` of an object. `convert`: from its value there, None if there
    is none. `default`: if that gives none, and for a value of another type than the default's."""
    where = {"path": path.split("."), "default": default, "convert": convert}
    return field(default_factory=lambda: default, metadata=where)


def read(kind: type[T], body: Json, **computed: Any) -> T:
    """The dataclass `kind`, read from an object. `computed`: fields that are not read."""
    for attribute in fields(kind):  # type: ignore[arg-type] # which every dataclass is
        if "path" in attribute.metadata:
            computed[attribute.name] = _at(body, **attribute.metadata)
    return kind(**computed)


def part(kind: type[T]) -> Callable[[Any], T | None]:
    """Converts an object to the dataclass `kind`, and anything else to None."""
    return lambda body: read(kind, body) if isinstance(body, Mapping) else None


def _at(body: Any, path: list[str], default: Any, convert: Callable[[Any], Any] | None) -> Any:
    for key in path:
        body = body.get(key) if type(body) is dict or isinstance(body, Mapping) else None  # the first is much quicker
    value = convert(body) if convert else body
    return value if default is None or isinstance(value, type(default)) else default
