"""docs/reference/contract.md: the keys in etcd and the fields of their values, from `elasticjob_runtime.contract`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from elasticjob_runtime import contract
from elasticjob_runtime.contract import CONTRACT_VERSION, Value

from hack.reference.source import assignments

INTRODUCTION = f"""\
# Contract between operator and agents

The operator and the agents of a job share names, and nothing else: [environment variables](environment.md), [exit codes](elasticrun.md#exit-codes), and the keys in etcd that this page lists.
It is for those who write another agent or operator, or who look into a job's etcd.
[Rendezvous](../design/0002-rendezvous.md) explains how the keys are used.

The contract has version {CONTRACT_VERSION}; a member with another version is rejected (exit code 78).
Within a version, a newer program may write further fields, and readers ignore what they do not know.

## Keys

The keys of a run are below `<prefix>/<run-id>/`; the prefix is `/elasticjob`, the run ID is `PET_RDZV_ID`.

| key | contents | written by |
|---|---|---|
"""


def page() -> str:
    """The page. A pure function of the contract."""
    keys = _keys()
    rows = [f"| `{key}` | {contents} | {author} |" for key, contents, author in keys]
    order = [key for key, _, _ in keys]
    sections = {_key(value): _section(value) for value in _values()}
    found = [sections.pop(key) for key in order if key in sections]
    return INTRODUCTION + "\n".join([*rows, "", "## Values", "", "JSON objects.", "", *found, *sections.values()])


def _keys() -> list[tuple[str, str, str]]:
    """The table in the docstring of the contract: columns are separated by two spaces or more."""
    table = (contract.__doc__ or "").partition("written by\n")[2]
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if line.strip()]
    return [(key, contents, author) for key, contents, author in rows]


def _values() -> list[type[Value]]:
    return [
        var for var in vars(contract).values() if isinstance(var, type) and issubclass(var, Value) and var is not Value
    ]


def _key(value: type[Value]) -> str:
    """The key that a value's docstring begins with."""
    found = re.match(r"`([^`]+)`", inspect.getdoc(value) or "")
    return found[1] if found else value.__name__


def _section(value: type[Value]) -> str:
    docstrings = {assignment.name: assignment.docstring for assignment in assignments(value)}
    text = re.sub(r"^`[^`]+`[:,] ", "", " ".join((inspect.getdoc(value) or "").split()))
    rows = [
        f"| `{field.name}` | {_type(field)} | {docstrings[field.name]} |".replace("  |", " |")
        for field in dataclasses.fields(value)
    ]
    return "\n".join(
        [
            f"### `{_key(value)}`",
            "",
            text[:1].upper() + text[1:],
            "",
            "| field | type | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _type(field: dataclasses.Field[Any]) -> str:
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    kind = str(field.type).replace("|", "\\|")
    return f"`{kind}`" + (", required" if required else "")
