"""The conditions Resizing and Degraded: whether as many workers train as are wanted.

Resizing starts when another number of workers is wanted. It ends when that many train, no pod is being removed and no
scale-up is delayed. Replacing lost workers is not resizing: a job that trains without them is Degraded.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_api import ConditionType, ElasticJob, Reason, message
from elasticjob_api.fields import format_time

from elasticjob_operator.policies.condition_updates import Cause, ConditionUpdate, update
from elasticjob_operator.policies.scale_up_delay import TargetSize
from elasticjob_operator.state import Pod, RendezvousView

SHOWN = 5
"""Names in a message."""


def resizing(
    job: ElasticJob,
    size: TargetSize,
    view: RendezvousView,
    *,
    ready: int,
    leaving: Sequence[Pod] = (),
    trained: bool,
    missing: Cause | None = None,
) -> ConditionUpdate | None:
    """None: the job has never trained, so there is nothing to resize.

    `job` wants `size.replicas`. `ready`: ready pods, except surplus ones; `leaving`: surplus pods that still run;
    `missing`: why wanted workers are missing.
    """
    if not trained:
        return None
    wanted = job.replicas
    if size.scale_up_at is not None:
        return update(
            True,
            Reason.SCALE_UP_DELAYED,
            wanted=job.round_down(size.requested),
            time=format_time(size.scale_up_at),
        )
    if leaving:
        first = f"{leaving[0].name} {leaving[0].place}".rstrip()
        return update(True, Reason.SCALING_DOWN, wanted=wanted, leaving=len(leaving), worker=first)
    training = _training(view, ready)
    grows = job.status.desired_replicas is not None and wanted > job.status.desired_replicas
    if training < wanted and (grows or job.status.is_true(ConditionType.RESIZING)):
        return _because_of(missing, Reason.SCALING_UP, message(Reason.SCALING_UP, wanted=wanted, there=training))
    return update(False, Reason.RESIZED, wanted=wanted)


def degraded(
    job: ElasticJob, view: RendezvousView, *, ready: int, running: bool, resizing: bool, missing: Cause | None = None
) -> ConditionUpdate:
    training = _training(view, ready)
    if running and view.plan is not None and view.plan.finished:
        return update(True, Reason.FINISHED_EARLY, worker=", ".join(view.plan.finished[:SHOWN]))
    if running and not resizing and training < job.replicas:
        before = job.status.condition(ConditionType.DEGRADED)
        # The reason does not change while a replacement starts.
        kept = (
            before.reason
            if before and before.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST)
            else Reason.WORKERS_MISSING
        )
        text = message(Reason.WORKERS_MISSING, there=training, wanted=job.replicas)
        return _because_of(missing, Reason(kept), text)
    return update(
        False,
        Reason.NOT_TRAINING if not running else Reason.RESIZING if training < job.replicas else Reason.COMPLETE,
    )


def _because_of(missing: Cause | None, reason: Reason, text: str) -> ConditionUpdate:
    """True, with the cause if it is known."""
    if missing is None or missing.reason is Reason.ETCD_STARTING:
        return ConditionUpdate(status=True, reason=reason, message=text)
    known = reason if missing.reason is Reason.WAITING_FOR_WORKERS else missing.reason
    return ConditionUpdate(status=True, reason=known, message=f"{text} {missing.message}")


def _training(view: RendezvousView, ready: int) -> int:
    """Number of workers that train: at most those that are ready, and those in the agents' plan."""
    return min(ready, view.plan.size) if view.plan else ready
