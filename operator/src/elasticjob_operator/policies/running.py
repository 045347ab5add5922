"""Whether a worker group trains: the conditions Running and Restarting.

Running: there is a plan, at least minReplicas pods are ready, and nothing broke. Restarting: training has started
before, stands still now, and will go on; over when the agents have made another plan. A pod that is merely not ready
for a moment (its probe, its node) breaks nothing: the agents know better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from elasticjob_operator.api import ConditionType, ElasticJob, Failure, Reason, RestartPolicy, message
from elasticjob_operator.api.fields import format_time
from elasticjob_operator.policies.failures import Cost, PodFailure, judge
from elasticjob_operator.policies.node_loss import Held
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.policies.replacement import wait
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """What keeps workers from coming."""

    reason: Reason
    message: str

    @property
    def needs_help(self) -> bool:
        """It may not pass by itself."""
        return self.reason not in (Reason.WAITING_FOR_WORKERS, Reason.WORKER_FAILED, Reason.WORKER_LOST)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    running: bool
    running_reason: Reason
    running_message: str
    missing: Missing | None
    """Why workers that are wanted are not there, if anybody says so."""
    restarting: bool | None
    """None: never trained, so it cannot restart either."""
    restarting_reason: Reason
    restarting_message: str


def judge_activity(
    job: ElasticJob,
    view: RendezvousView,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    *,
    rejection: Rejection | None = None,
    held: Held | None = None,
) -> Activity:
    """`workers`: the pods that stay. `rejection`: of what is to be created now. `held`: why something on a silent
    node is not given up."""
    ready = sum(pod.ready for pod, stand in workers if stand.state is PodState.LIVE)
    round_number = view.plan.round if view.plan else job.status.round
    size = view.plan.world_size if view.plan else job.status.world_size
    left = _left_of_round(view, workers) if job.has_plans else None
    trains = ready >= job.min_replicas and left is None and (not job.has_plans or _is_planned(job, view, round_number))
    missing = _missing(job, workers, budget, rejection, held)
    if trains:
        reason, text = (
            Reason.TRAINING,
            message(Reason.TRAINING, round=round_number, world_size=size, ready=ready, wanted=job.replicas),
        )
        if not job.has_plans:
            text = (
                f"{ready} of {job.replicas} worker pods are ready; backend {job.spec.rendezvous.backend} does not "
                "report the state of training."
            )
        text = f"{text} {missing.message}" if missing and missing.needs_help else text
    elif left is not None and (missing is None or not missing.needs_help):
        reason, text = (
            Reason.RENDEZVOUS_LOST,
            message(Reason.RENDEZVOUS_LOST, left=left, size=_size_of(view), round=round_number),
        )
    else:
        reason, text = _waiting(job, ready, missing)
    restarting, why, words = _resumed(job, round_number) if trains else _restarting(job, view, workers, budget)
    return Activity(
        running=trains,
        running_reason=reason,
        running_message=text,
        missing=missing,
        restarting=restarting,
        restarting_reason=why,
        restarting_message=words,
    )


def _size_of(view: RendezvousView) -> int:
    return view.plan.size if view.plan else 0


def _left_of_round(view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]]) -> int | None:
    """How many workers of the last plan are ready, if some are not and etcd does not answer: nobody can make another
    plan. None: training may go on, as far as is known."""
    if view.plan is None or view.connectivity is Connectivity.REACHABLE:
        return None
    made_by = view.plan.created_at or float("inf")
    known = [pod for pod, stand in workers if stand.state is PodState.LIVE and pod.created_at.timestamp() <= made_by]
    left = sum(pod.ready for pod in known)
    return left if left < view.plan.size else None


def _is_planned(job: ElasticJob, view: RendezvousView, round_number: int) -> bool:
    return round_number > 0 and not _group_failed(view, round_number) and _is_planned_anew(job, view)


def _group_failed(view: RendezvousView, round_number: int) -> bool:
    """A worker of the current plan failed, and there is no other plan yet."""
    return view.failure is not None and view.failure.round >= round_number


def _is_planned_anew(job: ElasticJob, view: RendezvousView) -> bool:
    """After a restart only another plan means training. Rounds begin again at 1 when everything was lost at once, etcd
    too: then the time of the plan tells."""
    if not job.status.is_true(ConditionType.RESTARTING):
        return True
    before = job.status.condition(ConditionType.RESTARTING)
    if view.plan is None or before is None:
        return False
    return view.plan.round != job.status.round or view.plan.created_at >= before.last_transition_time.timestamp()


def _waiting(job: ElasticJob, ready: int, missing: Missing | None) -> tuple[Reason, str]:
    if missing is not None and missing.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST) and job.status.round > 0:
        missing = None  # that is what Restarting says
    if ready >= job.min_replicas and (missing is None or not missing.needs_help):
        return Reason.WAITING_FOR_RENDEZVOUS, message(Reason.WAITING_FOR_RENDEZVOUS, ready=ready, wanted=job.replicas)
    counts = message(Reason.WAITING_FOR_WORKERS, ready=ready, wanted=job.replicas, min=job.min_replicas)
    return (missing.reason, f"{counts} {missing.message}") if missing else (Reason.WAITING_FOR_WORKERS, counts)


def _missing(
    job: ElasticJob,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    rejection: Rejection | None,
    held: Held | None,
) -> Missing | None:
    """The first that applies: what the API server refuses; a silent node that is not given up; a pod that does not
    start, with the words of the kubelet or the scheduler; a pod that is gone."""
    if rejection is not None:
        reason = Reason.POD_REFUSED if POD in rejection.kinds else Reason.OBJECT_REFUSED
        return Missing(reason=reason, message=message(reason, error=rejection.message))
    if held is not None:
        return Missing(reason=held.reason, message=held.message)
    blocked = next((pod for pod, stand in workers if pod.blocked and stand.state is PodState.LIVE), None)
    if blocked is not None:
        return _blocked(blocked)
    reason, text = _gone(job, workers, budget)
    return Missing(reason=reason, message=text) if text else None


def _blocked(pod: Pod) -> Missing | None:
    if pod.blocked is None:
        return None
    reason = _blocked_reason(pod.blocked.reason)
    detail = f"{pod.blocked.reason}: {pod.blocked.message}" if pod.blocked.message else pod.blocked.reason
    if reason is Reason.WAITING_FOR_WORKERS:
        return Missing(reason=reason, message=f"{pod.name}: {detail}")
    return Missing(
        reason=reason, message=message(reason, worker=pod.name, since=format_time(pod.created_at), detail=detail)
    )


def _blocked_reason(reason: str) -> Reason:
    if reason in IMAGE_REASONS:
        return Reason.IMAGE_UNAVAILABLE
    if reason in CONFIG_REASONS:
        return Reason.CONTAINER_CONFIG_ERROR
    return Reason.UNSCHEDULABLE if reason == "Unschedulable" else Reason.WAITING_FOR_WORKERS


def _resumed(job: ElasticJob, round_number: int) -> tuple[bool | None, Reason, str]:
    known = job.status.condition(ConditionType.RESTARTING) is not None
    return (False if known else None), Reason.RESUMED, message(Reason.RESUMED, round=round_number)


def _restarting(
    job: ElasticJob, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget
) -> tuple[bool | None, Reason, str]:
    """Of a job that does not train now. (None, ...): leave the condition as it is."""
    before = job.status.condition(ConditionType.RESTARTING)
    if job.status.round == 0:
        return None, Reason.RESUMED, ""
    reason, text = _gone(job, workers, budget)
    if _group_failed(view, job.status.round) and reason is not Reason.WORKER_FAILED:
        # The agents count it with the plan that is to come.
        return True, Reason.WORKER_FAILED, _agents_decide(job, budget)
    if text:
        return True, reason, text
    # Nothing visible is broken any more, the successor is on its way: keep what was said.
    if (
        before is not None
        and job.status.is_true(ConditionType.RESTARTING)
        and before.reason in (Reason.WORKER_FAILED, Reason.WORKER_LOST)
    ):
        return True, Reason(before.reason), before.message
    missing = job.replicas - sum(pod.phase is PodPhase.RUNNING for pod, _ in workers)
    if missing <= 0:
        return None, Reason.RESUMED, ""
    return (
        True,
        Reason.WORKER_LOST,
        message(Reason.WORKER_LOST, worker=f"{missing} of {job.replicas} worker pods", detail="being replaced"),
    )


def _gone(job: ElasticJob, workers: Sequence[tuple[Pod, PodStatus]], budget: Budget) -> tuple[Reason, str]:
    """The first worker that failed or was lost, failures that count before those that are free. (..., ""): none."""
    policy = job.spec.restart_policy
    failed = [(pod, judge(pod, policy.rules)) for pod, stand in workers if stand.state is PodState.FAILED]
    for pod, failure in failed:
        if failure.cost is Cost.COUNTS:
            return Reason.WORKER_FAILED, worker_failed(job, budget, budget.total) + _successor(
                pod, failure, policy, budget
            )
    for pod, failure in failed:
        text = message(Reason.WORKER_LOST, worker=pod.name, detail=failure.detail)
        return Reason.WORKER_LOST, text + _successor(pod, failure, policy, budget)
    for pod, stand in workers:
        # One that had failed is deleted by us: its cause was told before.
        if stand.state is PodState.LOST or (stand.state is PodState.LEAVING and not pod.failed):
            return Reason.WORKER_LOST, message(Reason.WORKER_LOST, worker=pod.name, detail=stand.why)
    return Reason.WORKER_LOST, ""


def worker_failed(job: ElasticJob, budget: Budget, restarts: int) -> str:
    """The newest failure that counts, and which restart it leads to."""
    worker, detail = _described(budget.last_failure)
    limit = job.spec.restart_policy.max_restarts
    return message(Reason.WORKER_FAILED, worker=worker, detail=detail, restarts=restarts, max_restarts=limit)


def _agents_decide(job: ElasticJob, budget: Budget) -> str:
    """Whether a restart follows is known with the next plan or the outcome; it is not announced before."""
    worker, detail = _described(budget.last_failure)
    limit = job.spec.restart_policy.max_restarts
    return (
        f"{worker} failed ({detail}); the worker group restarts unless the agents give up. Restarts so far: "
        f"{budget.total} of at most {limit}."
    )


def _described(failure: Failure | None) -> tuple[str, str]:
    """(worker, what happened to it)"""
    if failure is None:
        return "A worker process", "unknown"
    line = failure.message.splitlines()[0] if failure.message else ""
    more = f": {line}" if line and not line.startswith("exit code") else ""
    return failure.worker, f"{failure.reason}, exit code {failure.exit_code}{more}"


def _successor(pod: Pod, failure: PodFailure, policy: RestartPolicy, budget: Budget) -> str:
    """When it comes, where that is not at once."""
    pause = wait(pod, failure, policy, budget.total)
    return f" Its replacement is created at {format_time(failure.time + pause)}." if pause else ""
