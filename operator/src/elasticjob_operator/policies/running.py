"""The conditions Running and Restarting: whether a worker group trains.

Running: the agents have a plan, the training containers of at least minReplicas pods are running, and nothing failed.
Restarting: the job has trained before, does not train now, and will continue; it ends when the agents have made another
plan. A pod that is not ready because of a probe or of another container changes neither, because the agents know
whether they are training; only without their plans must pods be ready.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from elasticjob_api import BLOCKING_REASONS, ConditionType, ElasticJob, Failure, Reason, message
from elasticjob_api.fields import format_time

from elasticjob_operator.policies.condition_updates import Cause, ConditionUpdate, cause, update
from elasticjob_operator.policies.failures import Cost, PodFailure
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.policies.replacement import delay
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import POD, Connectivity, Pod, PodPhase, Rejection, RendezvousView

CONFIG_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "InvalidImageName",
        "ErrImageNeverPull",
        "StartError",
    }
)
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})
_RUNTIME_REMEDY = (
    "Check the chart's runtime.repository and runtime.tag, whether that image exists for the node's architecture, and "
    "the pod's imagePullSecrets; or set spec.workers.runtime.inject to None if the image of the worker pods contains "
    "the runtime."
)
_LONGEST_WAIT = 86_400.0
"""What an agent may say that it waits before a restart, in seconds."""
_NOT_TRANSIENT = BLOCKING_REASONS | {Reason.OUTCOME_UNKNOWN}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Whether a worker group trains."""

    running: ConditionUpdate
    restarting: ConditionUpdate | None
    """None: leave the condition as it is. A job that has never trained cannot restart either."""
    missing: Cause | None
    """Why wanted workers are missing, if the cause is known."""

    @property
    def is_running(self) -> bool:
        return self.running.status is True


def training(
    job: ElasticJob,
    view: RendezvousView,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    *,
    rejection: Rejection | None = None,
    kept: Cause | None = None,
) -> Training:
    """`workers`: all but surplus pods. `rejection`: of something that is missing now. `kept`: why pods on a silent
    node are not replaced."""
    missing = _missing(job, workers, budget, rejection, kept)
    running = _running(job, view, workers, missing)
    return Training(
        running=running,
        restarting=_resumed(job, view) if running.status else _restarting(job, view, workers, budget),
        missing=missing,
    )


def at_work(job: ElasticJob, workers: Sequence[tuple[Pod, PodStatus]]) -> int:
    """Number of worker pods that train if the agents' plan says so; without plans, of those that are ready."""
    live = [pod for pod, status in workers if status.state is PodState.LIVE]
    return sum(pod.may_train if job.has_plans else pod.ready for pod in live)


def _running(
    job: ElasticJob, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]], missing: Cause | None
) -> ConditionUpdate:
    ready = at_work(job, workers)
    left = _left_of_round(view, workers) if job.has_plans else None
    if ready >= job.min_replicas and left is None and (not job.has_plans or _is_planned(job, view)):
        text = _training_message(job, view, ready)
        text = f"{text} {missing.message}" if _is_not_transient(missing) and missing else text
        return ConditionUpdate(status=True, reason=Reason.TRAINING, message=text)
    if left is not None and not _is_not_transient(missing):
        size = view.plan.size if view.plan else 0
        return update(False, Reason.RENDEZVOUS_LOST, left=left, size=size, round=_round_number(job, view))
    return _waiting(job, ready, missing)


def _training_message(job: ElasticJob, view: RendezvousView, ready: int) -> str:
    if not job.has_plans:
        return (
            f"{ready} of {job.replicas} worker pods are ready; backend {job.spec.rendezvous.backend} does not "
            "report the state of training."
        )
    return message(
        Reason.TRAINING,
        round=_round_number(job, view),
        world_size=view.plan.world_size if view.plan else job.status.world_size,
        ready=ready,
        wanted=job.replicas,
    )


def _is_not_transient(missing: Cause | None) -> bool:
    return missing is not None and missing.reason in _NOT_TRANSIENT


def _round_number(job: ElasticJob, view: RendezvousView) -> int:
    return view.plan.round if view.plan else job.status.round


def _left_of_round(view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]]) -> int | None:
    """How many worker pods of the last plan are ready, if some are not and etcd is unreachable: without etcd, the
    agents cannot make another plan. None: training may be continuing."""
    if view.plan is None or view.connectivity is Connectivity.REACHABLE:
        return None
    made_by = view.plan.created_at or float("inf")
    known = [pod for pod, status in workers if status.state is PodState.LIVE and pod.created_at.timestamp() <= made_by]
    left = sum(pod.may_train for pod in known)
    return left if left < view.plan.size else None


def _is_planned(job: ElasticJob, view: RendezvousView) -> bool:
    round_number = _round_number(job, view)
    return round_number > 0 and not _group_failed(view, round_number) and _is_planned_since_restart(job, view)


def _group_failed(view: RendezvousView, round_number: int) -> bool:
    """A worker of the current plan failed, and there is no other plan yet."""
    return view.failure is not None and view.failure.round >= round_number


def _is_planned_since_restart(job: ElasticJob, view: RendezvousView) -> bool:
    """After a restart, only another plan means training. If etcd was lost together with all workers, rounds start at 1
    again: then the time of the plan decides."""
    if not job.status.is_true(ConditionType.RESTARTING):
        return True
    before = job.status.condition(ConditionType.RESTARTING)
    if view.plan is None or before is None:
        return False
    return view.plan.round != job.status.round or view.plan.created_at >= before.last_transition_time.timestamp()


def _waiting(job: ElasticJob, ready: int, missing: Cause | None) -> ConditionUpdate:
    if missing is not None and missing.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST) and job.status.round > 0:
        missing = None  # the condition Restarting says so
    if ready >= job.min_replicas and not _is_not_transient(missing):
        return update(False, Reason.WAITING_FOR_RENDEZVOUS, ready=ready, wanted=job.replicas)
    counts = update(False, Reason.WAITING_FOR_WORKERS, ready=ready, wanted=job.replicas, min=job.min_replicas)
    if missing is None:
        return counts
    return ConditionUpdate(status=False, reason=missing.reason, message=f"{counts.message} {missing.message}")


def _missing(
    job: ElasticJob,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    rejection: Rejection | None,
    kept: Cause | None,
) -> Cause | None:
    """The first that applies: the API server rejects a create; pods on a silent node are not replaced; a pod does not
    start, with the message of the kubelet or the scheduler; a pod has failed or was lost."""
    if rejection is not None:
        reason = Reason.POD_REJECTED if POD in rejection.kinds else Reason.OBJECT_REJECTED
        return cause(reason, error=rejection.message)
    if kept is not None:
        return kept
    blocked = next((pod for pod, status in workers if pod.blocked and status.state is PodState.LIVE), None)
    if blocked is not None:
        return _blocked(blocked)
    return _failed_or_lost(job, workers, budget)


def _blocked(pod: Pod) -> Cause | None:
    if pod.blocked is None:
        return None
    reason = _blocked_reason(pod.blocked.reason)
    detail = f"{pod.blocked.reason}: {pod.blocked.message}" if pod.blocked.message else pod.blocked.reason
    if pod.blocked.runtime and reason in (Reason.IMAGE_UNAVAILABLE, Reason.CONTAINER_CONFIG_ERROR):
        return cause(Reason.RUNTIME_UNAVAILABLE, detail=f"{pod.name}: {detail}. {_RUNTIME_REMEDY}")
    if reason is Reason.WAITING_FOR_WORKERS:
        return Cause(reason=reason, message=f"{pod.name}: {detail}")
    return cause(reason, worker=pod.name, since=format_time(pod.created_at), detail=detail)


def _blocked_reason(reason: str) -> Reason:
    if reason in IMAGE_REASONS:
        return Reason.IMAGE_UNAVAILABLE
    if reason in CONFIG_REASONS:
        return Reason.CONTAINER_CONFIG_ERROR
    return Reason.UNSCHEDULABLE if reason == "Unschedulable" else Reason.WAITING_FOR_WORKERS


def _resumed(job: ElasticJob, view: RendezvousView) -> ConditionUpdate | None:
    if job.status.condition(ConditionType.RESTARTING) is None:
        return None
    return update(False, Reason.RESUMED, round=_round_number(job, view))


def _restarting(
    job: ElasticJob, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget
) -> ConditionUpdate | None:
    """For a job that does not train now."""
    before = job.status.condition(ConditionType.RESTARTING)
    if job.status.round == 0:
        return None
    gone = _failed_or_lost(job, workers, budget)
    if _group_failed(view, job.status.round) and (gone is None or gone.reason is not Reason.WORKER_FAILED):
        # The agents count the restart in their next plan.
        return ConditionUpdate(status=True, reason=Reason.WORKER_FAILED, message=undecided_message(job, view, budget))
    if gone is not None:
        return ConditionUpdate(status=True, reason=gone.reason, message=gone.message)
    # No failed pod is left, and its replacement is starting: keep the reason and message.
    if (
        before is not None
        and job.status.is_true(ConditionType.RESTARTING)
        and before.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST)
    ):
        return ConditionUpdate(status=True, reason=Reason(before.reason), message=before.message)
    missing = job.replicas - sum(pod.phase is PodPhase.RUNNING for pod, _ in workers)
    if missing <= 0:
        return None
    return update(True, Reason.WORKER_LOST, worker=f"{missing} of {job.replicas} worker pods", detail="being replaced")


def _failed_or_lost(job: ElasticJob, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget) -> Cause | None:
    """The first worker that failed or was lost; failures that count come before those that are free."""
    failed = [(pod, status.failure) for pod, status in workers if status.failure is not None]
    for pod, failure in failed:
        if failure.cost is Cost.COUNTS:
            text = worker_failed(job, budget) + _replacement_time(job, pod, failure, budget)
            return Cause(reason=Reason.WORKER_FAILED, message=text)
    for pod, failure in failed:
        text = message(Reason.WORKER_LOST, worker=pod.name, detail=failure.detail)
        return Cause(reason=Reason.WORKER_LOST, message=text + _replacement_time(job, pod, failure, budget))
    for pod, status in workers:
        # The operator itself deletes failed pods: their cause was recorded before.
        if status.state is PodState.LOST or (status.state is PodState.TERMINATING and not pod.failed):
            return cause(Reason.WORKER_LOST, worker=pod.name, detail=status.reason)
    return None


def worker_failed(job: ElasticJob, budget: Budget) -> str:
    """The newest failure that counts, and the number of the restart that follows."""
    worker, detail = _described(budget.last_failure)
    limit = job.spec.restart_policy.max_restarts
    return message(Reason.WORKER_FAILED, worker=worker, detail=detail, restarts=budget.total, max_restarts=limit)


def undecided_message(job: ElasticJob, view: RendezvousView, budget: Budget) -> str:
    """The next plan or the outcome decides whether the group restarts; the message does not anticipate it."""
    last, limit = budget.last_failure, job.spec.restart_policy.max_restarts
    worker, detail = _described(last)
    text = (
        f"{worker} failed ({detail}); restart {budget.total + 1} of at most {limit} follows unless the agents give up."
    )
    wait = min(view.failure.restart_delay, _LONGEST_WAIT) if view.failure is not None else 0.0
    if wait <= 0 or last is None or last.time is None:
        return text
    return f"{text} The next attempt is at {format_time(last.time + datetime.timedelta(seconds=wait))}."


def _described(failure: Failure | None) -> tuple[str, str]:
    """(worker, what happened to it)"""
    if failure is None:
        return "A worker process", "unknown"
    line = failure.message.splitlines()[0] if failure.message else ""
    more = f": {line}" if line and not line.startswith("exit code") else ""
    return failure.worker, f"{failure.reason}, exit code {failure.exit_code}{more}"


def _replacement_time(job: ElasticJob, pod: Pod, failure: PodFailure, budget: Budget) -> str:
    """A sentence that says when the pod is replaced, if not at once."""
    wait = delay(pod, failure, job.spec.restart_policy, budget)
    return f" Its replacement is created at {format_time(failure.time + wait)}." if wait else ""
