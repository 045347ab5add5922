"""Values as JSON objects: `Value` writes one, and reads one with a check of every field's type.

What is in etcd was written by another program, by another version or by a person, so no field is trusted. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

Reader = Callable[[Any], Any]

_LARGEST = 2**63
"""Revisions, exit codes, steps and ports all fit; a number with a thousand digits is a mistake."""


@functools.cache
def readers(cls: type) -> dict[str, Reader]:
    """A reader for each field of a dataclass. Raises TypeError for an annotation that has none: a bug in our own
    code."""
    hints = typing.get_type_hints(cls)
    return {field.name: reader(hints[field.name]) for field in dataclasses.fields(cls)}


def read(cls: type, data: Any) -> dict[str, Any]:
    """The known fields of the JSON object `data`, checked. Raises ValueError, naming the field."""
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {_kind(data)}")
    values: dict[str, Any] = {}
    for name, typed in readers(cls).items():
        if name in data:
            try:
                values[name] = typed(data[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return values


def reader(annotation: Any) -> Reader:
    """The reader for one annotation: it returns a JSON value in that type, or raises ValueError. Raises TypeError if
    there is none."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _optional(reader(next(argument for argument in arguments if argument is not type(None))))
    if origin in (list, tuple):
        return _sequence(origin, reader(arguments[0]))
    if origin is dict:
        return _mapping(reader(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum(annotation)
    if dataclasses.is_dataclass(annotation):
        return _object(typing.cast("type", annotation))
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    raise TypeError(f"no reader for {annotation!r}")


def _integer(value: Any) -> int:
    if type(value) is not int:  # isinstance would accept True
        raise ValueError(f"expected an integer, got {_kind(value)}")
    if not -_LARGEST <= value < _LARGEST:
        raise ValueError("expected an integer of at most 64 bits")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {_kind(value)}")
    if type(value) is int:
        value = _integer(value)
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    return float(value)


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a string, got {_kind(value)}")
    if "\0" in value:
        raise ValueError("a string contains NUL")  # neither an environment variable nor a file name can hold it
    if not value.isascii():
        value.encode()  # a lone surrogate cannot be written or logged; UnicodeEncodeError is a ValueError
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"expected true or false, got {_kind(value)}")
    return value


def _anything(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Reader] = {int: _integer, float: _number, str: _string, bool: _boolean, Any: _anything}


def _optional(typed: Reader) -> Reader:
    return lambda value: None if value is None else typed(value)


def _sequence(kind: type[list[Any]] | type[tuple[Any, ...]], typed: Reader) -> Reader:
    def read_items(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError(f"expected a list, got {_kind(value)}")
        return kind(typed(item) for item in value)

    return read_items


def _mapping(typed: Reader) -> Reader:
    def read_items(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"expected an object, got {_kind(value)}")
        return {_string(key): typed(item) for key, item in value.items()}

    return read_items


def _enum(kind: type[enum.Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read_enum(value: Any) -> enum.Enum:
        if type(value) is not str or value not in members:
            raise ValueError(f"expected one of {', '.join(members)}")
        return members[value]

    return read_enum


def _object(cls: type) -> Reader:
    def read_object(value: Any) -> Any:
        try:
            return cls(**read(cls, value))
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error

    return read_object


def _kind(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


T = TypeVar("T", bound="Value")


def _fields(value: Any) -> dict[str, Any]:
    """Like dataclasses.asdict without the copies, because a planner writes a thousand ranks at a time."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value in etcd: a flat JSON object. Unknown fields are ignored, so a newer peer may write more."""

    def to_json(self) -> str:
        return json.dumps(_fields(self), separators=(",", ":"), sort_keys=True, default=_fields)

    @classmethod
    def from_json(cls: type[T], text: str | bytes) -> T:
        """Raises ValueError, naming the field, unless `text` is an object with all required fields, each of the right
        type and range."""
        try:
            value = cls(**read(cls, json.loads(text)))
            value.check()
        except TypeError as error:  # a field is missing
            raise ValueError(f"{cls.__name__}: {error}") from error
        except RecursionError:
            raise ValueError(f"{cls.__name__}: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        return value

    def check(self) -> None:
        """Raises ValueError if a field has the right type and an impossible value. Called after reading, not before
        writing."""


def require_at_least(lowest: int, **fields: int) -> None:
    for name, value in fields.items():
        if value < lowest:
            raise ValueError(f"{name}: expected at least {lowest}, got {value}")


def require_ports(**fields: int) -> None:
    for name, value in fields.items():
        if not 0 <= value <= 65535:
            raise ValueError(f"{name}: {value} is not a TCP port")
