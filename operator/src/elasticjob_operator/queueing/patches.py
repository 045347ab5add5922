"""What is written to a Workload that exists. Each is one JSON merge patch.

A patch replaces lists, so it has all conditions. It has the resourceVersion, too: if Kueue wrote meanwhile, the API
server rejects it, and the next plan repeats it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_api.fields import format_time

from elasticjob_operator.queue_state import Workload

_REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Reasons of an eviction after which the Workload is in the queue again at once. After any other, Kueue puts it there
when the cause is gone."""

Patch = dict[str, Any]


def release(workload: Workload, now: datetime.datetime) -> Patch:
    """Gives the quota back, in one write: after two, Kueue would count wrongly. QuotaReserved=False alone hands it over
    at once, so this is written only after the last pod is gone."""
    evicted = workload.condition("Evicted")
    # Kueue ends the wait of a Workload that is active again only after exactly Deactivated, and evicts with
    # DeactivatedDueToAdmissionCheck and the like.
    reason = str(evicted.get("reason") or "Deactivated").partition("DueTo")[0]
    text = str(evicted.get("message") or "The workload is deactivated")
    requeued = reason in _REQUEUED_AT_ONCE
    changed = [
        _condition("QuotaReserved", False, "Pending", text),
        _condition("Admitted", False, "NoReservation", "The workload has no reservation"),
        _condition("Requeued", requeued, reason, text),
        _condition("PodsReady", False, "WaitForStart", "Not all pods are ready or succeeded"),
    ]
    patch = _status(workload, changed, now)
    patch["status"]["admission"] = None
    return patch


def pods_ready(workload: Workload, now: datetime.datetime) -> Patch:
    """Kueue evicts a Workload that never has this condition. It stays True while training continues with fewer pods."""
    return _status(workload, [_condition("PodsReady", True, "Started", "All pods are ready or succeeded")], now)


def finished(workload: Workload, *, succeeded: bool, message: str, now: datetime.datetime) -> Patch:
    reason = "Succeeded" if succeeded else "Failed"
    return _status(workload, [_condition("Finished", True, reason, message or "The job has finished")], now)


def with_count(workload: Workload, pod_set: str, count: int) -> Patch:
    """Kueue takes back the difference at once; of an admitted Workload, the count can only be lowered."""
    pod_sets = [{**known, "count": count} if known["name"] == pod_set else known for known in workload.pod_sets]
    return with_pod_sets(workload, pod_sets)


def with_pod_sets(workload: Workload, pod_sets: Sequence[Mapping[str, Any]]) -> Patch:
    """Only of a Workload that waits: Kueue rejects it for any other."""
    return {"metadata": {"resourceVersion": workload.version}, "spec": {"podSets": list(pod_sets)}}


def _condition(type_: str, status: bool, reason: str, message: str) -> dict[str, Any]:
    return {"type": type_, "status": str(status), "reason": reason, "message": message}


def _status(workload: Workload, changed: Sequence[Mapping[str, Any]], now: datetime.datetime) -> Patch:
    conditions = {str(known["type"]): dict(known) for known in workload.conditions}
    for new in changed:
        known = conditions.get(new["type"], {})
        same = known.get("status") == new["status"]
        conditions[new["type"]] = {
            **new,
            "lastTransitionTime": known["lastTransitionTime"] if same else format_time(now),
            "observedGeneration": workload.generation,
        }
    return {
        "metadata": {"resourceVersion": workload.version},
        "status": {"conditions": list(conditions.values())},
    }
