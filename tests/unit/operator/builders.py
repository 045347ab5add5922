"""Jobs, pods and views as the tables of the operator's tests need them: the ordinary case, with what matters said."""

from __future__ import annotations

import datetime
from typing import Any

from elasticjob_api import Condition, ConditionStatus, ConditionType, ElasticJob, Failure, Restarts, Status
from elasticjob_operator.names import COMPONENT_WORKER, worker_host
from elasticjob_operator.node_state import Heartbeat, Node, NodeHealth
from elasticjob_operator.policies.failures import PodFailure, classify_failure
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.state import Blocked, Connectivity, ContainerEnd, Disruption, Pod, PodPhase, RendezvousView
from elasticjob_runtime.contract import FailureValue, OutcomeState, OutcomeValue, PlanReason, PlanValue

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.timezone.utc)
UID = "00000000-aaaa-bbbb-cccc-000000000000"
NAME = "digits"
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}}


def at(seconds: float) -> datetime.datetime:
    """`seconds` after NOW."""
    return NOW + datetime.timedelta(seconds=seconds)


def make_job(
    *,
    replicas: int = 4,
    min: int | None = 2,  # noqa: A002 the field's own word
    max: int | None = 8,  # noqa: A002 the field's own word
    max_restarts: int = 3,
    generation: int = 1,
    status: Status | None = None,
    spec: dict[str, Any] | None = None,
    workers: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
) -> ElasticJob:
    sizes = {"minReplicas": min, "maxReplicas": max}
    body = {
        "metadata": {"name": NAME, "namespace": "ml", "uid": UID, "generation": generation, "resourceVersion": "1"},
        "spec": {
            "workers": {
                "replicas": replicas,
                **{name: size for name, size in sizes.items() if size is not None},
                "template": template or TEMPLATE,
                **(workers or {}),
            },
            "failurePolicy": {"maxRestarts": max_restarts},
            **(spec or {}),
        },
    }
    job = ElasticJob.parse(body)
    return job.model_copy(update={"status": status}) if status is not None else job


_USUAL = {ConditionType.ACCEPTED: "Accepted", ConditionType.RUNNING: "Training"}


def make_status(
    *true: ConditionType,
    reason: str = "",
    message: str = "",
    restarts: int = 0,
    last_failure: Failure | None = None,
    **fields: Any,
) -> Status:
    conditions = tuple(
        Condition(
            type=item.value,
            status=ConditionStatus.TRUE,
            reason=reason or _USUAL.get(item, "Test"),
            message=message,
            observed_generation=1,
            last_transition_time=NOW,
        )
        for item in true
    )
    return Status(conditions=conditions, restarts=Restarts(total=restarts), last_failure=last_failure, **fields)


def make_pod(
    index: int = 0,
    phase: PodPhase = PodPhase.RUNNING,
    *,
    run: int = 1,
    attempt: int = 1,
    ready: bool | None = None,
    node: str = "",
    created: float = -600,
    deletion_timestamp: float | None = None,
    end: ContainerEnd | None = None,
    reason: str = "",
    message: str = "",
    disruption: str = "",
    blocked: Blocked | None = None,
    incarnation: int = 0,
    job: ElasticJob | None = None,
) -> Pod:
    return Pod(
        name=f"{worker_host(NAME, index)}-{incarnation}" if incarnation else worker_host(NAME, index),
        uid=f"pod-{index}-{incarnation}",
        job_uid=UID,
        component=COMPONENT_WORKER,
        index=index,
        run=run,
        attempt=attempt,
        template_hash=hash_of(job or make_job()),
        in_dns=True,
        phase=phase,
        ready=phase is PodPhase.RUNNING if ready is None else ready,
        node=node,
        created_at=at(created),
        deletion_timestamp=at(deletion_timestamp) if deletion_timestamp is not None else None,
        end=end,
        reason=reason,
        message=message,
        disruption=Disruption(reason=disruption, message=f"because of {disruption}") if disruption else None,
        blocked=blocked,
    )


def failed_pod(
    index: int = 0, *, code: int = 1, at: float = 0, started: float = -300, reason: str = "Error", **pod: Any
) -> Pod:
    """A pod whose training container ended with `code`."""
    return make_pod(index, PodPhase.FAILED, end=ended(code, at=at, started=started, reason=reason), **pod)


def with_failures(*pods: Pod, job: ElasticJob | None = None) -> list[tuple[Pod, PodFailure]]:
    """Failed pods, with their failures by the rules of `job`."""
    rules = job.spec.failure_policy.rules if job is not None else ()
    return [(pod, classify_failure(pod, rules)) for pod in pods]


def with_status(pod: Pod, state: PodState, reason: str = "") -> tuple[Pod, PodStatus]:
    failure = classify_failure(pod) if state is PodState.FAILED else None
    return pod, PodStatus(state=state, reason=reason, failure=failure)


def ended(code: int, *, at: float = 0, started: float = -300, reason: str = "Error", message: str = "") -> ContainerEnd:
    moment = NOW + datetime.timedelta(seconds=at)
    return ContainerEnd(
        exit_code=code,
        reason=reason,
        message=message,
        started_at=NOW + datetime.timedelta(seconds=started),
        finished_at=moment,
    )


def make_node(
    name: str,
    health: NodeHealth = NodeHealth.READY,
    *,
    since: float = -3600,
    seen: float | None = None,
    recovered: float | None = None,
    out_of_service: bool = False,
) -> Node:
    """`seen`: when the operator saw that health; default: as soon as it was so."""
    return Node(
        name=name,
        health=health,
        since=at(since),
        seen_at=at(since if seen is None else seen),
        recovered_at=at(recovered) if recovered is not None else None,
        out_of_service=out_of_service,
    )


def make_heartbeat(
    *, read: float = 0, renewed: float | None = -3600, unchanged: float | None = None, exists: bool = True
) -> Heartbeat:
    """Read just now, with a Lease last renewed an hour ago."""
    return Heartbeat(
        read_at=at(read),
        exists=exists,
        renewed_at=at(renewed) if renewed is not None else None,
        unchanged_since=at(read if unchanged is None else unchanged),
    )


def make_plan(
    round_number: int = 1,
    *,
    size: int = 4,
    restart_count: int = 0,
    reason: PlanReason = PlanReason.START,
    finished: tuple[str, ...] = (),
) -> PlanValue:
    return PlanValue(
        finished=finished,
        round=round_number,
        attempt=f"{round_number:08d}.x",
        size=size,
        world_size=size,
        nproc=1,
        master_addr="10.0.0.1",
        master_port=1234,
        leader=worker_host(NAME, 0),
        restart_count=restart_count,
        reason=reason,
        created_at=NOW.timestamp() - 60,
    )


def make_view(connectivity: Connectivity = Connectivity.REACHABLE, **fields: Any) -> RendezvousView:
    return RendezvousView(connectivity=connectivity, **fields)


def make_failure(
    index: int = 1, *, round_number: int = 1, at: float = 0, message: str = "ValueError: no", traceback: str = ""
) -> FailureValue:
    return FailureValue(
        member=worker_host(NAME, index),
        round=round_number,
        rank=index,
        local_rank=0,
        exit_code=1,
        reason="ApplicationError",
        message=message,
        traceback=traceback,
        time=NOW.timestamp() + at,
    )


def make_outcome(state: str = "succeeded", reason: str = "WorkersSucceeded", **fields: Any) -> OutcomeValue:
    return OutcomeValue(state=OutcomeState(state), reason=reason, **fields)


def rendezvous_at(endpoint: str) -> dict[str, Any]:
    """`spec.rendezvous` of a job with an etcd of the user's. Empty: of one that names none."""
    return {"type": "External", "endpoint": endpoint} if endpoint else {}
