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

from elasticjob_api import BLOCKING_REASONS, REMEDY, ConditionType, ElasticJob, Failure, Reason, message
from elasticjob_api.fields import format_time

from elasticjob_operator import names
from elasticjob_operator.policies.condition_updates import Cause, ConditionUpdate, cause, update
from elasticjob_operator.policies.failures import Cost, PodFailure
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.policies.replacement import delay
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.policies.waits import Wait
from elasticjob_operator.state import Connectivity, Pod, PodPhase, RendezvousView

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
    at_work: int
    """Number of worker pods that train if the agents' plan says so; without plans, of those that are ready."""

    @property
    def is_running(self) -> bool:
        return self.running.status is True


def training(
    job: ElasticJob,
    view: RendezvousView,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    *,
    wait: Wait | None = None,
    kept: Cause | None = None,
    cut_off: bool = False,
) -> Training:
    """`workers`: all but surplus pods. `wait`: what the job waits for most urgently. `kept`: why pods on a silent node
    are not replaced. `cut_off`: etcd may be unreachable."""
    missing = _missing(job, workers, budget, wait, kept)
    at_work = _at_work(job, workers, cut_off=cut_off)
    running = _running(job, view, workers, budget, missing, at_work)
    return Training(
        running=running,
        restarting=_resumed(job, view) if running.status else _restarting(job, view, workers, budget),
        missing=missing,
        at_work=at_work,
    )


def _at_work(job: ElasticJob, workers: Sequence[tuple[Pod, PodStatus]], *, cut_off: bool) -> int:
    """`cut_off`: etcd may be unreachable. Then pods on silent nodes count, too, until it is known: the cause, an
    unreachable etcd, is told before what follows from it.
    """
    live = [pod for pod, status in workers if status.state is PodState.LIVE]
    if not job.has_plans:
        return sum(pod.ready for pod in live)
    return sum(pod.ready or pod.up or (cut_off and pod.running) for pod in live)


def _running(
    job: ElasticJob,
    view: RendezvousView,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    missing: Cause | None,
    ready: int,
) -> ConditionUpdate:
    left = _left_of_round(view, workers) if job.has_plans else None
    if ready >= job.min_replicas and left is None and (not job.has_plans or _is_planned(job, view)):
        text = _training_message(job, view, ready)
        text = f"{text} {missing.message}" if _is_not_transient(missing) and missing else text
        return ConditionUpdate(status=True, reason=Reason.TRAINING, message=text)
    if left is not None and not _is_not_transient(missing):
        size = view.plan.size if view.plan else 0
        return update(False, Reason.RENDEZVOUS_LOST, left=left, size=size, round=_round_number(job, view))
    return _waiting(job, view, budget, ready, missing)


def _training_message(job: ElasticJob, view: RendezvousView, ready: int) -> str:
    if not job.has_plans:
        return (
            f"{ready} of {job.replicas} worker pods are ready; backend {job.spec.rendezvous.backend} does not "
            "report the state of training."
        )
    count = view.plan.world_size if view.plan else job.status.world_size  # 0: unknown
    processes = "1 process is" if count == 1 else f"{count or 'worker'} processes are"
    return message(
        Reason.TRAINING, round=_round_number(job, view), processes=processes, ready=ready, wanted=job.replicas
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


def _waiting(
    job: ElasticJob, view: RendezvousView, budget: Budget, ready: int, missing: Cause | None
) -> ConditionUpdate:
    if missing is not None and missing.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST) and job.status.round > 0:
        missing = None  # the condition Restarting says so
    if ready >= job.min_replicas and not _is_not_transient(missing):
        waiting = update(False, Reason.WAITING_FOR_RENDEZVOUS, ready=ready, wanted=job.replicas)
        text = missing.message if missing is not None else _of_agents(job, view, budget)
        return dataclasses.replace(waiting, message=f"{waiting.message} {text}")
    counts = update(False, Reason.WAITING_FOR_WORKERS, ready=ready, wanted=job.replicas, min=job.min_replicas)
    if missing is None:
        return counts
    reason = counts.reason if missing.reason is Reason.ETCD_STARTING else missing.reason
    enough = f"{ready} of {job.replicas} worker pods are ready." if ready >= job.min_replicas else counts.message
    return ConditionUpdate(status=False, reason=reason, message=f"{enough} {missing.message}")


def _of_agents(job: ElasticJob, view: RendezvousView, budget: Budget) -> str:
    """Why ready worker pods have no plan, as far as their agents say."""
    logs = f"kubectl logs -n {job.namespace} -l {names.worker_selector(job.name)} --prefix"
    if view.plan is None or not _group_failed(view, view.plan.round):
        return f"{REMEDY.strip()} read what their agents say: {logs}"
    return f"{undecided_message(job, view, budget)}{REMEDY}read the traceback: {logs}"


def _missing(
    job: ElasticJob, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget, wait: Wait | None, kept: Cause | None
) -> Cause | None:
    """The first that applies: a wait that may need someone's action; pods on a silent node are not replaced; a pod has
    failed or was lost; something is starting."""
    if wait is not None and wait.serious:
        return wait.cause
    return kept or _failed_or_lost(job, workers, budget) or (wait.cause if wait is not None else None)


def _resumed(job: ElasticJob, view: RendezvousView) -> ConditionUpdate | None:
    if job.status.condition(ConditionType.RESTARTING) is None:
        return None
    return update(False, Reason.RESUMED, round=_round_number(job, view))


def _restarting(
    job: ElasticJob, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget
) -> ConditionUpdate | None:
    """For a job that does not train now."""
    before = job.status.condition(ConditionType.RESTARTING)
    if job.status.round == 0:  # what a resumed job has says why it stopped
        ended = before is not None and not job.status.is_true(ConditionType.RESTARTING)
        return update(False, Reason.NOT_TRAINING) if ended else None
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
    """The last failure that counts, while a pod that failed so is there; or the first worker that failed otherwise or
    was lost."""
    not_live = [(pod, status) for pod, status in workers if status.state is not PodState.LIVE]
    failed = [(pod, status.failure) for pod, status in not_live if status.failure is not None]
    counted = {pod.name: (pod, failure) for pod, failure in failed if failure.cost is Cost.COUNTS}
    if counted:
        named = counted.get(budget.last_failure.worker if budget.last_failure is not None else "")
        text = _replacement_time(job, *named, budget) if named else f"{REMEDY}read status.lastFailure"
        return Cause(reason=Reason.WORKER_FAILED, message=worker_failed(job, budget) + text)
    for pod, failure in failed:
        text = message(Reason.WORKER_LOST, worker=pod.name, detail=failure.detail)
        return Cause(reason=Reason.WORKER_LOST, message=text + _replacement_time(job, pod, failure, budget))
    for pod, status in not_live:
        # The operator itself deletes failed pods: their cause was recorded before.
        if status.state is PodState.LOST or (status.state is PodState.TERMINATING and not pod.failed):
            return cause(Reason.WORKER_LOST, worker=pod.name, detail=status.reason)
    return None


def worker_failed(job: ElasticJob, budget: Budget) -> str:
    """The newest failure that counts, and the number of the restart that follows."""
    worker, detail = _described(budget.last_failure)
    limit = job.spec.failure_policy.max_restarts
    return message(Reason.WORKER_FAILED, worker=worker, detail=detail, restarts=budget.used, max_restarts=limit)


def undecided_message(job: ElasticJob, view: RendezvousView, budget: Budget) -> str:
    """The next plan or the outcome decides whether the group restarts; the message does not anticipate it."""
    last, limit = budget.last_failure, job.spec.failure_policy.max_restarts
    worker, detail = _described(last)
    if budget.used >= limit and not budget.some_are_ignored:
        return f"{worker} failed ({detail}); no restart of at most {limit} is left."
    text = (
        f"{worker} failed ({detail}); restart {budget.used + 1} of at most {limit} follows unless the agents give up."
    )
    wait = min(view.failure.restart_delay, _LONGEST_WAIT) if view.failure is not None else 0.0
    if wait <= 0 or last is None or last.time is None:
        return text
    return f"{text} The next attempt is at {format_time(last.time + datetime.timedelta(seconds=wait))}."


def _described(failure: Failure | None) -> tuple[str, str]:
    """(worker, what happened to it)"""
    if failure is None:
        return "A worker process", "unknown"
    return failure.worker, failure.cause


def _replacement_time(job: ElasticJob, pod: Pod, failure: PodFailure, budget: Budget) -> str:
    """When the pod is replaced, if not at once. Until then its log can be read."""
    wait = delay(pod, failure, job.spec.failure_policy, budget)
    if not wait:
        return ""
    container = f" -c {pod.init_end.container}" if pod.end is None and pod.init_end is not None else ""
    return (
        f" Its replacement is created at {format_time(failure.time + wait)}; it ended at {format_time(failure.time)}."
        f"{REMEDY}read its log: kubectl logs {pod.name} -n {job.namespace}{container}"
    )
