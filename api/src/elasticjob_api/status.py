"""`status` of an ElasticJob: the observed state. Written only by the operator, through the status subresource."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elasticjob_api.conditions import Condition, ConditionStatus, ConditionType
from elasticjob_api.fields import (
    ATOMIC,
    Causes,
    Count,
    FailureMessage,
    Int32,
    Int64,
    LongCount,
    Metrics,
    Model,
    Rate,
    Text,
    Time,
    keyed,
)
from elasticjob_api.spec import MAX_WORKERS
from elasticjob_api.stored_history import StoredHistory

MAX_CHECK = 512
"""Characters of what the checks of a node found."""


class Restarts(Model, frozen=True):
    """Restarts of the worker group so far."""

    total: Count = 0
    """Restarts of the worker group because of failures, over the job's lifetime.

    Compared with spec.failurePolicy.maxRestarts.
    """
    reported: Count | None = None
    """Restarts reported by the agents of the current run, including those that rules ignore, but not failures of whole
    pods."""
    window: Count | None = None
    """How many of them happened within the last spec.failurePolicy.windowSeconds, if set."""
    times: Annotated[tuple[Time, ...], Field(max_length=101, json_schema_extra=ATOMIC)] | None = None
    """When the restarts of the window happened."""
    by_cause: Causes = {}  # noqa: RUF012 pydantic copies defaults
    """Restarts by kind of failure, named as in lastFailure.reason."""


class RendezvousStatus(Model, frozen=True):
    """The rendezvous in use."""

    id: str = ""
    """Run ID under which the worker pods of this run, or of its newest attempt with torchrun's own backends, rendezvous
    (PET_RDZV_ID)."""
    backend: str = ""
    """Rendezvous backend in use."""
    endpoint: str = ""
    """Endpoint in use: https://host:port, or host:port if that etcd does not use TLS. Empty: no etcd tier has taken the
    run yet."""
    tier: str = ""
    """Name of the etcd tier that the run uses until it ends. Empty: it uses none."""
    store_generation: LongCount | None = None
    """Generation of the job's own etcd, incremented whenever it is replaced. A group that still trains with an earlier
    generation is fenced: its commits are rejected."""
    store_pod: str = ""
    """UID of that etcd's pod. Empty: not created yet."""
    template_hash: str = ""
    """Hash of the pod template of this run, by the release of the operator that wrote this status."""
    template_generation: Int64 | None = None
    """Newest metadata.generation with that template."""


class Progress(Model, frozen=True):
    """Progress that the training last reported."""

    step: LongCount = 0
    """Training step reached."""
    steps_per_second: Rate = None
    """Training speed at that step."""
    total_steps: LongCount | None = None
    """Steps of the whole training, if the script reports them."""
    percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Percent of the whole training that is done, if the script reports it, as Hugging Face's Trainer does."""
    remaining_seconds: LongCount | None = None
    """Seconds until the end of the training, as the script estimated when it last reported."""
    last_checkpoint_step: LongCount | None = None
    """Step of the newest complete checkpoint. If all worker pods are lost, training repeats the steps after it."""
    metrics: Metrics = {}  # noqa: RUF012 pydantic copies defaults
    """Other metrics that the script reported, such as loss or accuracy, as strings."""
    updated_at: Time | None = None
    """When the training reported this, by its node's clock."""
    observed_at: Time | None = None
    """When the operator first saw this step, by its own clock."""


class OptimizerSteps(Model, frozen=True):
    """Optimizer steps that the agents have counted, because the script reports no progress."""

    count: LongCount = 0
    """Optimizer steps of rank 0 since its worker process started."""
    backward_passes: LongCount | None = None
    """Backward passes since then, where no step of an optimizer is seen, so that count is 0. Their number says that the
    script trains, not how many steps it takes."""
    per_second: Rate = None
    """Optimizer steps, or backward passes if those are given, per second at that time."""
    updated_at: Time | None = None
    """When they were counted, by the node's clock: often at first, every ten minutes later."""


class GoodputStatus(Model, frozen=True):
    """What the job's time since its creation was spent on, in seconds. Parts that took no second are left out. Written
    with changes of the worker group, and with progress every ten minutes."""

    percent: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Share of the time without suspended that was productive for certain, in percent. Not set: no step is known."""
    productive: LongCount | None = None
    """Trained new steps."""
    repeated: LongCount | None = None
    """Trained steps that had been lost."""
    starting: LongCount | None = None
    """From the agreement on a round until its first step."""
    forming: LongCount | None = None
    """From the cause of a change until the agents had agreed on the next round."""
    waiting: LongCount | None = None
    """Had too few worker pods."""
    hung: LongCount | None = None
    """From the last reported step until a hang was noticed."""
    suspended: LongCount | None = None
    """Was suspended."""
    unknown: LongCount | None = None
    """Nothing was reported."""
    updated_at: Time
    """End of the time that was divided."""


class Failure(Model, frozen=True):
    """The first failure of the newest failed round."""

    round: LongCount | None = None
    """Round of the worker group that failed. Failures within one round count once."""

    worker: Text = ""
    """Name of the worker pod."""
    pod_uid: str = ""
    """UID of the worker pod, if the pod failed as a whole."""
    rank: Int32 | None = None
    """Global rank of the failed worker process, if it had one."""
    exit_code: Int32 | None = None
    """Exit code. Negative: number of the signal that killed the process."""
    reason: str = ""
    """Kind of failure, such as ApplicationError, Signal, OutOfMemory or Evicted."""
    message: FailureMessage = ""
    """What happened: one line, followed by the end of the traceback if there is one."""
    time: Time | None = None
    """When it happened."""

    @property
    def cause(self) -> str:
        """Reason, exit code and the first line of the message, on one line; without a code that the message repeats."""
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        line = self.message.splitlines()[0] if self.message else ""
        line = line.removeprefix(code).removeprefix(": ")
        return self.reason + (f", {code}" if code else "") + (f": {line}" if line else "")


class FailingNode(Model, frozen=True):
    """A node on which worker pods failed recently."""

    name: str
    """Name of the node."""
    failures: Annotated[Int32, Field(ge=1)]
    """Number of failures on the node that are less than an hour apart."""
    last_time: Time
    """When the newest of them happened."""
    check: Annotated[Text, Field(max_length=MAX_CHECK)] | None = None
    """Checks of spec.workers.preflight that the node fails, and what they found, or which rank was slow there."""


class FreeEnds(Model, frozen=True):
    """Worker pods of one index that ended soon after their start and cost no restart."""

    index: Count
    """Index of the worker pods."""
    count: Annotated[Int32, Field(ge=1)]
    """How many in a row. The delay before the next one doubles with each, up to five minutes."""
    last_time: Time
    """When the newest of them ended."""


class ReplicaWorkers(Model, frozen=True):
    """The worker pods of a replica."""

    replica: Count
    """Number of the replica (ELASTICJOB_REPLICA)."""
    workers: Annotated[tuple[Count, ...], Field(max_length=MAX_WORKERS, json_schema_extra=ATOMIC)]
    """Indices of its worker pods, in the order of their ranks."""


class Status(Model, frozen=True):
    """Observed state of the job, written by the operator."""

    observed_generation: Int64 | None = None
    """metadata.generation of the spec that this status was observed for."""
    writes: LongCount = 0
    """How often the operator has written this status. An update that changes it cannot change the spec, so the API
    server need not compare the specs."""
    replicas: Count = 0
    """Worker pods that exist and have not terminated."""
    ready_replicas: Count = 0
    """Worker pods that are ready."""
    selector: str = ""
    """Label selector of the worker pods, for the scale subresource."""
    workers: str = ""
    """Ready and desired worker pods, such as 3/4.

    For printing. Programs should read readyReplicas and desiredReplicas.
    """
    desired_replicas: Count | None = None
    """Worker pods that the operator currently aims for: spec.workers.replicas, rounded down to an allowed size.
    Increases only after scaleUpDelaySeconds."""
    scale_up_time: Time | None = None
    """When desiredReplicas will increase, if delayed by spec.scaling.scaleUpDelaySeconds."""
    world_size: Count = 0
    """Worker processes in the current worker group (WORLD_SIZE). 0: not training."""
    round: Count = 0
    """Rendezvous round of the current worker group, starting at 1. Each restart or resize begins a new round."""
    restarts: Restarts = Restarts()
    """Restarts of the worker group so far."""
    rendezvous: RendezvousStatus | None = None
    """Rendezvous in use."""
    progress: Progress | None = None
    """Progress that the training last reported."""
    optimizer_steps: OptimizerSteps | None = None
    """Steps of a script that reports no progress."""
    last_failure: Failure | None = None
    """First worker process or pod that failed in the newest failure, with the end of its traceback."""
    history: StoredHistory | None = None
    """What happened to the worker group, and its progress over time; kept after the job has ended."""
    goodput: GoodputStatus | None = None
    """What the job's time was spent on."""
    failing_nodes: Annotated[tuple[FailingNode, ...], Field(max_length=32, json_schema_extra=keyed("name"))] | None = (
        None
    )
    """Nodes on which worker pods failed recently; see spec.scheduling.avoidNodesAfter."""
    free_ends: Annotated[tuple[FreeEnds, ...], Field(max_length=32, json_schema_extra=keyed("index"))] | None = None
    """Worker pods that keep ending soon after their start without costing a restart, such as those that a kubelet
    rejects. An hour without such an end, or a pod that trains for five minutes, removes an entry."""
    replica_workers: (
        Annotated[tuple[ReplicaWorkers, ...], Field(max_length=MAX_WORKERS, json_schema_extra=keyed("replica"))] | None
    ) = None
    """With spec.workers.replicaSize, the replicas that the agents have put together; kept when the job ends."""
    conditions: Annotated[tuple[Condition, ...], Field(json_schema_extra=keyed("type"))] = ()
    """Conditions of the job, by type. `kubectl wait --for=condition=Succeeded` works."""
    summary: str = ""
    """Succeeded, Failed, Suspended, Running, Stalled, Degraded, Resizing or Restarting, or why the job is not running,
    such as Unschedulable.

    For printing. Programs should read conditions.
    """
    start_time: Time | None = None
    """When the operator accepted the job, or last resumed it."""
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
