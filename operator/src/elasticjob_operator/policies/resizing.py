"""Whether the number of workers is as wanted: the conditions Resizing and Degraded.

Resizing begins when another number is wanted and ends when that many train, nobody is leaving and nothing is put off.
That workers are lost and replaced meanwhile is no resizing: a job that trains without them is Degraded.
"""

from __future__ import annotations

import dataclasses

from elasticjob_operator.api import ConditionType, ElasticJob, Reason, message
from elasticjob_operator.api.fields import format_time
from elasticjob_operator.policies.running import Missing
from elasticjob_operator.policies.scale_up_delay import Growth
from elasticjob_operator.state import RendezvousView


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    status: bool
    reason: Reason
    message: str


def resizing(
    job: ElasticJob,
    growth: Growth,
    view: RendezvousView,
    *,
    ready: int,
    leaving: int,
    trained: bool,
    missing: Missing | None = None,
) -> Judgement | None:
    """`job` wants `growth.replicas`. `ready`: of the pods that stay; `leaving`: pods that are too many; `missing`: what
    keeps those from coming that are not there. None: it never trained, so there is nothing to resize."""
    if not trained:
        return None
    wanted = job.replicas
    if growth.scale_up_at is not None:
        text = message(
            Reason.SCALE_UP_DELAYED, wanted=job.round_down(growth.wish), time=format_time(growth.scale_up_at)
        )
        return Judgement(status=True, reason=Reason.SCALE_UP_DELAYED, message=text)
    if leaving:
        text = message(Reason.SCALING_DOWN, wanted=wanted, leaving=leaving)
        return Judgement(status=True, reason=Reason.SCALING_DOWN, message=text)
    train = _training(view, ready)
    grows = job.status.desired_replicas is not None and wanted > job.status.desired_replicas
    if train < wanted and (grows or job.status.is_true(ConditionType.RESIZING)):
        return _with(missing, Reason.SCALING_UP, message(Reason.SCALING_UP, wanted=wanted, there=train))
    return Judgement(status=False, reason=Reason.RESIZED, message=message(Reason.RESIZED, wanted=wanted))


def degraded(
    job: ElasticJob, view: RendezvousView, *, ready: int, runs: bool, resizing: bool, missing: Missing | None = None
) -> Judgement:
    train = _training(view, ready)
    if runs and not resizing and train < job.replicas:
        before = job.status.condition(ConditionType.DEGRADED)
        # While a successor starts, the reason stays what it was.
        kept = (
            before.reason
            if before and before.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST)
            else Reason.WORKERS_MISSING
        )
        return _with(missing, Reason(kept), message(Reason.WORKERS_MISSING, there=train, wanted=job.replicas))
    reason = Reason.NOT_TRAINING if not runs else Reason.RESIZING if train < job.replicas else Reason.COMPLETE
    return Judgement(status=False, reason=reason, message=message(reason))


def _with(missing: Missing | None, reason: Reason, text: str) -> Judgement:
    """True, for the cause that is known."""
    if missing is None:
        return Judgement(status=True, reason=reason, message=text)
    known = reason if missing.reason is Reason.WAITING_FOR_WORKERS else missing.reason
    return Judgement(status=True, reason=known, message=f"{text} {missing.message}")


def _training(view: RendezvousView, ready: int) -> int:
    """Workers that train: no more than are ready, nor than the agents planned with."""
    return min(ready, view.plan.size) if view.plan else ready
