from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from elasticjob_api import ConditionType, Failure, Reason, Restarts, Status
from elasticjob_operator.policies.condition_updates import ConditionUpdate
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.policies.running import Training, training
from elasticjob_operator.policies.waits import first_wait
from elasticjob_operator.state import Blocked, Connectivity, Pod, PodPhase, Rejection, RendezvousView

from tests.unit.operator.builders import (
    NOW,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_plan,
    make_pod,
    make_status,
    make_view,
    with_status,
)
from tests.unit.operator.tables import table

FAILURE = Failure(worker="digits-worker-1", exit_code=1, reason="ApplicationError", time=NOW)
CALM = Budget(limit=3)
AFTER_FAILURE = Budget(restarts=Restarts(total=1), limit=3, last_failure=FAILURE, new_failure=FAILURE)
PLANNED = make_view(plan=make_plan(2))
BROKEN = make_view(plan=make_plan(2), failure=make_failure(1, round_number=2))
REPLANNED = make_view(plan=make_plan(3), failure=make_failure(1, round_number=2))
AWAY = make_view(Connectivity.UNREACHABLE)
TRAINED = make_status(ConditionType.RUNNING, round=2, world_size=4)
RESTARTING = make_status(ConditionType.RESTARTING, reason="WorkerFailed", round=2)


def _restarting(found: Training) -> ConditionUpdate:
    assert found.restarting is not None
    return found.restarting


def live(count: int) -> list[tuple[Pod, PodStatus]]:
    return [(make_pod(index), PodStatus(state=PodState.LIVE)) for index in range(count)]


def pending(reason: str) -> list[tuple[Pod, PodStatus]]:
    pod = make_pod(7, PodPhase.PENDING, blocked=Blocked(reason=reason, message="words"))
    return [(pod, PodStatus(state=PodState.LIVE))]


def failing_probe(count: int) -> list[tuple[Pod, PodStatus]]:
    return [
        (dataclasses.replace(make_pod(index, ready=False), up=True), PodStatus(state=PodState.LIVE))
        for index in range(count)
    ]


def gone(state: PodState, reason: str = "deleted", code: int = 143) -> list[tuple[Pod, PodStatus]]:
    pod = failed_pod(5, code=code) if state is PodState.FAILED else make_pod(5, deletion_timestamp=9)
    return [with_status(pod, state, reason)]


@table(
    "status, view, workers, budget, running, restarting",
    {
        "new": (None, make_view(), [], CALM, Reason.WAITING_FOR_WORKERS, None),
        "pods ready, no plan yet": (None, make_view(), live(4), CALM, Reason.WAITING_FOR_RENDEZVOUS, None),
        "trains": (None, PLANNED, live(4), CALM, Reason.TRAINING, None),
        "training with minReplicas": (None, PLANNED, live(2), CALM, Reason.TRAINING, None),
        "etcd unreachable: training continues": (TRAINED, AWAY, live(4), CALM, Reason.TRAINING, None),
        "trains, whatever a probe says": (None, PLANNED, failing_probe(4), CALM, Reason.TRAINING, None),
        "below minReplicas": (TRAINED, PLANNED, live(1), CALM, Reason.WAITING_FOR_WORKERS, Reason.WORKER_LOST),
        "a worker failed, no new plan": pytest.param(
            TRAINED, BROKEN, live(4), CALM, Reason.WAITING_FOR_RENDEZVOUS, Reason.WORKER_FAILED
        ),
        "training continues": (RESTARTING, REPLANNED, live(4), CALM, Reason.TRAINING, False),
        "the replacement starts: the reason stays": pytest.param(
            RESTARTING, PLANNED, live(1), CALM, Reason.WAITING_FOR_WORKERS, Reason.WORKER_FAILED
        ),
        "a pod failed": (
            TRAINED,
            PLANNED,
            live(1) + gone(PodState.FAILED, code=1),
            AFTER_FAILURE,
            Reason.WAITING_FOR_WORKERS,
            Reason.WORKER_FAILED,
        ),
        "deleted": (
            TRAINED,
            PLANNED,
            live(1) + gone(PodState.TERMINATING),
            CALM,
            Reason.WAITING_FOR_WORKERS,
            Reason.WORKER_LOST,
        ),
        "another reason of the kubelet": pytest.param(
            None, make_view(), pending("SomethingNew"), CALM, Reason.WAITING_FOR_WORKERS, None
        ),
    },
)
def test_running_and_restarting(
    status: Status | None,
    view: RendezvousView,
    workers: Sequence[tuple[Pod, PodStatus]],
    budget: Budget,
    running: Reason,
    restarting: Reason | bool | None,
) -> None:
    pods = [pod for pod, status in workers if status.state is PodState.LIVE]
    found = training(make_job(status=status), view, workers, budget, wait=first_wait(make_job(), workers=pods))
    assert found.is_running is (running is Reason.TRAINING)
    assert found.running.reason is running
    if restarting is None:
        assert found.restarting is None
    else:
        assert found.restarting is not None
        assert found.restarting.status is (restarting is not False)
        assert restarting is False or found.restarting.reason is restarting


@table(
    "connectivity, workers, running",
    {
        "etcd unreachable, all members ready: training continues": (Connectivity.UNREACHABLE, live(4), True),
        "etcd unreachable, a member lost": (Connectivity.UNREACHABLE, live(3), False),
        "... or not ready": (
            Connectivity.CONNECTING,
            [*live(3), (make_pod(3, ready=False), PodStatus(state=PodState.LIVE))],
            False,
        ),
        "etcd reachable: the agents decide": (Connectivity.REACHABLE, live(3), True),
    },
)
def test_a_job_without_etcd_runs_only_while_no_member_is_lost(
    connectivity: Connectivity, workers: Sequence[tuple[Pod, PodStatus]], running: bool
) -> None:
    found = training(make_job(status=TRAINED), make_view(connectivity, plan=make_plan(2)), workers, CALM)
    assert found.is_running is running
    if not running:
        assert found.running.message.startswith("3 of 4 worker pods of round 2 are ready and etcd is unreachable")


def test_a_replacement_that_is_in_no_plan_does_not_train() -> None:
    successor = (make_pod(3, created=-30), PodStatus(state=PodState.LIVE))
    found = training(
        make_job(status=TRAINED), make_view(Connectivity.UNREACHABLE, plan=make_plan(2)), [*live(3), successor], CALM
    )
    assert not found.is_running


def test_the_message_of_a_lost_worker_names_its_node() -> None:
    found = training(
        make_job(status=make_status(round=2)), PLANNED, live(1) + gone(PodState.LOST, "node n1 is not ready"), CALM
    )
    assert _restarting(found).message.startswith("Lost digits-worker-5 (node n1 is not ready)")


def test_the_cause_of_a_failure_stays_when_the_operator_deletes_the_pod() -> None:
    said = make_status(ConditionType.RESTARTING, reason="WorkerLost", message="preempted", round=2)
    deleted = [(failed_pod(5, deletion_timestamp=9), PodStatus(state=PodState.TERMINATING, reason="deleted"))]
    found = training(make_job(status=said), PLANNED, live(1) + deleted, CALM)
    assert (_restarting(found).reason, _restarting(found).message) == (Reason.WORKER_LOST, "preempted")


def test_an_exceeded_quota_is_shown_while_training() -> None:
    rejection = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota: gpus", retry_at=at(8))
    found = training(make_job(), PLANNED, live(4), CALM, wait=first_wait(make_job(), rejection=rejection))
    assert found.is_running
    assert "exceeded quota: gpus" in found.running.message
    assert found.missing is not None
    assert found.missing.reason is Reason.POD_REJECTED


def test_a_rejected_autoscaler_is_not_reported_as_rejected_pods() -> None:
    rejection = Rejection(kinds=frozenset({"HorizontalPodAutoscaler"}), message="spec.metrics[0].type", retry_at=at(8))
    found = training(make_job(), make_view(), live(1), CALM, wait=first_wait(make_job(), rejection=rejection))
    assert found.running.reason is Reason.OBJECT_REJECTED
    assert found.running.message.startswith(
        "1 of 4 worker pods are ready; training needs at least 2. The API server rejects HorizontalPodAutoscaler"
    )


def test_the_log_of_the_failed_pod_is_named_and_no_other() -> None:
    """Another failed one waits for its replacement, too."""
    policy = {"maxRestarts": 9, "backoff": {"initialSeconds": 10, "maxSeconds": 300}}
    job = make_job(spec={"failurePolicy": policy}, status=TRAINED)
    budget = Budget(restarts=Restarts(total=3), limit=9, last_failure=FAILURE)
    both = [with_status(failed_pod(index, started=-3), PodState.FAILED) for index in (0, 1)]
    found = _restarting(training(job, make_view(), both, budget)).message
    assert found.endswith("kubectl logs digits-worker-1 -n ml")
    found = _restarting(training(job, make_view(), both[:1], budget)).message
    assert found.endswith("What to do: read status.lastFailure")


@pytest.mark.parametrize(
    ("world_size", "words"), [(0, "worker processes are"), (1, "1 process is"), (2, "2 processes are")]
)
def test_the_processes_that_train_are_counted(world_size: int, words: str) -> None:
    plan = dataclasses.replace(make_plan(2), world_size=world_size)
    assert f"Round 2: {words} training;" in training(make_job(), make_view(plan=plan), live(4), CALM).running.message


def failed(total: int, limit: int = 3, *, window: int | None = None, message: str = "") -> Budget:
    last = FAILURE.model_copy(update={"message": message})
    return Budget(restarts=Restarts(total=total, window=window), limit=limit, last_failure=last)


WAITS = make_view(plan=make_plan(2), failure=dataclasses.replace(make_failure(1, round_number=2), restart_delay=16.0))
COUNTED = make_view(plan=make_plan(2, restart_count=1), failure=make_failure(1, round_number=2))
QUICK = [with_status(failed_pod(1, started=-3), PodState.FAILED)]
IMPORT = "ImportError: no module named x"


@table(
    "budget, view, workers, words",
    {
        "it is not announced before the agents decide on it": pytest.param(
            failed(1), COUNTED, live(4), "cause); restart 2 of at most 3 follows unless the agents give up."
        ),
        "none is left": (failed(3), WAITS, live(4), "cause); no restart of at most 3 is left."),
        "those that have left the window do not count": pytest.param(
            failed(40, window=2), make_view(), [with_status(failed_pod(1), PodState.FAILED)], "restart 2 of at most 3."
        ),
        "a crash loop that waits": (
            failed(7, 10, message=IMPORT),
            WAITS,
            live(4),
            f"cause: {IMPORT}); restart 8 of at most 10 follows unless the agents give up. The next attempt is at "
            "2026-01-01T12:00:16Z.",
        ),
        "the first line of the error": (
            failed(0, message="ValueError: bad shape\nTraceback ..."),
            BROKEN,
            live(4),
            "cause: ValueError: bad shape); restart 1 of at most 3 follows unless the agents give up.",
        ),
        "replaced at once": (failed(1, 9), make_view(), QUICK, "restart 1 of at most 9."),
        "a pod in a crash loop is replaced later": (
            failed(3, 9),
            make_view(),
            QUICK,
            "restart 3 of at most 9. Its replacement is created at 2026-01-01T12:00:20Z; it ended at "
            "2026-01-01T12:00:00Z. What to do: read its log: kubectl logs digits-worker-1 -n ml",
        ),
    },
)
def test_the_message_has_the_failure_and_which_restart_comes_when(
    budget: Budget, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]], words: str
) -> None:
    policy = {"maxRestarts": budget.limit, "backoff": {"initialSeconds": 10, "maxSeconds": 300}}
    found = training(make_job(spec={"failurePolicy": policy}, status=TRAINED), view, workers, budget)
    said = _restarting(found).message
    assert said.endswith(words.replace("cause", "digits-worker-1 failed (ApplicationError, exit code 1"))
