"""Paths into a document, as tuples of keys and indices, and patterns for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

Path = tuple[str | int, ...]
Pattern = tuple[str, ...]

_PLAIN = re.compile(r"[A-Za-z_][\w-]*")
_STEP = re.compile(r"\['(?P<quoted>[^']*)'\]|\[(?P<index>\d*)\]|(?P<key>[^.\[\]]+)")

ANY_KEY, ANY_INDEX, ANY_CASE = "*", "[]", "~"


def show(path: Path) -> str:
    """As people write it.

    >>> show(("spec", "containers", 0, "labels", "a.b/c"))
    "spec.containers[0].labels['a.b/c']"
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step}"
        else:
            text += f"['{step}']"
    return text.removeprefix(".")


def parse(text: str) -> Path:
    """The path of `show`.

    >>> parse("spec.containers[0].labels['a.b/c']")
    ('spec', 'containers', 0, 'labels', 'a.b/c')
    """
    return tuple(
        int(match["index"]) if match["index"] else match["quoted"] or match["key"] for match in _STEP.finditer(text)
    )


@cache
def pattern(text: str) -> Pattern:
    """A path in which `*` stands for any key, `[]` for any index and `~Worker` for Worker in any case.

    >>> pattern("metadata.labels['a.b/c'].*[]")
    ('metadata', 'labels', 'a.b/c', '*', '[]')
    """
    return tuple(match["quoted"] or match["key"] or ANY_INDEX for match in _STEP.finditer(text))


def _fits(wanted: str, step: str | int) -> bool:
    if isinstance(step, int):
        return wanted == ANY_INDEX
    return wanted in (ANY_KEY, step) or (wanted.startswith(ANY_CASE) and wanted[1:].lower() == step.lower())


def covers(each: Pattern, path: Path) -> bool:
    """Whether the pattern matches the path or one of its parents."""
    return len(each) <= len(path) and all(map(_fits, each, path))


def leads_to(path: Path, each: Pattern) -> bool:
    """Whether the path is a parent of what the pattern matches."""
    return len(path) < len(each) and all(map(_fits, each, path))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every scalar with its path, and every empty object and list."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def get(value: Any, path: Sequence[str | int]) -> Any:
    """What is there; None if nothing is."""
    for step in path:
        if isinstance(value, Mapping) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def find(value: Any, each: Pattern, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything that the pattern matches, with its path; values that are null count as missing."""
    if not each:
        if value is not None:
            yield path, value
        return
    steps: Iterator[tuple[str | int, Any]]
    steps = iter(value.items()) if isinstance(value, Mapping) else enumerate(value if isinstance(value, list) else ())
    for step, item in steps:
        if _fits(each[0], step):
            yield from find(item, each[1:], (*path, step))


def put(value: dict[str, Any], path: Sequence[str], item: Any) -> None:
    """Sets a field, with the objects that lead to it."""
    for step in path[:-1]:
        value = value.setdefault(step, {})
    value[path[-1]] = item
