"""`-o jsonpath=TEMPLATE`, as far as scripts use it: fields, indices and [*]. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from elasticjob.errors import UsageError

_PART = re.compile(r"\{([^{}]*)\}")
_TEXT = re.compile(r'"(?:[^"\\]|\\[nt"\\])*"')
_STEP = re.compile(r"\.((?:[\w/-]|\\.)+)|\[(\d+|\*)\]|\['([^']+)'\]")


def jsonpath(document: Any, template: str) -> str:
    """Raises UsageError for what it does not know.

    >>> jsonpath({"items": [{"a": 1}, {"a": True}]}, "{.items[*].a}")
    '1 true'
    """
    whole = template if "{" in template else f"{{{template if template.startswith('.') else '.' + template}}}"
    return _PART.sub(lambda found: _shown(document, found[1].strip(), template), whole)


def _shown(document: Any, expression: str, template: str) -> str:
    if _TEXT.fullmatch(expression):
        return str(json.loads(expression))
    at, values = int(expression.startswith("$")), [document]
    while at < len(expression):
        step = _STEP.match(expression, at)
        if step is None:
            raise UsageError(f"-o jsonpath={template}: cannot read {expression!r}.", "Use -o json, and jq or Python.")
        name, index, quoted = step.groups()
        values = list(_next(values, quoted or (name or "").replace("\\", ""), index))
        at = step.end()
    return " ".join(value if isinstance(value, str) else json.dumps(value) for value in values)


def _next(values: list[Any], name: str, index: str | None) -> Iterator[Any]:
    for value in values:
        if index == "*":
            yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        elif index is not None:
            yield from value[int(index) :][:1] if isinstance(value, list) else ()
        elif isinstance(value, dict) and name in value:
            yield value[name]
