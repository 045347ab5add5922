"""Manifests as text: YAML or JSON, one document or several, or a List of objects. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from elasticjob.errors import InvalidManifestError

Document = dict[str, Any]

_REPLACED = frozenset({"int", "float", "timestamp"})


class _Loader(yaml.SafeLoader):
    """Reads scalars as kubectl does, so that times and 12:30 are text, and rejects a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
                seen.add(key.value)
        return {str(key): value for key, value in super().construct_mapping(node, deep=deep).items()}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag.rpartition(":")[2] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?$|^[-+]?[0-9]+[eE][-+]?[0-9]+$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)


def parse(text: str, name: str) -> list[Document]:
    """The objects of a file; items of a List count as such. `name`: the file's, for error messages. Raises
    InvalidManifestError with line and column."""
    found = [item for parsed in _parse(text, name) if parsed is not None for item in _items(parsed, name)]
    if not found:
        raise InvalidManifestError(f"{name} is empty")
    return found


def _parse(text: str, name: str) -> list[Any]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text)]
        except json.JSONDecodeError as error:
            if name.endswith(".json"):
                message = f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
                raise InvalidManifestError(message) from error
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        hint = " (YAML is indented with spaces)" if "\\t" in str(error.problem) else ""
        raise InvalidManifestError(f"{where}: not valid YAML: {error.problem or error.context}{hint}") from error
    except yaml.YAMLError as error:
        raise InvalidManifestError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from error


def _items(document: Any, name: str) -> Iterator[Document]:
    if isinstance(document, list):
        for item in document:
            yield from _items(item, name)
        return
    if not isinstance(document, dict):
        raise InvalidManifestError(f"{name} holds {document!r:.60}, which is not a Kubernetes object")
    if document.get("kind") == "List" or (str(document.get("kind")).endswith("List") and "items" in document):
        yield from _items(document.get("items") or [], name)
    else:
        yield document


class _Dumper(yaml.SafeDumper):
    """Readable YAML: no anchors, indented lists, long lists of numbers in a line, and text of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the library's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 as above
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        several_lines = "\n" in text and not re.search(r"[ \t]\n|\t|^\s", text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if several_lines else None)

    def represent_items(self, items: list[Any]) -> yaml.SequenceNode:
        several_numbers = len(items) > 8 and all(isinstance(item, int) for item in items)
        return self.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=several_numbers or None)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_items)


def dump(document: Document) -> str:
    """The document as YAML, its keys in the given order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
