"""`status` of an ElasticJob: what the operator observed. Only the operator writes it, by the status subresource."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elasticjob_operator.api.conditions import Condition, ConditionStatus, ConditionType
from elasticjob_operator.api.fields import (
    Causes,
    FailureMessage,
    Int32,
    Int64,
    Metrics,
    Model,
    Rate,
    Time,
)

Count = Annotated[Int32, Field(ge=0)]


class Restarts(Model, frozen=True):
    """Restarts so far."""

    total: Count = 0
    """Restarts of the worker group because of failures, over the job's whole life.

    Compared with spec.restartPolicy.maxRestarts.
    """
    reported: Count | None = None
    """Restarts that the agents of the current run reported, those that rules ignore too, but not pods that failed as a
    whole."""
    window: Count | None = None
    """How many of them fall into the last spec.restartPolicy.windowSeconds, where that is given."""
    times: (
        Annotated[tuple[Time, ...], Field(max_length=101, json_schema_extra={"x-kubernetes-list-type": "atomic"})]
        | None
    ) = None
    """When those of the window were."""
    by_cause: Causes = {}  # noqa: RUF012 pydantic copies defaults
    """How many there were of each kind of failure, named as in lastFailure.reason."""


class RendezvousStatus(Model, frozen=True):
    """The rendezvous in use."""

    id: str = ""
    """Run id: the name under which the workers of this run meet (PET_RDZV_ID)."""
    backend: str = ""
    """Rendezvous backend in use."""
    endpoint: str = ""
    """host:port in use."""
    store_generation: Annotated[Int64, Field(ge=0)] | None = None
    """Number of the job's own etcd: grows whenever another one takes its place. A group that still trains with an
    earlier one is out of date, and what it commits is refused."""
    store_pod: str = ""
    """uid of the pod of that etcd; empty: there is none yet."""


class Progress(Model, frozen=True):
    """What the training reported last."""

    step: Annotated[Int64, Field(ge=0)] = 0
    """Training step reached."""
    steps_per_second: Rate = None
    """Speed at that step."""
    last_checkpoint_step: Annotated[Int64, Field(ge=0)] | None = None
    """Step of the newest complete checkpoint; what is lost if all workers die now is what came after it."""
    metrics: Metrics = {}  # noqa: RUF012 pydantic copies defaults
    """What the script reported beside the step: loss, accuracy and the like, as strings."""
    updated_at: Time | None = None
    """When the training reported this, by the clock of its node."""
    observed_at: Time | None = None
    """When the operator saw this first, by its own clock."""


class Failure(Model, frozen=True):
    """The first failure of the newest failed round."""

    round: Annotated[Int64, Field(ge=0)] | None = None
    """Number of the worker group that failed: status.round at that time. What fails of the same group counts once."""

    worker: str = ""
    """Name of the worker pod."""
    pod_uid: str = ""
    """uid of that pod, where the pod failed as a whole."""
    rank: Int32 | None = None
    """Global rank of the failed process, where it had one."""
    exit_code: Int32 | None = None
    """Exit code; negative: the number of the signal that ended the process."""
    reason: str = ""
    """Kind of failure, in one word: ApplicationError, Signal, OutOfMemory, Evicted and the like."""
    message: FailureMessage = ""
    """What happened: one line, then the last lines of the traceback where there is one."""
    time: Time | None = None
    """When it happened."""


class FailingNode(Model, frozen=True):
    """A node on which workers failed lately."""

    name: str
    """Name of the node."""
    failures: Annotated[Int32, Field(ge=1)]
    """Failures of workers there that are less than an hour apart."""
    last_time: Time
    """When the newest of them was."""


class Status(Model, frozen=True):
    """What the operator observed. Read it, wait for its conditions; do not write it."""

    observed_generation: Int64 | None = None
    """metadata.generation of the spec that this status speaks of."""
    replicas: Count = 0
    """Worker pods that exist and have not ended."""
    ready_replicas: Count = 0
    """Worker pods that are ready."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource."""
    workers: str = ""
    """Ready and wanted worker pods, such as 3/4. For people; programs read readyReplicas and desiredReplicas."""
    desired_replicas: Count | None = None
    """Worker pods that the operator aims at: spec.workers.replicas, rounded down to an allowed size, more of them only
    after a delay."""
    scale_up_time: Time | None = None
    """When it will aim at more, because of spec.scaling.scaleUpDelaySeconds."""
    world_size: Count = 0
    """Training processes in the current worker group (WORLD_SIZE); 0 while nothing trains."""
    round: Count = 0
    """Number of the current worker group: 1 is the first, each restart or change of size makes the next."""
    restarts: Restarts = Restarts()
    """Restarts so far."""
    rendezvous: RendezvousStatus | None = None
    """The rendezvous in use."""
    progress: Progress | None = None
    """What the training reported last."""
    last_failure: Failure | None = None
    """The first failing process of the newest failure, with its traceback's last lines."""
    failing_nodes: (
        Annotated[
            tuple[FailingNode, ...],
            Field(
                max_length=32,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            ),
        ]
        | None
    ) = None
    """Nodes on which workers failed lately; compared with spec.scheduling.avoidNodesAfter."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """State of the job, one entry for each aspect. `kubectl wait --for=condition=Succeeded` works."""
    summary: str = ""
    """Succeeded, Failed, Suspended, Running, Stalled, Degraded, Resizing or Restarting, or why the job does not run,
    such as Unschedulable.

    For people; programs read conditions.
    """
    start_time: Time | None = None
    """When the operator accepted the job, or went on with it after it was suspended."""
    completion_time: Time | None = None
    """When the job succeeded or failed."""

    def condition(self, type: ConditionType) -> Condition | None:  # noqa: A002 the field's own word
        """The condition of that type; None where it was never set."""
        return next((condition for condition in self.conditions if condition.type == type), None)

    def is_true(self, type: ConditionType) -> bool:  # noqa: A002 the field's own word
        condition = self.condition(type)
        return condition is not None and condition.status is ConditionStatus.TRUE

    @property
    def is_finished(self) -> bool:
        """Succeeded or failed: terminal, never left again."""
        return self.is_true(ConditionType.SUCCEEDED) or self.is_true(ConditionType.FAILED)
