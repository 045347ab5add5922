"""When the status of a job is written: at most once a second, but immediately if actions wait for it.

The first change after a quiet second is written immediately; later changes within that second are written together at
its end. Until then, reconciliations continue from the pending status, so that a condition which changed twice has two
transitions and two Events. If the operator is killed, up to a second of that is lost: its successor decides again from
the last written status, as after a kill just before any write.

A reconciliation that created or deleted something leaves its status to the next one, which sees the result and is
queued already: one write then says that a job is accepted and has four worker pods.

Some actions must not precede the write of their cause: a failed pod is counted, then deleted; a job finishes, then its
pods are deleted; it is suspended, then it can start a new run; a lost etcd is given up, then deleted; the node of a
slow rank is marked, then its pod is deleted. Delaying these writes would delay pods, so they are made immediately. They
are few: failed pods that count against the budget (a group that fails together is one), and the transitions of a job's
life. docs/design/0009-operator-scale.md explains why reconciliations are not paced instead.
"""

from __future__ import annotations

from elasticjob_api import ConditionType, Status

from elasticjob_operator.policies.stragglers import marked_nodes

STATUS_SECONDS = 1.0
FOLLOW_UP_SECONDS = 0.25
"""Time in which the result of an action should have requeued the job: its response, or the event from the watch."""
FIRST_CONFLICT_SECONDS, MAX_CONFLICT_SECONDS = 0.05, 2.0
"""Between attempts to write the status of a job that changes continuously, s."""


def seconds_to_hold(written: Status, desired: Status, since: float, *, done: bool = False, held: float = 0.0) -> float:
    """How long to delay the write of `desired`, unless another reconciliation comes first, s.

    `written`: what the API server has; `since`: s since that was written; `done`: this reconciliation created or
    deleted something; `held`: s since a status was first delayed.
    """
    if actions_wait(written, desired):
        return 0.0
    rest = max(0.0, STATUS_SECONDS - since)
    return max(rest, FOLLOW_UP_SECONDS) if done and held < STATUS_SECONDS else rest


def conflict_delay(conflicts: int) -> float:
    """Delay of the reconciliation after a conflicting status write, s. `conflicts`: earlier ones in a row.

    No delay at first, because the newer job is known by then; longer each time for a job that is edited continuously.
    """
    return 0.0 if conflicts == 0 else min(MAX_CONFLICT_SECONDS, FIRST_CONFLICT_SECONDS * 2.0 ** min(conflicts - 1, 10))


def actions_wait(written: Status, desired: Status) -> bool:
    """Whether actions wait until `desired` is written."""
    failure = desired.last_failure
    pod_is_counted = failure is not None and failure.rank is None and failure != written.last_failure
    return (
        pod_is_counted
        or _phase_changes(written) != _phase_changes(desired)
        or _etcd_is_given_up(written, desired)
        or _run_id_changes(written, desired)
        or _tier_changes(written, desired)
        or not marked_nodes(desired) <= marked_nodes(written)
    )


def _run_id_changes(written: Status, desired: Status) -> bool:
    """A successor that does not know the new attempt or run would create pods of the last one."""
    before, after = written.rendezvous, desired.rendezvous
    return before is not None and after is not None and before.id != after.id


def _tier_changes(written: Status, desired: Status) -> bool:
    """A successor would choose a tier again, and perhaps another one."""
    before, after = written.rendezvous, desired.rendezvous
    return after is not None and after.tier != (before.tier if before is not None else "")


def _etcd_is_given_up(written: Status, desired: Status) -> bool:
    after = desired.rendezvous
    return after is not None and bool(after.store_generation) and not after.store_pod and after != written.rendezvous


def _phase_changes(status: Status) -> tuple[bool, bool]:
    return status.is_finished, status.is_true(ConditionType.SUSPENDED)


def as_written(status: Status) -> Status:
    """The status as the API server will return it: times have whole seconds."""
    return Status.model_validate(status.to_api())
