"""`spec` of an ElasticJob: the desired state."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from elasticjob_runtime.contract import MAX_REPLICA_SIZE
from pydantic import AfterValidator, Field, WithJsonSchema

from elasticjob_api.checkpoint import Checkpoint
from elasticjob_api.crd import validation, worker_validation
from elasticjob_api.fields import ATOMIC, SET, Count, Int32, Model, Preserved, ProcsPerWorker
from elasticjob_api.rendezvous import Rendezvous
from elasticjob_api.template import POD_TEMPLATE_SCHEMA, check_types

MAX_WORKERS = 10_000
MAX_SIZES = 256
"""Most sizes that a job can list."""

Seconds = Annotated[Int32, Field(ge=1)]

WorkerCount = Annotated[Int32, Field(ge=1, le=MAX_WORKERS)]
ReplicaSize = Annotated[Int32, Field(ge=1, le=MAX_REPLICA_SIZE)]

PodTemplate = Annotated[dict[str, Any], AfterValidator(check_types), WithJsonSchema(POD_TEMPLATE_SCHEMA)]
"""A core/v1 PodTemplateSpec, preserved as written. Copies of the spec share it: deep-copy it before changing it."""


class CleanPods(enum.StrEnum):
    """Which worker pods are deleted when the job has finished."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class Inject(enum.StrEnum):
    """How the runtime gets into the worker pods."""

    AUTO = "Auto"
    IMAGE_VOLUME = "ImageVolume"
    INIT_CONTAINER = "InitContainer"
    NONE = "None"


class Runtime(Model, frozen=True):
    """The ElasticJob runtime (elasticrun) in the worker pods."""

    inject: Inject = Inject.AUTO
    """How the runtime gets into the training container. Can be changed only before training or while suspended.

    Auto uses an image volume if every node can mount one, otherwise an init container. None leaves the container as it
    is: its image must contain the runtime. All others need the container's command, and then work with any image that
    has Python 3.10 or newer and torch; a runtime in the image takes precedence.
    """


class PreflightCheck(enum.StrEnum):
    """Checks of a machine that agents know."""

    BASIC = "Basic"
    NETWORK = "Network"


class Preflight(Model, frozen=True):
    """Checks of its machine that each agent runs before it joins."""

    checks: Annotated[tuple[PreflightCheck, ...], Field(max_length=8, json_schema_extra=SET)] = ()
    """Checks that agents know. Basic: GPUs and their health, free memory, the speed of the CPU and the way to etcd.
    Network: how fast data goes to and from other worker pods."""
    command: Annotated[
        tuple[Annotated[str, Field(max_length=4096)], ...], Field(max_length=64, json_schema_extra=ATOMIC)
    ] = ()
    """A check of your own, which runs in the training container without a shell. The machine passes if it exits with
    code 0. Say what is wrong in the last line of its output."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=3600)] = 60
    """Seconds after which the command is killed, which is a failure."""


class Workers(Model, frozen=True, json_schema_extra=worker_validation.WORKERS):
    """The worker pods: how many to run, and their template."""

    replicas: WorkerCount = 1
    """Desired number of worker pods, between minReplicas and maxReplicas. If you do not set it: minReplicas, or 1.

    Changed by kubectl scale and by a HorizontalPodAutoscaler.
    """
    min_replicas: WorkerCount | None = None
    """Training continues while at least this many worker pods are ready. Default: replicas (a fixed size)."""
    max_replicas: WorkerCount | None = None
    """Largest number of worker pods the job can be scaled to. Default: replicas, which gives a fixed size."""
    allowed_replicas: (
        Annotated[tuple[WorkerCount, ...], Field(min_length=1, max_length=MAX_SIZES, json_schema_extra=SET)] | None
    ) = None
    """Numbers of worker pods that training can run with, such as [2, 4, 8]. Default: minReplicas to maxReplicas.

    A number in between is rounded down. Worker pods beyond an allowed size wait as spares.
    """
    replica_size: ReplicaSize | None = None
    """Number of worker pods whose worker processes hold one copy of a sharded model, as one replica. Default: all
    worker processes are one world.

    Replicas join, leave and restart as a whole, so all other numbers of worker pods are multiples of it. RANK and
    WORLD_SIZE are those of the replica, and ELASTICJOB_REPLICA is its number. Needs elasticrun, and an ElasticSession
    in the script. Can be changed only before training or while suspended.
    """
    procs_per_worker: Annotated[ProcsPerWorker, Field(json_schema_extra=worker_validation.PROCS_PER_WORKER)] = "auto"
    """Worker processes in each worker pod, like torchrun's --nproc-per-node.

    Can be changed only before training or while suspended.
    A number, cpu (one for each CPU), gpu (one for each GPU) or auto (gpu if the pod has any, otherwise cpu).
    """
    template: PodTemplate
    """Template of the worker pods (core/v1 PodTemplateSpec). Can be changed only before training or while suspended.

    The operator adds the job's environment variables to the training container and sets restartPolicy to Never,
    because it replaces failed worker pods itself.
    """
    container: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the training container. Default: the template's first container.

    Only this container gets the job's environment variables. Can be changed only before training or while suspended.
    """
    runtime: Runtime = Runtime()
    """The ElasticJob runtime (elasticrun) in the worker pods."""
    preflight: Preflight | None = None
    """Checks of its machine before a worker pod joins. Default: none. Can be changed only before training or while
    suspended.

    A worker pod whose machine fails one is replaced elsewhere, which does not count towards maxRestarts. A check that
    more than half of the nodes fail is ignored. Needs elasticrun.
    """


class RuleAction(enum.StrEnum):
    """What happens when a rule matches a failure."""

    RESTART = "Restart"
    IGNORE = "Ignore"
    FAIL = "Fail"


class FailureRule(Model, frozen=True, json_schema_extra=validation.FAILURE_RULE):
    """How to handle failures of a kind. If both lists are set, a failure must match both."""

    exit_codes: Annotated[
        tuple[Annotated[Int32, Field(ge=1, le=255)], ...], Field(max_length=64, json_schema_extra=SET)
    ] = ()
    """Exit codes of the worker process or the container. 128 + n means killed by signal n."""
    reasons: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=64, json_schema_extra=validation.FAILURE_REASON)], ...],
        Field(max_length=64, json_schema_extra=SET),
    ] = ()
    """Failure reasons as in status.lastFailure.reason, such as ApplicationError, Signal, OutOfMemory or Evicted."""
    action: RuleAction
    """Restart counts the restart towards maxRestarts, Ignore restarts without counting, Fail fails the job."""


class Backoff(Model, frozen=True, json_schema_extra=validation.BACKOFF):
    """Delay before replacing a worker pod that repeatedly fails right after it starts."""

    initial_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 1
    """First delay in seconds; doubled with each further failure."""
    max_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 300
    """Longest delay in seconds."""


class BeforeFirstStep(enum.StrEnum):
    """What happens if a script fails twice in the same way, or does not exist, before the job's first step."""

    FAIL = "Fail"
    RESTART = "Restart"


class HangAction(enum.StrEnum):
    """What happens if worker processes hang."""

    RESTART = "Restart"
    REPORT = "Report"


class StragglerAction(enum.StrEnum):
    """What happens if the others wait for a slow rank in each step."""

    REPORT = "Report"
    REPLACE = "Replace"


class HangPolicy(Model, frozen=True):
    """When worker processes that take no step are looked at, and what happens then."""

    action: HangAction = HangAction.RESTART
    """Restart: they restart, as after a failure, if one that does nothing keeps the others waiting, or after 30
    minutes. Report: the condition Stalled says what hangs, and nothing restarts."""
    factor: Annotated[Int32, Field(ge=1, le=100_000)] | None = None
    """Agents look at worker processes that take no step for this many times the median. Default: --hang-factor, which
    is 20."""
    min_seconds: Annotated[Int32, Field(ge=1, le=86_400)] | None = None
    """... and for this many seconds. Default: 60."""


class FailurePolicy(Model, frozen=True, json_schema_extra=validation.FAILURE_POLICY):
    """Which failures restart the worker group, and how often, before the job fails."""

    max_restarts: Annotated[Int32, Field(ge=0, le=1_000_000)] = 10
    """Number of failures that restart the worker group, over the job's lifetime, before the job fails.

    Lost nodes, preempted or deleted pods and resizes do not count.
    """
    window_seconds: Seconds | None = None
    """Only restarts within the last windowSeconds count towards maxRestarts. Default: all restarts count."""
    before_first_step: BeforeFirstStep = BeforeFirstStep.FAIL
    """What happens if the script raises the same exception on the same line twice before the job has trained.

    Fail ends the job with reason ScriptFails, because a restart would not help. Restart handles it like any other
    failure. The job has trained once a step or a checkpoint was reported, or once a worker group ran for a minute.
    Errors that are known to be of the network, storage or peers do not count. Lost nodes, evictions and processes
    killed for lack of memory never do.
    """
    rules: Annotated[tuple[FailureRule, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """How to handle certain failures; the first matching rule applies.

    If no rule matches, failures of the training count towards maxRestarts, and disruptions by the cluster (eviction,
    preemption, a lost node) do not.
    """
    backoff: Backoff = Backoff()
    """Delay before replacing a worker pod that repeatedly fails right after it starts."""
    hang: HangPolicy = HangPolicy()
    """Worker processes that hang."""
    stragglers: StragglerAction = StragglerAction.REPORT
    """Ranks that are slow, so that the others wait for them in each step.

    Report names them in the condition StragglersFound. Replace also replaces the worker pod of one whose machine has
    another sign of being slow, elsewhere if possible: one at a time, 10 minutes apart, and only while all worker pods
    train and minReplicas of them are left.
    """


class Lifecycle(Model, frozen=True, json_schema_extra=validation.LIFECYCLE):
    """Deadlines, how worker pods end, and what happens when the job has finished."""

    active_deadline_seconds: Seconds | None = None
    """Seconds after status.startTime after which an unfinished job fails. Default: no deadline.

    Starts again when a suspended job is resumed.
    """
    startup_deadline_seconds: Seconds | None = None
    """Seconds after status.startTime after which the job fails if training has not started. Default: no deadline.

    Frees the running worker pods of a job whose other worker pods cannot be scheduled or started.
    """
    ttl_seconds_after_finished: Count | None = None
    """Seconds after the job finished after which it is deleted, with its pods. Default: never."""
    graceful_shutdown_seconds: Annotated[Int32, Field(ge=0, le=86_400)] | None = None
    """Seconds from SIGTERM to SIGKILL in which worker processes can save their state when their pod terminates.

    The pod's terminationGracePeriodSeconds is raised to at least 5 s more. Default: the template's
    terminationGracePeriodSeconds (30) minus 5 s. A change applies to new pods.
    """
    clean_pods: CleanPods = CleanPods.RUNNING
    """Worker pods to delete when the job has finished: Running, All or None.

    Running deletes those that are still running and keeps the others, with their logs. None keeps all, except those
    that are still running when the job fails.
    """


class Scaling(Model, frozen=True):
    """How the number of worker pods is scaled."""

    scale_up_delay_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 0
    """Seconds between a request for more worker pods and their creation; requests in between are handled together.

    Each resize interrupts the training for a moment, and a delay combines several into one. Replacing lost worker
    pods and scaling down are never delayed.
    """
    metrics: Annotated[tuple[Preserved, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = ()
    """Metrics for a HorizontalPodAutoscaler of the job (autoscaling/v2 MetricSpec). Empty: no autoscaler.

    The operator creates it with minReplicas and maxReplicas. It changes workers.replicas, so omit that field from
    manifests you apply again.
    """
    behavior: Preserved | None = None
    """Scaling behavior of that HorizontalPodAutoscaler (autoscaling/v2 HorizontalPodAutoscalerBehavior). Unused without
    metrics."""


class GangProvider(enum.StrEnum):
    """The scheduler that starts worker pods together."""

    AUTO = "Auto"
    NATIVE = "Native"
    VOLCANO = "Volcano"
    COSCHEDULING = "Coscheduling"
    NONE = "None"


class Gang(Model, frozen=True):
    """Starts minReplicas worker pods together or not at all, so that two jobs cannot each hold half of the nodes."""

    provider: GangProvider = GangProvider.AUTO
    """Native (Kubernetes' scheduler with the gate GangScheduling), Volcano, Coscheduling (scheduler-plugins) or None.

    Auto takes the first of these whose PodGroups the API server serves, and none if it serves none.
    """


class Queue(Model, frozen=True):
    """How a job in a queue of Kueue (label kueue.x-k8s.io/queue-name) grows beyond minReplicas."""

    step: Annotated[Int32, Field(ge=1, le=MAX_WORKERS)] = 1
    """Number of worker pods to ask for, and to give back, at a time. Default: 1."""
    surplus_priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """WorkloadPriorityClass of the worker pods above minReplicas. Empty: one lower than the job's priority."""


class Scheduling(Model, frozen=True):
    """How worker pods are scheduled."""

    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the worker pods. Empty: the template's.

    Can be changed only before training or while suspended.
    """
    avoid_nodes_after: Annotated[Int32, Field(ge=0, le=1000)] = 3
    """Number of failures on one node within an hour after which new worker pods prefer other nodes. 0: never.

    This is a preference: if no other node fits, the node is used.
    """
    gang: Gang | None = None
    """Starts minReplicas worker pods together or not at all. Default: they are scheduled one by one.

    Applies to new worker pods.
    """
    queue: Queue = Queue()
    """How a job in a queue of Kueue (label kueue.x-k8s.io/queue-name) grows beyond minReplicas."""


class Spec(Model, frozen=True, json_schema_extra=validation.SPEC):
    """Desired state of the job."""

    workers: Workers
    """The worker pods: how many to run, and their template."""
    rendezvous: Rendezvous = Rendezvous()
    """How the worker pods find each other and agree on the members of a round.

    Can be changed only while suspended, except onPartition.
    """
    checkpoint: Checkpoint | None = None
    """Where the training keeps its checkpoints. Default: up to the script.

    Can be changed only before training or while suspended.
    """
    failure_policy: FailurePolicy = FailurePolicy()
    """Which failures restart the worker group, and how often, before the job fails."""
    scaling: Scaling = Scaling()
    """How the number of worker pods is scaled."""
    scheduling: Scheduling = Scheduling()
    """How worker pods are scheduled."""
    suspend: bool = False
    """Whether the job is suspended: all its pods and its etcd are deleted, its status is kept.

    When set back to false, the job starts a new run, which continues from the last checkpoint. The template and
    checkpoint can be changed while the job is suspended.
    """
    lifecycle: Lifecycle = Lifecycle()
    """Deadlines, how worker pods end, and what happens when the job has finished."""
    managed_by: Annotated[str, Field(max_length=63, json_schema_extra=validation.MANAGED_BY)] = ""
    """Controller that manages this job, such as kueue.x-k8s.io/multikueue. Immutable.

    Empty or elasticjob.dev/operator: this operator. The operator ignores jobs with any other value, but for the
    Workload of a job that MultiKueue sends to another cluster.
    """
