"""Readers of JSON values, one per annotated type: each returns the value in the type that is annotated, or raises
ValueError.

What is in etcd was written by another program, of another version, or by a person: no field is taken at its word. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any

Reader = Callable[[Any], Any]

_LARGEST = 2**63
"""etcd's revisions, exit codes, steps and ports all fit; a number with a thousand digits is somebody's mistake."""


@functools.cache
def readers(cls: type) -> dict[str, Reader]:
    """A reader for every field of a dataclass. Raises TypeError for an annotation that it cannot read: a mistake in our
    own code."""
    hints = typing.get_type_hints(cls)
    return {field.name: reader(hints[field.name]) for field in dataclasses.fields(cls)}


def read(cls: type, data: Any) -> dict[str, Any]:
    """The known fields of the JSON object `data`, typed. Raises ValueError, which names the field."""
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
    """The reader of one type. Raises TypeError where there is none."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _optional(reader(next(one for one in arguments if one is not type(None))))
    if origin in (list, tuple):
        return _sequence(origin, reader(arguments[0]))
    if origin is dict:
        return _mapping(reader(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _word(annotation)
    if dataclasses.is_dataclass(annotation):
        return _object(typing.cast("type", annotation))
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    raise TypeError(f"no reader for {annotation!r}")


def _integer(value: Any) -> int:
    if type(value) is not int:  # True is an int, too
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
        raise ValueError("a NUL in a string")  # neither an environment variable nor a file name can hold it
    if not value.isascii():
        value.encode()  # half of a surrogate pair: cannot be written or logged. A UnicodeEncodeError is a ValueError
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


def _word(kind: type[enum.Enum]) -> Reader:
    words = {one.value: one for one in kind}

    def read_word(value: Any) -> enum.Enum:
        if type(value) is not str or value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return words[value]

    return read_word


def _object(cls: type) -> Reader:
    def read_object(value: Any) -> Any:
        try:
            return cls(**read(cls, value))
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error

    return read_object


def _kind(value: Any) -> str:
    """JSON's word for the type of a value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
