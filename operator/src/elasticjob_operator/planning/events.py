"""The Events of a job: changes of its conditions, and actions that matter to its owner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from elasticjob_api import BLOCKING_REASONS, REMEDY, ConditionStatus, ConditionType, Reason, Status, message

from elasticjob_operator.names import host_of
from elasticjob_operator.planning.actions import Action, CreateObject, CreatePod, DeletePod, JobEvent
from elasticjob_operator.state import Kind

_SENTENCE_WITH_TIME = re.compile(r"(?<=\. )[A-Z][^.]*\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\. ?")
_FAILED = re.compile(r"(A worker process|\S+) failed \((.*)\); (?:no )?restart ", re.DOTALL)
_LINE_WITH_TIME = re.compile(r": [^:]*\d\d:\d\d\D.*", re.DOTALL)
"""The last line of a log, if it begins with a time."""
_ROUTINE = frozenset(
    {
        Reason.NOT_FINISHED,
        Reason.FINISHED,
        Reason.WAITING_FOR_WORKERS,
        Reason.NOT_ACCEPTED,  # the Event of Accepted says why
        Reason.WAITING_FOR_ETCD,  # the Event of RendezvousReady says why
        Reason.WAITING_FOR_RENDEZVOUS,
        Reason.ETCD_STARTING,
        Reason.STORE_STARTING,
        Reason.RESUMED,  # the Event of Training says the same
        Reason.SUSPENDING,
        Reason.SCALING_UP,
        Reason.SCALING_DOWN,
        Reason.RESIZED,
        Reason.COMPLETE,
        Reason.NOT_TRAINING,
        Reason.RESIZING,
    }
)
"""Reasons that every job goes through. They cause no Events."""

_READY = frozenset({Reason.ETCD_READY, Reason.STORE_READY})
_STARTING = frozenset({Reason.ETCD_STARTING, Reason.STORE_STARTING})
"""Only a rendezvous that is ready again causes an Event, not one that is ready for the first time."""

_WARNING = BLOCKING_REASONS | {Reason.WORKER_FAILED}
"""Reasons whose Events are warnings, whatever the condition and its status."""
_WARNING_WHEN_TRUE = frozenset(
    {
        ConditionType.FAILED.value,
        ConditionType.STALLED.value,
        ConditionType.DEGRADED.value,
        ConditionType.STRAGGLERS_FOUND.value,
        ConditionType.NODES_SUSPECTED.value,
    }
)
_WARNING_WHEN_FALSE = frozenset(
    {
        ConditionType.ACCEPTED.value,
        ConditionType.RENDEZVOUS_READY.value,
        ConditionType.RUNNING.value,
        ConditionType.SUCCEEDED.value,
    }
)


def events_of_status(before: Status, after: Status, failure: str = "") -> tuple[JobEvent, ...]:
    """One Event for each condition whose status or reason changed. `failure`: message of a failure that is counted now,
    which is an Event even if no condition changes."""
    changes = tuple(_changes(before, after))
    if not failure or any(change.reason is Reason.WORKER_FAILED for change in changes):
        return changes
    return (*changes, JobEvent(reason=Reason.WORKER_FAILED, message=repeatable(failure), warning=True))


def events_of_actions(done: Sequence[Action]) -> tuple[JobEvent, ...]:
    """`done`: actions that were carried out successfully."""
    return tuple(_of_actions(done))


def _changes(before: Status, after: Status) -> Iterator[JobEvent]:
    old = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    told: set[str] = set()  # conditions with the same cause are one Event
    for condition in after.conditions:
        known = old.get(condition.type)
        if known == (condition.status, condition.reason) or condition.reason in told | _ROUTINE:
            continue
        if condition.reason in _READY and (known is None or known[1] in _STARTING):
            continue
        is_true = condition.status is ConditionStatus.TRUE
        if condition.type in (ConditionType.SUCCEEDED, ConditionType.FAILED) and not is_true:
            continue
        warning = (
            condition.reason in _WARNING
            or (condition.type == ConditionType.ACCEPTED and REMEDY in condition.message)
            or (condition.type in _WARNING_WHEN_TRUE and is_true)
            or (condition.type in _WARNING_WHEN_FALSE and not is_true)
        )
        told.add(condition.reason)
        yield JobEvent(reason=Reason(condition.reason), message=repeatable(condition.message), warning=warning)


def repeatable(text: str) -> str:
    """Without times; of a failure, without a last line that has one, the number of the restart, how many pods are
    ready, and the end of the pod's name. So the same Event again has the same text, and is counted, not posted."""
    failed = _FAILED.search(text)
    if failed is None:
        return _SENTENCE_WITH_TIME.sub("", text).rstrip()
    return f"{host_of(failed[1])} failed ({_LINE_WITH_TIME.sub('', failed[2])})."


def _of_actions(done: Sequence[Action]) -> Iterator[JobEvent]:
    created = [action.name for action in done if isinstance(action, CreatePod)]
    if created:
        yield JobEvent(
            reason=Reason.WORKER_CREATED, message=message(Reason.WORKER_CREATED, worker=_summarized(created))
        )
    deleted: dict[str, list[str]] = {}
    for action in done:
        if isinstance(action, DeletePod):
            deleted.setdefault(action.reason, []).append(action.name)
        elif isinstance(action, CreateObject) and action.kind is Kind.STATEFUL_SET:
            text = message(Reason.ETCD_CREATED, name=action.body["metadata"]["name"])
            yield JobEvent(reason=Reason.ETCD_CREATED, message=text)
    for reason, names in deleted.items():
        yield JobEvent(
            reason=Reason.WORKER_DELETED,
            message=message(Reason.WORKER_DELETED, worker=_summarized(names), detail=reason),
        )


MOST_NAMES = 3
"""Of worker pods in an Event."""


def _summarized(pods: Sequence[str]) -> str:
    """A job with a thousand worker pods must not get a thousand Events. By host name: what is repeated has the same
    text, so that Events aggregate."""
    # Of two numbers, the longer one is larger.
    in_order = sorted(pods, key=lambda name: (len(name), name))
    if len(pods) <= MOST_NAMES:
        return ", ".join(map(host_of, in_order))
    return f"{len(pods)} worker pods, the first {host_of(in_order[0])}, the last {host_of(in_order[-1])}"
