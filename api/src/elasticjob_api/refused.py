"""Fields that the API had before, and what takes their place.

A field that is unknown is pruned or ignored, and a job that is read without it means something else: one that was
suspended would start. So these remain in the CRD, with a rule that rejects them, and `ElasticJob.parse` reads no job
that has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob_api.crd.cel import Rule, rule, rules

Schema = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Refused:
    """A field that is rejected."""

    path: str
    """As in `spec.workers.replicas`."""
    schema: Mapping[str, Any]
    """What its value was."""
    remedy: str
    """What to write instead."""

    @property
    def message(self) -> str:
        return f"{self.path.removeprefix('spec.')} is not supported any more: {self.remedy}"


REFUSED = (
    Refused("spec.lifecycle.suspend", {"type": "boolean"}, "use spec.suspend"),
    Refused("spec.lifecycle.managedBy", {"type": "string"}, "use spec.managedBy"),
    Refused(
        "spec.restartPolicy",
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "use spec.failurePolicy, which has the same fields",
    ),
    Refused(
        "spec.workers.replicaStep",
        {"type": "integer", "format": "int32", "maximum": 2**31 - 1},
        "list the sizes in spec.workers.allowedReplicas, such as [2, 4, 6]",
    ),
)


def refusals(body: Mapping[str, Any]) -> Iterator[str]:
    """A line for each refused field of an ElasticJob: its path, and what to write instead."""
    for refused in REFUSED:
        value: Any = body
        for name in refused.path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            yield f"{refused.path}: {refused.message}"


def _only_stored(refused: Refused) -> Rule:
    """Accepts the field of an object that has it already, so that the operator can write status."""
    return rule("oldSelf.hasValue()", refused.message, reason="FieldValueForbidden", optional_old_self=True)


def add_refused(spec: Schema) -> None:
    """Adds the refused fields to the schema of `spec`."""
    for refused in REFUSED:
        *parents, name = refused.path.split(".")[1:]
        schema = spec
        for parent in parents:
            schema = schema["properties"][parent]
        schema["properties"][name] = {
            "description": f"Rejected: {refused.remedy}.",
            **refused.schema,
            **rules(_only_stored(refused)),
        }
