"""`status.summary`: one word for all conditions of an ElasticJob."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_api.conditions import Condition, ConditionStatus, ConditionType, Reason

BLOCKING_REASONS = frozenset(
    {
        Reason.POD_REJECTED,
        Reason.OBJECT_REJECTED,
        Reason.IMAGE_UNAVAILABLE,
        Reason.CONTAINER_CONFIG_ERROR,
        Reason.RUNTIME_UNAVAILABLE,
        Reason.UNSCHEDULABLE,
        Reason.CLAIM_UNBOUND,
        Reason.NAME_IN_USE,
        Reason.NO_ETCD_TIER,
        Reason.ETCD_TIER_REMOVED,
        Reason.NAMESPACE_TERMINATING,
        Reason.NODE_SILENT,
        Reason.NODES_UNHEALTHY,
        Reason.QUEUE_UNAVAILABLE,
        Reason.PRIORITY_CLASS_MISSING,
        Reason.WORKLOAD_REJECTED,
    }
)
"""Reasons that may need someone's action before the job can run."""
_ETCD_PROBLEMS = frozenset(
    {Reason.ETCD_UNREACHABLE, Reason.ETCD_DENIED, Reason.ETCD_UNTRUSTED, Reason.ETCD_CREDENTIALS_UNUSABLE}
)


def summary_of(conditions: Iterable[Condition]) -> str:
    """`status.summary`, one word: how the job ended, that it is running or suspended, or why it is not running."""
    known: dict[str, Condition] = {condition.type: condition for condition in conditions}

    def is_true(type_: ConditionType) -> bool:
        return type_ in known and known[type_].status is ConditionStatus.TRUE

    def reason(type_: ConditionType) -> str:
        return known[type_].reason if type_ in known else ""

    # A job that may not run by its queue has both conditions: then, Queued says more, and a rejection more than that.
    suspended = () if is_true(ConditionType.QUEUED) else (ConditionType.SUSPENDED,)
    for type_ in (ConditionType.SUCCEEDED, ConditionType.FAILED, *suspended):
        if is_true(type_):
            return str(type_)
    accepted = known.get(ConditionType.ACCEPTED)
    if accepted is None or accepted.status is ConditionStatus.FALSE:
        return accepted.reason if accepted else ""
    if is_true(ConditionType.SUSPENDED):
        return str(ConditionType.QUEUED)
    if is_true(ConditionType.RUNNING):
        return next(
            (
                each.value
                for each in (ConditionType.STALLED, ConditionType.DEGRADED, ConditionType.RESIZING)
                if is_true(each)
            ),
            ConditionType.RUNNING.value,
        )
    waiting_for = reason(ConditionType.RUNNING)
    if waiting_for in BLOCKING_REASONS or waiting_for == Reason.SUSPENDING:
        return waiting_for
    if is_true(ConditionType.RESTARTING):
        return ConditionType.RESTARTING.value
    rendezvous = reason(ConditionType.RENDEZVOUS_READY)
    return rendezvous if rendezvous in _ETCD_PROBLEMS else waiting_for or ConditionType.ACCEPTED.value
