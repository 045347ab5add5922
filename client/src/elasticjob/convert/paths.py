"""Paths into a document, as tuples of keys and indices, and patterns for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

Path = tuple[str | int, ...]
Pattern = tuple[str, ...]

_PLAIN = re.compile(r"[A-Za-z_][\w-]*")
_STEP = re.compile(r"\['(?P<quoted>[^']*)'\]|(?P<index>\[\])|(?P<key>[^.\[\]]+)")

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


@cache
def pattern(text: str) -> Pattern:
    """A path in which `*` stands for any key, `[]` for any index and `~Worker` for Worker in any case.

    >>> pattern("metadata.labels['a.b/c'].*[]")
    ('metadata', 'labels', 'a.b/c', '*', '[]')
    """
    return tuple(match["quoted"] or match[0] for match in _STEP.finditer(text))


def fits(wanted: str, step: str | int) -> bool:
    """Whether a step of a pattern stands for a step of a path."""
    if isinstance(step, int):
        return wanted == ANY_INDEX
    return wanted in (ANY_KEY, step) or (wanted.startswith(ANY_CASE) and wanted[1:].lower() == step.lower())


def children(value: Any) -> list[tuple[str | int, Any]]:
    """The items of an object or a list, with their steps."""
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every scalar with its path, and every empty object and list."""
    below = children(value)
    for step, item in below:
        yield from leaves(item, (*path, step))
    if not below:
        yield path, value


def get(value: Any, path: Sequence[str | int]) -> Any:
    """What is there; None if nothing is."""
    for step in path:
        value = dict(children(value)).get(step)
    return value
