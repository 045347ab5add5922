"""When a pod that is no use any more makes room for its successor of the same index.

A lost pod goes at once, by force: nobody is there to end it gracefully. A failed one goes once it is counted (see
restarts.py), and, when pods fail again and again right after their start, after a wait that doubles: until then it
stays, so that its log can be read.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_operator.api import Backoff, Failure, RestartPolicy
from elasticjob_operator.policies.failures import STEADY_SECONDS, Cost, PodFailure, judge, started_at
from elasticjob_operator.policies.restart_budget import Round, is_accounted
from elasticjob_operator.state import Pod

REFUSED_SECONDS = 10.0
"""Wait where trying again at once would end the same way, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """What becomes of a failed pod."""

    delete: bool
    why: str
    requeue_at: datetime.datetime | None = None
    """When it may go; None with `delete` False: once status says that it is counted."""


def replace(
    pod: Pod,
    policy: RestartPolicy,
    *,
    restarts: int,
    counted: Failure | None,
    now: datetime.datetime,
    latest: Round | None = None,
) -> Replacement:
    """`pod` has failed. `counted`: last failure in the status that is *written*; `restarts`: the total with this one;
    `latest`: the newest round."""
    failure = judge(pod, policy.rules)
    why = f"{failure.reason}: {failure.detail}"
    if not is_accounted(pod, failure, counted, latest):
        return Replacement(delete=False, why=why)
    ended = failure.time
    if ended > now:  # by the fast clock of its node
        ended = min(now, counted.time) if counted is not None and counted.time is not None else pod.created_at
    due = ended + wait(pod, failure, policy, restarts)
    return Replacement(delete=now >= due, why=why, requeue_at=None if now >= due else due)


def wait(pod: Pod, failure: PodFailure, policy: RestartPolicy, restarts: int) -> datetime.timedelta:
    """Between the end of a pod and its successor's creation."""
    return datetime.timedelta(seconds=_wait(pod, failure, policy.backoff, restarts))


def _wait(pod: Pod, failure: PodFailure, backoff: Backoff, restarts: int) -> float:
    if failure.cost is Cost.FREE:
        return 0.0
    if failure.cost is Cost.FREE_BUT_WAIT:
        return REFUSED_SECONDS
    if (failure.time - started_at(pod)).total_seconds() >= STEADY_SECONDS:
        return 0.0
    if failure.cost is Cost.IGNORED:
        return REFUSED_SECONDS  # there is no count by which a wait could grow
    if restarts < 2:
        return 0.0
    # The exponent is bounded before it is used: 2.0 ** 2000 is an error.
    return float(min(backoff.max_seconds, backoff.initial_seconds * 2.0 ** min(restarts - 2, 30)))
