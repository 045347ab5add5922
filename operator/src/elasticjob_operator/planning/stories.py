"""The Events of a plan: what changed in the conditions, and what was done that a person wants to know of. Each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasticjob_operator.api import ConditionStatus, ConditionType, Reason, Status, message
from elasticjob_operator.planning.actions import Action, CreateObject, CreatePod, DeletePod, Story
from elasticjob_operator.world import Kind

_UNTOLD = frozenset(
    {
        Reason.NOT_FINISHED,
        Reason.FINISHED,
        Reason.WAITING_FOR_WORKERS,
        Reason.WAITING_FOR_RENDEZVOUS,
        Reason.ETCD_STARTING,
        Reason.RESUMED,  # Training says the same
        Reason.SUSPENDING,
        Reason.SCALING_UP,
        Reason.SCALING_DOWN,
        Reason.RESIZED,
        Reason.COMPLETE,
        Reason.NOT_TRAINING,
    }
)
"""Reasons that are the ordinary course of things."""

_BAD_WHEN_TRUE = frozenset({ConditionType.FAILED.value, ConditionType.DEGRADED.value})
_GOOD_WHEN_TRUE = frozenset(
    {ConditionType.ACCEPTED.value, ConditionType.RENDEZVOUS_READY.value, ConditionType.RUNNING.value, ConditionType.SUCCEEDED.value}
)


def tell(before: Status, after: Status, actions: Sequence[Action]) -> tuple[Story, ...]:
    return (*_changes(before, after), *_deeds(actions))


def _changes(before: Status, after: Status) -> Iterator[Story]:
    """A condition whose status or reason changed."""
    old = {each.type: (each.status, each.reason) for each in before.conditions}
    for condition in after.conditions:
        if old.get(condition.type) == (condition.status, condition.reason) or condition.reason in _UNTOLD:
            continue
        if condition.reason == Reason.SUSPENDED and condition.type != ConditionType.SUSPENDED:
            continue  # said once
        is_true = condition.status is ConditionStatus.TRUE
        if condition.type in (ConditionType.SUCCEEDED, ConditionType.FAILED) and not is_true:
            continue
        bad = (condition.type in _BAD_WHEN_TRUE and is_true) or (condition.type in _GOOD_WHEN_TRUE and not is_true)
        bad = bad or condition.reason == Reason.WORKER_FAILED
        yield Story(reason=Reason(condition.reason), message=condition.message, warning=bad)


def _deeds(actions: Sequence[Action]) -> Iterator[Story]:
    created = [str(action.body["metadata"]["name"]) for action in actions if isinstance(action, CreatePod)]
    if created:
        names = created[0] if len(created) == 1 else f"{len(created)} workers, {created[0]} to {created[-1]}"
        yield Story(reason=Reason.WORKER_CREATED, message=message(Reason.WORKER_CREATED, worker=names))
    for action in actions:
        if isinstance(action, DeletePod):
            told = message(Reason.WORKER_DELETED, worker=action.name, detail=action.why)
            yield Story(reason=Reason.WORKER_DELETED, message=told)
        elif isinstance(action, CreateObject) and action.kind is Kind.STATEFUL_SET:
            told = message(Reason.ETCD_CREATED, name=action.body["metadata"]["name"])
            yield Story(reason=Reason.ETCD_CREATED, message=told)
