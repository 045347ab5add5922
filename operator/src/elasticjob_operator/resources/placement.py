"""What the admission of a queue adds to pods: labels, node selector, tolerations and gates."""

from __future__ import annotations

from typing import Any

from elasticjob_operator.queue_state import Placement


def place(pod: dict[str, Any], placement: Placement) -> None:
    """Changes `pod`, a pod or a pod template. What the admission says wins over what its user has written."""
    metadata, spec = pod.setdefault("metadata", {}), pod["spec"]
    if placement.labels:
        metadata["labels"] = {**(metadata.get("labels") or {}), **placement.labels}
    if placement.annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **placement.annotations}
    if placement.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        known = spec.get("tolerations") or []
        spec["tolerations"] = [*known, *(dict(new) for new in placement.tolerations if new not in known)]
    if placement.gates:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), *({"name": name} for name in placement.gates)]
