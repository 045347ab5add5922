"""The assignments in the body of a class, with the docstring below and the comment above each: what Python itself does
not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """`NAME = value`."""

    name: str
    docstring: str
    """On one line; empty: none."""
    section: str
    """The last comment on a line of its own above it; empty: none."""


def assignments(cls: type) -> list[Assignment]:
    """All assignments of `cls`, in order."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    found = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id[0] != "_":
            text = _text(following)
            found.append(Assignment(node.targets[0].id, " ".join(text.split()), _section(lines[: node.lineno])))
    return found


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _section(lines: list[str]) -> str:
    comments = [line.strip().removeprefix("#").strip() for line in lines if line.lstrip().startswith("#")]
    return comments[-1] if comments else ""
