"""When a failed worker pod is deleted, so that a new pod takes its index.

A failed pod is deleted once its failure is counted (see restart_budget.py). If pods keep failing right after they
start, the delay doubles each time; the failed pod stays until then, so that its log can be read. Lost pods are deleted
immediately, by force, because no kubelet is left to stop them.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import Backoff, Failure, RestartPolicy

from elasticjob_operator.policies.failures import STEADY_SECONDS, Cost, PodFailure, started_at
from elasticjob_operator.policies.restart_budget import Round, is_counted
from elasticjob_operator.state import Pod

RETRY_SECONDS = 10.0
"""Delay where an immediate retry would probably fail in the same way, in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """Whether a failed pod is to be deleted."""

    delete: bool
    reason: str
    requeue_at: datetime.datetime | None = None
    """When to delete it. None with `delete` False: once status says that its failure is counted."""


def replacement(
    pod: Pod,
    failure: PodFailure,
    policy: RestartPolicy,
    *,
    restarts: int,
    counted: Failure | None,
    now: datetime.datetime,
    latest: Round | None = None,
) -> Replacement:
    """`counted`: the last failure in the status that is *written*; `restarts`: the total, with this failure; `latest`:
    the newest round."""
    reason = f"{failure.reason}: {failure.detail}"
    if not is_counted(pod, failure, counted, latest):
        return Replacement(delete=False, reason=reason)
    ended = failure.time
    if ended > now:  # the clock of its node is fast
        ended = min(now, counted.time) if counted is not None and counted.time is not None else pod.created_at
    due = ended + delay(pod, failure, policy, restarts)
    return Replacement(delete=now >= due, reason=reason, requeue_at=None if now >= due else due)


def delay(pod: Pod, failure: PodFailure, policy: RestartPolicy, restarts: int) -> datetime.timedelta:
    """Time between the end of a pod and the creation of its replacement."""
    return datetime.timedelta(seconds=_delay_seconds(pod, failure, policy.backoff, restarts))


def _delay_seconds(pod: Pod, failure: PodFailure, backoff: Backoff, restarts: int) -> float:
    if failure.cost is Cost.FREE:
        return 0.0
    if failure.cost is Cost.FREE_BUT_WAIT:
        return RETRY_SECONDS
    if (failure.time - started_at(pod)).total_seconds() >= STEADY_SECONDS:
        return 0.0
    if failure.cost is Cost.IGNORED:
        return RETRY_SECONDS  # ignored failures are not counted, so there is nothing to scale a backoff by
    if restarts < 2:
        return 0.0
    # The exponent is bounded before it is used: 2.0 ** 2000 raises OverflowError.
    return float(min(backoff.max_seconds, backoff.initial_seconds * 2.0 ** min(restarts - 2, 30)))
