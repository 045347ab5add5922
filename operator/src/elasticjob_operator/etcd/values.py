"""Parses values of etcd keys. Agents write them, and so may the script of a job's owner: they are untrusted. Pure.

Besides its type, a value must fit into status and decisions: a count within the range of the field, a time within the
calendar. A rejected value is reported and treated as missing; other jobs are not affected.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, TypeVar

from elasticjob_runtime.contract import (
    FailureValue,
    HangValue,
    LocationsValue,
    OutcomeValue,
    PlanValue,
    ProgressValue,
    ReplicaValue,
    SpecValue,
    StragglersValue,
    TransitionValue,
    UnreadyValue,
    Value,
)

from elasticjob_operator.etcd.limits import LimitExceeded, check_json_parts

V = TypeVar("V", bound=Value)

MAX_LENGTH: dict[type[Value], int] = {
    SpecValue: 1024 * 1024,  # the names of ten thousand members, and of those that drain
    PlanValue: 256 * 1024,
    ProgressValue: 64 * 1024,
    TransitionValue: 4 * 1024,
    StragglersValue: 64 * 1024,
    UnreadyValue: 16 * 1024,
    LocationsValue: 1024 * 1024,  # the names and paths of ten thousand members
    OutcomeValue: 64 * 1024,
    FailureValue: 32 * 1024,  # of which 64 are kept
    HangValue: 16 * 1024,  # likewise
    ReplicaValue: 16 * 1024,  # one for each worker pod; the names of the members of one
}
"""Characters of a value of each kind."""

_LONG = frozenset(
    {"step", "steps_lost", "total_steps", "remaining_seconds", "best_step", "last_checkpoint_step", "generation"}
)
_INT32, _INT64 = 2**31, 2**63
_LAST_TIME = 253_402_300_799
"""The end of the year 9999, Unix time, s."""
_TIMES = frozenset({"time", "since", "created_at", "caused_at", "updated_at"})
_COUNTS = frozenset(
    {
        "round",
        "step",
        "steps_lost",
        "total_steps",
        "remaining_seconds",
        "percent",
        "size",
        "world_size",
        "restart_count",
        "last_checkpoint_step",
        "same_crashes",
        "stalled_restarts",
    }
)
_WORDS = frozenset({"reason"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_MAY_HAVE_SURROGATES = re.compile(r"\\u[dD]|[\ud800-\udfff]")


def parse(kind: type[V], text: str) -> V:
    """Raises ValueError, with a message for users that names the field."""
    if len(text) > MAX_LENGTH[kind]:
        raise ValueError(f"it is longer than {MAX_LENGTH[kind] >> 10} KiB")
    try:
        check_json_parts(text.encode("utf-8", "replace"))
        value: V = kind.from_json(_without_surrogates(text))
    except LimitExceeded as error:
        raise ValueError(f"it {error}") from error
    except (RecursionError, OverflowError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"it is not a valid {kind.__name__}") from error
    for field in dataclasses.fields(value):
        _check(field.name, getattr(value, field.name))
    if isinstance(value, OutcomeValue) and value.failure is not None:
        value = dataclasses.replace(value, failure=_readable_failure(value.failure))
    return value


def _readable_failure(failure: dict[str, Any]) -> dict[str, Any] | None:
    """An outcome is valid even if its details are not."""
    try:
        return dataclasses.asdict(parse(FailureValue, json.dumps(failure)))
    except ValueError:
        return None


def _check(name: str, value: Any) -> None:
    """Raises ValueError."""
    match value:
        case bool():
            return
        case int() | float() if name in _TIMES:
            if not 0 <= value <= _LAST_TIME:
                raise ValueError(f"{name} must be a Unix time in seconds")
        case int():
            most = _INT64 if name in _LONG else _INT32
            if not (0 if name in _COUNTS else -most) <= value < most:
                raise ValueError(f"{name} must be a number from {0 if name in _COUNTS else -most} to {most - 1}")
        case str() if name in _WORDS and not _WORD.fullmatch(value):
            raise ValueError(f"{name} must be one word, of letters, digits, _, . and -")
        case list() | tuple():
            for item in value:
                _check(name, item)


def _without_surrogates(text: str) -> str:
    """Replaces lone surrogates by question marks: JSON allows them, the API server and logs do not."""
    if not _MAY_HAVE_SURROGATES.search(text):
        return text
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace").decode()
