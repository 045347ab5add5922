"""The Events of a round: what changed in the conditions, and what was done that a person wants to know of. Each
once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasticjob_operator.api import ConditionStatus, ConditionType, Reason, Status, message
from elasticjob_operator.planning.actions import Action, CreateObject, CreatePod, DeletePod, JobEvent
from elasticjob_operator.state import Kind

_UNTOLD = frozenset(
    {
        Reason.NOT_FINISHED,
        Reason.FINISHED,
        Reason.WAITING_FOR_WORKERS,
        Reason.WAITING_FOR_RENDEZVOUS,
        Reason.ETCD_STARTING,
        Reason.STORE_STARTING,
        Reason.RESUMED,  # Training says the same
        Reason.SUSPENDING,
        Reason.SCALING_UP,
        Reason.SCALING_DOWN,
        Reason.RESIZED,
        Reason.COMPLETE,
        Reason.NOT_TRAINING,
        Reason.RESIZING,
    }
)
"""Reasons that are the ordinary course of things."""

_READY = frozenset({Reason.ETCD_READY, Reason.STORE_READY})
_STARTS = frozenset({Reason.ETCD_STARTING, Reason.STORE_STARTING})
"""Ready for the first time is the ordinary course too, and would be an Event of every job; ready again is news."""

_BAD = frozenset(
    {
        Reason.WORKER_FAILED,
        Reason.POD_REFUSED,
        Reason.OBJECT_REFUSED,
        Reason.IMAGE_UNAVAILABLE,
        Reason.CONTAINER_CONFIG_ERROR,
        Reason.UNSCHEDULABLE,
        Reason.NODE_SILENT,
        Reason.NODES_UNHEALTHY,
    }
)
"""Reasons for which somebody may have to do something, whatever the condition."""

_BAD_WHEN_TRUE = frozenset({ConditionType.FAILED.value, ConditionType.STALLED.value, ConditionType.DEGRADED.value})
_GOOD_WHEN_TRUE = frozenset(
    {
        ConditionType.ACCEPTED.value,
        ConditionType.RENDEZVOUS_READY.value,
        ConditionType.RUNNING.value,
        ConditionType.SUCCEEDED.value,
    }
)


def tell(before: Status, after: Status, failure: str = "") -> tuple[JobEvent, ...]:
    """Of conditions whose status or reason changed. `failure`: one that is counted now, which is told even where
    conditions stay."""
    changes = tuple(_changes(before, after))
    if not failure or any(each.reason is Reason.WORKER_FAILED for each in changes):
        return changes
    return (*changes, JobEvent(reason=Reason.WORKER_FAILED, message=failure, warning=True))


def events_of_actions(done: Sequence[Action]) -> tuple[JobEvent, ...]:
    """`done`: actions that were carried out. What was refused did not happen."""
    return tuple(_deeds(done))


def _changes(before: Status, after: Status) -> Iterator[JobEvent]:
    old = {each.type: (each.status, each.reason) for each in before.conditions}
    for condition in after.conditions:
        if old.get(condition.type) == (condition.status, condition.reason) or condition.reason in _UNTOLD:
            continue
        known = old.get(condition.type)
        if condition.reason in _READY and (known is None or known[1] in _STARTS):
            continue
        if condition.reason == Reason.SUSPENDED and condition.type != ConditionType.SUSPENDED:
            continue  # said once
        is_true = condition.status is ConditionStatus.TRUE
        if condition.type in (ConditionType.SUCCEEDED, ConditionType.FAILED) and not is_true:
            continue
        bad = (condition.type in _BAD_WHEN_TRUE and is_true) or (condition.type in _GOOD_WHEN_TRUE and not is_true)
        bad = bad or condition.reason in _BAD
        yield JobEvent(reason=Reason(condition.reason), message=condition.message, warning=bad)


def _deeds(done: Sequence[Action]) -> Iterator[JobEvent]:
    created = [str(action.body["metadata"]["name"]) for action in done if isinstance(action, CreatePod)]
    if created:
        yield JobEvent(reason=Reason.WORKER_CREATED, message=message(Reason.WORKER_CREATED, worker=_together(created)))
    deleted: dict[str, list[str]] = {}
    for action in done:
        if isinstance(action, DeletePod):
            deleted.setdefault(action.why, []).append(action.name)
        elif isinstance(action, CreateObject) and action.kind is Kind.STATEFUL_SET:
            told = message(Reason.ETCD_CREATED, name=action.body["metadata"]["name"])
            yield JobEvent(reason=Reason.ETCD_CREATED, message=told)
    for why, names in deleted.items():
        yield JobEvent(
            reason=Reason.WORKER_DELETED, message=message(Reason.WORKER_DELETED, worker=_together(names), detail=why)
        )


def _together(names: Sequence[str]) -> str:
    """A job of a thousand workers is not told of in a thousand Events."""
    return names[0] if len(names) == 1 else f"{len(names)} worker pods, {names[0]} to {names[-1]}"
