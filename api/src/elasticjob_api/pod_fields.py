"""The fields of `spec` that shape worker pods.

One list: the CRD keeps them as they are once the job has trained, and a run's template hash covers them, so that a
change is neither lost nor applied to half of a worker group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

if TYPE_CHECKING:
    from elasticjob_api.spec import Spec

FIXED_ONCE_TRAINED = (
    "checkpoint",
    "workers.template",
    "workers.container",
    "workers.procsPerWorker",
    "workers.runtime.inject",
    "workers.preflight",
    "workers.replicaSize",
    "scheduling.priorityClassName",
)
"""Their paths in `spec`. The last names differ, because messages and the hash use these."""
_ALWAYS_HASHED = frozenset({"checkpoint", "template", "container", "procsPerWorker", "inject", "priorityClassName"})
"""Later fields are part of the hash only where they differ from their defaults, so that a new release leaves the hashes
of existing jobs as they are."""


def pod_values(spec: Spec) -> dict[str, Any]:
    """What the template hash covers: last name of a field -> its value as JSON."""
    found = {}
    for path in FIXED_ONCE_TRAINED:
        *parents, last = path.split(".")
        owner: BaseModel = spec
        for parent in parents:
            owner = getattr(owner, to_snake(parent))
        value, default = getattr(owner, to_snake(last)), _default(owner, to_snake(last))
        if last in _ALWAYS_HASHED or value != default:
            found[last] = _as_json(value)
    return found


def _default(owner: BaseModel, name: str) -> Any:
    return type(owner).model_fields[name].get_default(call_default_factory=True)


def _as_json(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
