"""Whether a Workload that exists asks for as much as the operator asked for.

Anyone who may patch Workloads could lower what one asks for while it waits: Kueue would admit it at once, and its pods
would use more. So a Workload that waits is put right, as Kueue's own integrations do.

Only what is missing or smaller counts. The API server and webhooks add defaults, and write quantities in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from elasticjob_operator.queueing.bodies import WORKERS
from elasticjob_operator.resources.drift import amount


def shortfall(pod_sets: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]) -> str:
    """What `pod_sets` ask for less than `wanted`. Empty: nothing. The number of worker pods is not compared: it
    changes."""
    known = {pod_set["name"]: pod_set for pod_set in pod_sets}
    return next((text for entry in wanted for text in _shortfalls(known.get(entry["name"]), entry)), "")


def _shortfalls(known: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> Iterator[str]:
    name = wanted["name"]
    if known is None:
        yield f"podSet {name} is missing"
        return
    if name != WORKERS and known.get("count", 0) < wanted["count"]:
        yield f"podSet {name} has {known.get('count', 0)} pods instead of {wanted['count']}"
    there, own = _requests(known), _requests(wanted)
    for (container, resource), (least, text) in own.items():
        found = there.get((container, resource))
        if found is None or found[0] < least:
            asked = found[1] if found is not None else "no"
            yield f"{container} of podSet {name} asks for {asked} {resource} instead of {text}"


def _requests(pod_set: Mapping[str, Any]) -> dict[tuple[str, str], tuple[Decimal, object]]:
    """By container and resource: (amount, as it is written). A limit is the request where there is none."""
    spec = (pod_set.get("template") or {}).get("spec") or {}
    parts = [("the pod", spec)]
    for field in ("initContainers", "containers"):
        parts += [(f"container {container.get('name')}", container) for container in spec.get(field) or ()]
    found = {}
    for name, part in parts:
        resources = part.get("resources") or {}
        for resource, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            if (known := _amount(value)) is not None:
                found[name, resource] = (known, value)
    return found


def _amount(value: object) -> Decimal | None:
    """None: the API server says that it is no quantity."""
    try:
        found = amount(value)
    except (TypeError, ArithmeticError):
        return None
    return found if isinstance(found, Decimal) and found.is_finite() else None
