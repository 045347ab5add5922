"""Converts objects of Kueue (kueue.x-k8s.io/v1beta2) to what decisions need. Pure."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator

from elasticjob_operator import names
from elasticjob_operator.kube.cache import Json, to_bytes
from elasticjob_operator.queue_state import (
    Assignment,
    Flavor,
    Placement,
    PodPriority,
    Withdrawals,
    Workload,
    WorkloadPart,
)

_MOST_KEPT = 512 * 1024
"""Bytes of podSets that are kept. Anyone may create Workloads with our labels."""
_MULTIKUEUE_ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""Label of what MultiKueue has copied."""


def workload_of(body: Json) -> Workload:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, pod_sets = metadata.get("labels") or {}, spec.get("podSets") or []
    owners = metadata.get("ownerReferences") or []
    admission = status.get("admission") or {}
    owner_uid = next((owner["uid"] for owner in owners if owner.get("controller")), "")
    # Without an owner, only one that MultiKueue has copied is ever used.
    kept = to_bytes(pod_sets if owner_uid or _MULTIKUEUE_ORIGIN in labels else [])
    return Workload(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid,
        version=metadata["resourceVersion"],
        job_uid=labels.get(names.LABEL_JOB_UID, ""),
        generation=int(metadata.get("generation") or 0),
        part=_part(metadata["name"], labels),
        template_hash=labels.get(names.LABEL_TEMPLATE, ""),
        terminating=bool(metadata.get("deletionTimestamp")),
        queue=spec.get("queueName") or "",
        priority_class=(spec.get("priorityClassRef") or {}).get("name") or "",
        has_pod_priority=(spec.get("priorityClassRef") or {}).get("kind") == "PriorityClass",
        priority=spec.get("priority"),
        active=spec.get("active") is not False,
        pod_sets_json=kept if len(kept) <= _MOST_KEPT else b"[]",
        counts={str(pod_set["name"]): int(pod_set["count"]) for pod_set in pod_sets},
        conditions=tuple(status.get("conditions") or ()),
        assignments={str(part["name"]): _assignment(part) for part in admission.get("podSetAssignments") or ()},
        updates=_updates(status),
        withdrawals=_withdrawals((metadata.get("annotations") or {}).get(names.ANNOTATION_WITHDRAWN)),
        unanswered=tuple(_unanswered(status)),
    )


def _part(name: str, labels: Json) -> WorkloadPart:
    """The label may be changed by hand, the name may not."""
    with contextlib.suppress(ValueError):
        return WorkloadPart(labels.get(names.LABEL_WORKLOAD_PART, ""))
    return WorkloadPart.BASE if name == names.base_workload(labels.get(names.LABEL_JOB, "")) else WorkloadPart.SURPLUS


def flavor_of(body: Json) -> Flavor:
    spec = body.get("spec") or {}
    return Flavor(node_labels=spec.get("nodeLabels") or {}, tolerations=tuple(spec.get("tolerations") or ()))


def priority_of(body: Json) -> int:
    """Of a WorkloadPriorityClass."""
    return int(body["value"])


def pod_priority_of(body: Json) -> PodPriority:
    """Of a PriorityClass."""
    return PodPriority(value=int(body["value"]), is_default=bool(body.get("globalDefault")))


def _assignment(part: Json) -> Assignment:
    flavors = dict.fromkeys((part.get("flavors") or {}).values())
    return Assignment(flavors=tuple(flavors), has_topology=bool(part.get("topologyAssignment")))


def _unanswered(status: Json) -> Iterator[str]:
    for check in status.get("admissionChecks") or ():
        if check.get("state") != "Ready":
            text = f": {check['message']}" if check.get("message") else ""
            yield f"{check['name']} ({check.get('state')}{text})"


def _updates(status: Json) -> dict[str, tuple[Placement, ...]]:
    found: dict[str, tuple[Placement, ...]] = {}
    for check in status.get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            placement = Placement(
                labels=update.get("labels") or {},
                annotations=update.get("annotations") or {},
                node_selector=update.get("nodeSelector") or {},
                tolerations=tuple(update.get("tolerations") or ()),
            )
            found[update["name"]] = (*found.get(update["name"], ()), placement)
    return found


def _withdrawals(text: object) -> Withdrawals:
    """An annotation that someone has changed counts for nothing."""
    count, _, last = str(text or "").partition(" ")
    with contextlib.suppress(ValueError, OverflowError):
        when = datetime.datetime.fromisoformat(last)
        if when.tzinfo is not None:
            return Withdrawals(count=int(count), last=when.astimezone(datetime.timezone.utc))
    return Withdrawals()
