"""When a failed worker pod is deleted, so that a new pod takes its index.

A failed pod is deleted once its failure is counted (see restart_budget.py). If pods keep failing right after they
start, the delay doubles each time, whether they count or not (see free_ends.py); the failed pod stays until then, so
that its log can be read. Lost pods are deleted immediately, by force, because no kubelet is left to stop them.

With torchrun's own backends, a torchrun that ends with an error closes the rendezvous for all: with etcd-v2 forever,
with c10d as long as worker pod 0 lives. A torchrun that joins later fails, which would use up the restart budget. So
all worker pods are then replaced together, and the new ones are another attempt of the run, with a run ID of its own.
Its number is written to status before any pod is deleted, and none of its pods is created before those of the last
have ended.
"""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_api import ElasticJob, Failure, FailurePolicy

from elasticjob_operator.policies.failures import SIGNAL_BASE, STEADY_SECONDS, Cost, PodFailure, ran_seconds
from elasticjob_operator.policies.free_ends import delay_seconds
from elasticjob_operator.policies.restart_budget import Budget, is_counted
from elasticjob_operator.state import Pod


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
    policy: FailurePolicy,
    *,
    budget: Budget,
    counted: Failure | None,
    now: datetime.datetime,
) -> Replacement:
    """`counted`: the last failure in the status that is *written*; `budget`: with this failure."""
    reason = f"{failure.reason}: {failure.detail}"
    if not is_counted(pod, failure, counted, budget.latest):
        return Replacement(delete=False, reason=reason)
    ended = failure.time
    if ended > now:  # the clock of its node is fast
        ended = min(now, counted.time) if counted is not None and counted.time is not None else pod.created_at
    due = ended + delay(pod, failure, policy, budget)
    return Replacement(delete=now >= due, reason=reason, requeue_at=None if now >= due else due)


def closes_rendezvous(job: ElasticJob, failure: PodFailure) -> bool:
    """Whether the rendezvous of that pod must be taken for closed: its torchrun ended by itself, with an error. After a
    signal, it leaves the rendezvous open."""
    code = failure.exit_code
    return not job.has_plans and not failure.before_training and code is not None and 0 < code < SIGNAL_BASE


def delay(pod: Pod, failure: PodFailure, policy: FailurePolicy, budget: Budget) -> datetime.timedelta:
    """Time between the end of a pod and the creation of its replacement."""
    if failure.cost is not Cost.COUNTS:
        return datetime.timedelta(seconds=delay_seconds(pod, failure, budget.free_ends))
    if ran_seconds(pod, failure) >= STEADY_SECONDS or budget.total < 2:
        return datetime.timedelta()
    # The exponent is bounded before it is used: 2.0 ** 2000 raises OverflowError.
    seconds = policy.backoff.initial_seconds * 2.0 ** min(budget.total - 2, 30)
    return datetime.timedelta(seconds=min(policy.backoff.max_seconds, seconds))
