"""Pydantic model -> structural schema of a CRD. Used by `make generate` only, never while the operator runs.

Pydantic writes JSON Schema 2020-12; the API server wants OpenAPI v3.0 without references, null types and titles, and
with each type stated once
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema).
What has no structural form is rejected here rather than at `kubectl apply`.
"""

from __future__ import annotations

import re
from typing import Any

import pydantic

Schema = dict[str, Any]

COPIED = {
    "type", "format", "required", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "nullable",
    "anyOf",  # only of an int-or-string, the one union that has a structural form
}  # fmt: skip
"""Keywords that mean the same on both sides. `x-kubernetes-*` is copied too."""

DROPPED = {"title", "$defs"}


ORDER = (
    "description", "type", "format", "default", "*", "required", "x-kubernetes-validations", "items",
    "additionalProperties", "properties",
)  # fmt: skip
"""Order of the keywords in the output, for readers; * stands for all others."""


class SchemaError(ValueError):
    """A model has no structural schema. Says where and why: change the model."""


def structural_schema(model: type[pydantic.BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of `model`, fields by their wire names.

    defaults: whether the API server fills in the fields' defaults; False for a status. Raises SchemaError.
    """
    source = model.model_json_schema(by_alias=True, mode="validation")
    return _Inliner(source.get("$defs", {}), defaults).convert(source, path=(model.__name__,), open_refs=())


class _Inliner:
    def __init__(self, definitions: dict[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def convert(self, source: Schema, path: tuple[str, ...], open_refs: tuple[str, ...]) -> Schema:
        """`source` and everything below it. `open_refs`: the definitions that this one is part of."""
        if "$ref" in source:
            name = source["$ref"].removeprefix("#/$defs/")
            if name in open_refs:
                raise SchemaError(f"{'.'.join(path)}: {name} contains itself; a CRD cannot recurse")
            siblings = {key: value for key, value in source.items() if key != "$ref"}
            return self.convert({**self._definitions[name], **siblings}, path, (*open_refs, name))
        if "anyOf" in source and "x-kubernetes-int-or-string" not in source:
            return self.convert(_without_null(source, path), path, open_refs)
        result = {}
        for key, value in source.items():
            result.update(self._keyword(key, value, source, path, open_refs))
        return dict(sorted(result.items(), key=lambda item: ORDER.index(item[0] if item[0] in ORDER else "*")))

    def _keyword(
        self, key: str, value: Any, source: Schema, path: tuple[str, ...], open_refs: tuple[str, ...]
    ) -> Schema:
        if key in COPIED or key.startswith("x-kubernetes-"):
            return {key: value}
        if key in DROPPED:
            return {}
        match key:
            case "properties":
                value = {name: self.convert(part, (*path, name), open_refs) for name, part in value.items()}
            case "items" | "additionalProperties":
                value = self.convert(value, (*path, "[]"), open_refs)
            case "description":
                value = _unwrap(value)
            case "const":
                key, value = "enum", [value]
            case "default":
                return self._default(value, source)
            case _:
                raise SchemaError(f"{'.'.join(path)}: no structural form for {key}: {value!r}")
        return {key: value}

    def _default(self, value: Any, source: Schema) -> Schema:
        if value is None or not self._defaults:
            return {}
        # An object's default is empty: the defaults of its fields fill it.
        return {"default": {} if "properties" in source else value}


def _without_null(source: Schema, path: tuple[str, ...]) -> Schema:
    """`X | None` -> X: an optional field of a CRD is left out, never null."""
    branches = [branch for branch in source["anyOf"] if branch != {"type": "null"}]
    if len(branches) != 1 or len(branches) == len(source["anyOf"]):
        raise SchemaError(f"{'.'.join(path)}: a union has no structural form: {source['anyOf']}")
    return {**branches[0], **{key: value for key, value in source.items() if key != "anyOf"}}


def _unwrap(docstring: str) -> str:
    """A docstring's paragraphs, each on one line: kubectl explain wraps them itself."""
    return "\n".join(re.sub(r"\s*\n\s*", " ", paragraph) for paragraph in re.split(r"\n\s*\n", docstring.strip()))
