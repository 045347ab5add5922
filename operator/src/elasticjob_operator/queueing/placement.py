"""Where the worker pods of an admitted Workload go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_operator.queue_state import Flavor, Placement, Workload
from elasticjob_operator.queueing import bodies


def unknown_flavor(workload: Workload, flavors: Mapping[str, Flavor]) -> str:
    """A ResourceFlavor of the admission that has not been observed. Workloads and flavors are watched apart, so an
    admission may be known before a flavor that was created just before. Empty: all are known."""
    assigned = (name for assignment in workload.assignments.values() for name in assignment.flavors)
    return next((name for name in assigned if name not in flavors), "")


def placement(
    workload: Workload, pod_set: str, flavors: Mapping[str, Flavor], annotations: Mapping[str, str]
) -> Placement:
    """What the admission adds to pods of that podSet. `annotations`: of their template. Admission checks win over
    flavors."""
    labels: dict[str, str] = {}
    added: dict[str, str] = {}
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    gates: tuple[str, ...] = ()
    assignment = workload.assignments.get(pod_set)
    for name in assignment.flavors if assignment is not None else ():
        if (flavor := flavors.get(name)) is not None:
            selector |= flavor.node_labels
            tolerations += flavor.tolerations
    for change in workload.updates.get(pod_set, ()):
        labels |= change.labels
        added |= change.annotations
        selector |= change.node_selector
        tolerations += change.tolerations
    if assignment is not None and assignment.has_topology:
        # Without a request, the gate would stay forever.
        requested = {} if bodies.asks_for_topology(annotations) else {bodies.UNCONSTRAINED: "true"}
        labels[f"{bodies.GROUP}/podset"] = pod_set
        added |= {f"{bodies.GROUP}/workload": workload.name, **requested}
        gates = (f"{bodies.GROUP}/topology",)
    return Placement(
        labels=labels, annotations=added, node_selector=selector, tolerations=tuple(tolerations), gates=gates
    )
