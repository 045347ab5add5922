"""docs/reference/elasticjob.md: every field of an ElasticJob, from the schema of the CRD."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob_api import API_VERSION, KIND
from elasticjob_api.crd.definition import COLUMNS, custom_resource_definition
from elasticjob_api.refused import REFUSED

Schema = Mapping[str, Any]

INTRODUCTION = f"""\
# ElasticJob

`apiVersion: {API_VERSION}`, `kind: {KIND}`.

The API server checks types, limits and rules when you apply a manifest, and its answer names the field, the value and the remedy.
`kubectl explain elasticjob.spec --recursive` shows the same fields.
[Conditions and Events](conditions.md) explains `status.conditions`.
"""

PROGRESS = """\
## ElasticJobProgress

An object of the same name beside a job has `progress` and `optimizerSteps` where they are newer than in the job's status: see [Report progress](../guides/monitoring.md#report-progress).
The operator writes it, and it is deleted with the job.
Who may read jobs by Kubernetes' roles `view`, `edit` and `admin` may read it too; a role of your own needs `get`, `list` and `watch` on `elasticjobprogresses` of `elasticjob.dev`.
"""

REJECTED = "The API server rejects other values with these messages:"
FIXED = {
    "cannot be changed while the job is running": "Can be changed only while the job is suspended",
    "cannot be changed once the job has trained": "Can be changed only before the job has trained or while it is "
    "suspended",
}
"""Words of a rule's message -> what the fields have in common whose rules have them."""


def page() -> str:
    """The page. A pure function of the models."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    properties = schema["properties"]
    parts = [INTRODUCTION, *_name(schema)]
    parts += _sections("spec", _with_rules_of_job(properties["spec"], schema))
    parts += _sections("status", properties["status"])
    parts.append(_columns())
    return "\n".join(parts)


def _name(schema: Schema) -> Iterator[str]:
    """What a job may be called."""
    rules = [item for item in schema["x-kubernetes-validations"] if not _is_of_spec(item)]
    yield "\n".join(["## metadata", "", REJECTED, "", *_rules({"x-kubernetes-validations": rules}), ""])


def _with_rules_of_job(spec: Schema, job: Schema) -> Schema:
    """With the rules that stand at the job, because they depend on its status."""
    of_job = [
        {**item, "fieldPath": item["fieldPath"].removeprefix(".spec")}
        for item in job["x-kubernetes-validations"]
        if _is_of_spec(item)
    ]
    return {**spec, "x-kubernetes-validations": [*of_job, *spec["x-kubernetes-validations"]]}


def _is_of_spec(rule: Schema) -> bool:
    return bool(rule.get("fieldPath", "").startswith(".spec"))


def _columns() -> str:
    rows = [
        f"| {column['name']} | `{column['jsonPath'].lstrip('.')}` | {column['description']}"
        f"{' Only with `-o wide`.' if column.get('priority') else ''} |"
        for column in COLUMNS
    ]
    return "\n".join(["## Columns of kubectl get", "", "| column | field | |", "|---|---|---|", *rows, "", PROGRESS])


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """The section of the object at `path`, then those of the objects in it."""
    refused = {item.path for item in REFUSED}
    fields = {name: field for name, field in schema["properties"].items() if f"{path}.{name}" not in refused}
    required = schema.get("required", ())
    rows = [_row(path, name, field, name in required) for name, field in fields.items()]
    rules = list(_rules(schema))
    text = [f"## {path}", "", _prose(schema), "", "| field | type and limits | meaning |", "|---|---|---|", *rows, ""]
    if rules:
        text += [REJECTED, "", *rules, ""]
    yield "\n".join(text)
    for name, field in fields.items():
        below, suffix = _object_in(field)
        if below is not None:
            yield from _sections(f"{path}.{name}{suffix}", below)


def _object_in(field: Schema) -> tuple[Schema | None, str]:
    """The object with named fields that `field` is, or is a list of; None: neither."""
    if field.get("properties") and not field.get("x-kubernetes-preserve-unknown-fields"):
        return field, ""
    items = field.get("items", {})
    return (items, "[]") if items.get("properties") else (None, "")


def _row(path: str, name: str, field: Schema, required: bool) -> str:
    below, suffix = _object_in(field)
    title = f"[`{name}`](#{_anchor(f'{path}.{name}{suffix}')})" if below is not None else f"`{name}`"
    limits = [_type(field), *(["required"] if required else []), *_limits(field)]
    limits += (f"each {limit}" for limit in _limits(field.get("items", {})))
    meaning = _prose(field, "<br>")
    own_rules = [] if below is field else [f"Rejected: {rule.removeprefix('- ')}" for rule in _rules(field)]
    cells = (title, "<br>".join(limits), "<br>".join(filter(None, [meaning, *own_rules])))
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("\n", "<br>").replace("|", "\\|")


def _anchor(path: str) -> str:
    return re.sub(r"[^\w-]", "", path.lower())


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind: str = field.get("type", "any")
    if kind == "array":
        return f"list of {_plural(_type(field['items']))}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {_plural(_type(field['additionalProperties']))}"
    return "time" if field.get("format") == "date-time" else kind


def _plural(kind: str) -> str:
    return "integers or strings" if kind == "integer or string" else f"{kind}s"


def _limits(field: Schema) -> Iterator[str]:
    if field.get("default") not in (None, {}):
        yield f"default `{_value(field['default'])}`" if field["default"] not in ("", []) else "default: empty"
    if "enum" in field:
        yield "one of " + ", ".join(f"`{_value(item)}`" for item in field["enum"])
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
    ):
        least, most = field.get(low), field.get(high)
        if least == most == 1:
            yield "exactly one"
        elif least is not None and most is not None:
            yield f"{least} to {most}{unit}"
        elif most is not None:
            yield f"at most {most}{unit}"
        elif least is not None:
            yield f"at least {least}{unit}"
    if "pattern" in field:
        yield f"matches `{field['pattern']}`"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _prose(schema: Schema, separator: str = "\n\n") -> str:
    return separator.join(schema.get("description", "").split("\n"))


def _rules(schema: Schema) -> Iterator[str]:
    """What the API server checks besides types and limits, as a list."""
    fixed: dict[str, list[str]] = {}
    for rule in schema.get("x-kubernetes-validations", ()):
        field = rule.get("fieldPath", "").lstrip(".")
        message = rule.get("message") or _message_of(rule["messageExpression"])
        if when := next((text for words, text in FIXED.items() if words in message), ""):
            fixed.setdefault(when, []).append(f"`{field}`")
        else:
            yield f"- {f'`{field}`: ' if field else ''}{message}".rstrip()
    yield from (f"- {when}: {', '.join(fields)}." for when, fields in fixed.items())


def _message_of(expression: str) -> str:
    """The text of a CEL expression that formats a message, with an ellipsis for each value."""
    literals = re.findall(r"'((?:[^'\\]|\\.)*)'", expression.partition(".format(")[0])
    return re.sub(r"%[sd]", "…", "".join(literals)).replace("\\'", "'")
