"""Base class and field types of the API's models.

The models are the source of the CRD (see `elasticjob_api.crd.schema`): a field's docstring becomes its
description, its default the default that the API server fills in.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from elasticjob_api.crd import validation, worker_validation

MAX_METRICS = 32
MAX_METRIC = 64
MAX_FAILURE_MESSAGE = 8192
MAX_MESSAGE = 32768
MAX_CAUSES, OTHER_CAUSES = 64, "Other"
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Model(
    BaseModel,
    frozen=True,
    extra="ignore",
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    use_attribute_docstrings=True,
):
    """A frozen API object: snake_case in Python, camelCase in JSON.

    Unknown fields are ignored when parsing, because the installed CRD may be newer than this operator; the CRD
    itself rejects them. Subclasses repeat `frozen=True`, because type checkers do not see it inherited.
    """

    def to_api(self) -> dict[str, Any]:
        """The JSON object for the API server, without unset optional fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _to_seconds(time: datetime.datetime) -> datetime.datetime:
    if time.tzinfo is None:
        raise ValueError("time without a zone; use datetime.now(timezone.utc)")
    return time.astimezone(datetime.timezone.utc).replace(microsecond=0)


def format_time(time: datetime.datetime) -> str:
    """RFC 3339 in UTC with whole seconds, like metav1.Time."""
    return time.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(text: str) -> str:
    """With a replacement character for each that would move a terminal's cursor, or the order of what is read: scripts
    may report any."""
    return _HIDDEN.sub("\ufffd", text)


def _metrics_as_strings(value: Any) -> Any:
    """Formats numbers with six digits, and keeps the first `MAX_METRICS` names to bound the size of the status."""
    if not isinstance(value, Mapping):
        return value
    first = sorted((plain(str(name)), number) for name, number in value.items())[:MAX_METRICS]
    return {
        name: plain(each[:MAX_METRIC]) if isinstance(each, str) else _six_digits(name, each) for name, each in first
    }


def _six_digits(name: str, value: Any) -> str:
    try:
        return f"{float(value):.6g}"
    except TypeError:
        raise ValueError(f"metric {name} is {type(value).__name__}, not a number") from None
    except OverflowError:
        raise ValueError(f"metric {name} is too large for a floating-point number") from None


def _keep_end(value: Any) -> Any:
    """Truncates at the start: the last lines of a traceback say what happened."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return text if len(text) <= MAX_FAILURE_MESSAGE else "..." + text[3 - MAX_FAILURE_MESSAGE :]


ATOMIC = {"x-kubernetes-list-type": "atomic"}
"""Of a list that is replaced as a whole."""
SET = {"x-kubernetes-list-type": "set"}


def keyed(by: str) -> dict[str, Any]:
    """Of a list in which an item has its own value of the field `by`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [by]}


Int32 = Annotated[int, Field(le=2**31 - 1, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Count = Annotated[Int32, Field(ge=0)]
LongCount = Annotated[Int64, Field(ge=0)]

Time = Annotated[
    datetime.datetime,
    AfterValidator(_to_seconds),
    PlainSerializer(format_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A UTC time with whole seconds, as the API server returns it. Naive times are rejected."""

Rate = Annotated[float | None, BeforeValidator(finite_or_none)]
"""A number that JSON can represent: NaN and infinity become None."""

Metrics = Annotated[
    dict[str, str],
    BeforeValidator(_metrics_as_strings),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_METRICS,
            "additionalProperties": {"type": "string", "maxLength": MAX_METRIC},
        }
    ),
]
"""Metrics that the script reports. They are strings because a loss may be NaN, which JSON cannot represent."""


def clip(value: Any, most: int = MAX_MESSAGE) -> Any:
    """Truncates: the API server's message on a large template can exceed the limit of a condition."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _few_causes(value: Any) -> Any:
    """Keeps the first `MAX_CAUSES` causes by name and sums up the others."""
    if not isinstance(value, Mapping) or len(value) <= MAX_CAUSES:
        return value
    kept = sorted(name for name in value if name != OTHER_CAUSES)[: MAX_CAUSES - 1]
    return {
        **{name: value[name] for name in kept},
        OTHER_CAUSES: sum(count for name, count in value.items() if name not in kept),
    }


ConditionMessage = Annotated[str, BeforeValidator(clip), Field(max_length=MAX_MESSAGE)]
"""A message of any length, truncated to what the API server accepts. Used for all conditions."""
Text = Annotated[str, BeforeValidator(lambda value: plain(value) if isinstance(value, str) else value)]
"""What a script may have chosen."""

Causes = Annotated[
    dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]],
    BeforeValidator(_few_causes),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_CAUSES,
            "additionalProperties": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2**31 - 1},
        }
    ),
]
"""Number of restarts by cause, bounded in size even if a script uses a new cause for each failure."""

FailureMessage = Annotated[str, BeforeValidator(_keep_end), Field(max_length=MAX_FAILURE_MESSAGE)]

Preserved = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""An object of the Kubernetes API, preserved as written."""

ProcsPerWorker = Annotated[
    Literal["auto", "cpu", "gpu"] | Annotated[int, Field(ge=1, le=worker_validation.MAX_PROCS_PER_WORKER)],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
]

Quantity = Annotated[
    str | int,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 32,
            **validation.QUANTITY,
        }
    ),
]
"""resource.Quantity: `500m`, `1Gi`, `2`."""
Quantities = Annotated[dict[str, Quantity], Field(max_length=16)]
"""Quantities by resource name."""
