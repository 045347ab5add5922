"""The restart budget: what was restarted because of failures, and whether that is too much.

`status.restarts.total` is the larger of two counts, so that no failure counts twice: the agents' own (`restart_count` of the plan: worker
processes that failed while their agent lived) and that of whole pods that failed. A failed pod takes its group with it, so pods that fail
together count once: those that were there at the last counted failure and ended within `GROUP_SECONDS` of it.

A failed pod is counted first, in status, and deleted only after that was written. So a killed operator neither forgets a failure nor
counts it twice: whether a pod was counted can be read from status and the pod's own times.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_runtime.contract import FailureValue

from elasticjob_operator.api import ElasticJob, Failure
from elasticjob_operator.policies.failures import Cost, PodFailure, judge
from elasticjob_operator.world import Pod, RendezvousView

GROUP_SECONDS = 5.0
"""How long the rest of a worker group takes to fail of the first failure, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    total: int
    spent: bool
    last_failure: Failure | None
    new_failure: Failure | None = None
    """The newest failure of a whole pod that is counted now, for the first time."""


def account(job: ElasticJob, view: RendezvousView, failed: Iterable[Pod]) -> Budget:
    """The budget after everything that is visible now. Never below what status says."""
    total = max(job.status.restarts.total, view.plan.restart_count if view.plan else 0)
    last = _newer(job.status.last_failure, _reported(view))
    new: Failure | None = None
    for pod, failure in _in_order(failed):
        if failure.cost is Cost.COUNTS and not is_accounted(pod, failure, last):
            total += 1
            last = new = _of_pod(pod, failure)
    return Budget(total=total, spent=total > job.spec.restart_policy.max_restarts, last_failure=last, new_failure=new)


def is_accounted(pod: Pod, failure: PodFailure, last: Failure | None) -> bool:
    """Whether `last` is this pod's failure, a later one, or that of the group it belonged to. Free failures always are."""
    if failure.cost is not Cost.COUNTS:
        return True
    if last is None or last.time is None:
        return False
    if failure.time > last.time + datetime.timedelta(seconds=GROUP_SECONDS):
        return False
    # Times have whole seconds: made in that very second, it is the failed one itself, one of its group, or its successor.
    is_successor = pod.name == last.worker and failure.time > last.time
    return pod.created_at < last.time or (pod.created_at == last.time and not is_successor)


def failure_of(value: FailureValue | Mapping[str, Any]) -> Failure:
    """An agent's record of a failure as status has it."""
    if not isinstance(value, FailureValue):
        value = FailureValue(**{name: value[name] for name in FailureValue.__slots__ if name in value})
    return Failure(
        worker=value.member,
        rank=value.rank,
        exit_code=value.exit_code,
        reason=value.reason,
        message=f"{value.message}\n{value.traceback}".strip(),
        time=datetime.datetime.fromtimestamp(value.time, datetime.timezone.utc) if value.time else None,
    )


def _reported(view: RendezvousView) -> Failure | None:
    if view.outcome is not None and view.outcome.failure:
        return failure_of(view.outcome.failure)
    return failure_of(view.failure) if view.failure is not None else None


def _newer(known: Failure | None, reported: Failure | None) -> Failure | None:
    """The agents' word on the first failure wins, but for what followed from a pod's failure already known."""
    if known is None or reported is None or known.time is None or reported.time is None:
        return reported or known
    of_a_pod = known.rank is None
    patience = datetime.timedelta(seconds=GROUP_SECONDS if of_a_pod else 0)
    return reported if reported.time >= known.time + patience else known


def _in_order(failed: Iterable[Pod]) -> list[tuple[Pod, PodFailure]]:
    return sorted(((pod, judge(pod)) for pod in failed), key=lambda each: (each[1].time, each[0].index))


def _of_pod(pod: Pod, failure: PodFailure) -> Failure:
    words = pod.end.message.strip() if pod.end else ""
    return Failure(
        worker=pod.name,
        exit_code=failure.exit_code,
        reason=failure.reason,
        message=f"{failure.detail}\n{words}".strip(),
        time=failure.time,
    )
