"""The assignments in the body of a class, with the docstring below and the comment above each: what Python itself does
not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """`NAME = value`, or a field of a dataclass."""

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
        name = _name(node)
        if name and not name.startswith("_"):
            found.append(Assignment(name, " ".join(_text(following).split()), _section(lines[: node.lineno])))
    return found


def _name(node: ast.stmt) -> str:
    target = (
        node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
    )
    return target.id if isinstance(target, ast.Name) else ""


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _section(lines: list[str]) -> str:
    comments = [line.strip().removeprefix("#").strip() for line in lines if line.lstrip().startswith("#")]
    return comments[-1] if comments else ""
