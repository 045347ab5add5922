"""`spec` of an ElasticJob: what its owner wants."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from elasticjob_operator.api import rules, worker_rules
from elasticjob_operator.api.checkpoint import Checkpoint
from elasticjob_operator.api.fields import Int32, Model, Preserved, ProcsPerWorker
from elasticjob_operator.api.rendezvous import Rendezvous
from elasticjob_operator.api.template import POD_TEMPLATE_SCHEMA

MAX_WORKERS = 10_000

Seconds = Annotated[Int32, Field(ge=1)]

WorkerCount = Annotated[Int32, Field(ge=1, le=MAX_WORKERS)]

PodTemplate = Annotated[dict[str, Any], WithJsonSchema(POD_TEMPLATE_SCHEMA)]
"""A core/v1 PodTemplateSpec, kept as written. Shared with whoever parsed it: copy before changing."""


class CleanPods(str, enum.Enum):
    """Which worker pods are deleted when the job has ended."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"

    __str__ = str.__str__


class Workers(Model, frozen=True, json_schema_extra=worker_rules.WORKERS):
    """The worker pods: how many, and what each runs."""

    replicas: WorkerCount = 1
    """Worker pods wanted now, from minReplicas to maxReplicas.

    kubectl scale and a HorizontalPodAutoscaler change this field.
    """
    min_replicas: WorkerCount | None = None
    """Training goes on while at least this many workers are there. Default: replicas, a job of fixed size."""
    max_replicas: WorkerCount | None = None
    """Most workers the job may be scaled to. Default: replicas, a job of fixed size."""
    allowed_replicas: (
        Annotated[
            tuple[WorkerCount, ...],
            Field(min_length=1, max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}),
        ]
        | None
    ) = None
    """Sizes with which the training may run, such as [2, 4, 8]. Left out: all from minReplicas to maxReplicas.

    A wanted number in between is rounded down, and workers beyond such a size wait as spares.
    """
    replica_step: Annotated[Int32, Field(ge=1, le=MAX_WORKERS)] | None = None
    """Allows the multiples of this number only, as allowedReplicas does for a list. Instead of allowedReplicas."""
    procs_per_worker: Annotated[ProcsPerWorker, Field(json_schema_extra=worker_rules.PROCS_PER_WORKER)] = "auto"
    """Training processes in each worker pod, as torchrun's --nproc-per-node. Changed only while suspended.

    A number; cpu: one for each CPU; gpu: one for each GPU; auto: gpu where there are any, else cpu.
    """
    template: PodTemplate
    """Pod template of the workers (core/v1 PodTemplateSpec). Changed only while suspended.

    The operator adds the job's environment to the training container, and sets restartPolicy to Never: it replaces
    failed workers itself.
    """
    container: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Name of the container that trains. Default: the first container of the template. Changed only while suspended.

    Only this container gets the job's environment variables.
    """


class RuleAction(str, enum.Enum):
    """What a failure that a rule matches does."""

    RESTART = "Restart"
    IGNORE = "Ignore"
    FAIL = "Fail"

    __str__ = str.__str__


class RestartRule(Model, frozen=True, json_schema_extra=rules.RESTART_RULE):
    """What becomes of failures of a kind. A failure must match both lists, where both are given."""

    exit_codes: Annotated[
        tuple[Annotated[Int32, Field(ge=1, le=255)], ...],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = ()
    """Exit codes of the process or container. 128 + n: ended by signal n."""
    reasons: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=64, json_schema_extra=rules.RESTART_REASON)], ...],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = ()
    """Kinds of failure as status.lastFailure.reason names them: ApplicationError, Signal, OutOfMemory, Evicted ..."""
    action: RuleAction
    """Restart: counts as a restart. Ignore: restarted too, and free. Fail: the job fails at once."""


class Backoff(Model, frozen=True, json_schema_extra=rules.BACKOFF):
    """Waits before a worker pod that fails again and again right after its start is replaced."""

    initial_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 1
    """First wait, s; each further failure doubles it."""
    max_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 300
    """Longest wait, s."""


class RestartPolicy(Model, frozen=True, json_schema_extra=rules.RESTART_POLICY):
    """What failures the job survives."""

    max_restarts: Annotated[Int32, Field(ge=0, le=1_000_000)] = 10
    """Restarts of the worker group because of failures, over the job's whole life, before the job fails.

    Lost nodes, preempted and deleted pods and changes of size are free.
    """
    window_seconds: Seconds | None = None
    """Only restarts of the last so many seconds count towards maxRestarts. Left out: all do."""
    rules: Annotated[
        tuple[RestartRule, ...], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    """What certain failures do; the first rule that matches a failure decides.

    Without a match, failures of the training count, and what the cluster did (eviction, preemption, a lost node) is
    free.
    """
    backoff: Backoff = Backoff()
    """Waits before a worker pod that fails again and again right after its start is replaced."""


class Lifecycle(Model, frozen=True, json_schema_extra=rules.LIFECYCLE):
    """When the job runs, and how it ends."""

    suspend: bool = False
    """Whether the job rests: all its pods and its etcd go, its status stays.

    Set back to false, the job starts a new run, which goes on from the last checkpoint. While suspended, the template
    and checkpoint may be changed.
    """
    active_deadline_seconds: Seconds | None = None
    """Longest time from status.startTime to the end, s. Then the job fails. Left out: none.

    Begins anew when a suspended job is resumed.
    """
    startup_deadline_seconds: Seconds | None = None
    """Longest time from status.startTime until training begins, s. Then the job fails. Left out: none.

    Frees the workers of a job of which others cannot be scheduled or started.
    """
    ttl_seconds_after_finished: Annotated[Int32, Field(ge=0)] | None = None
    """The job is deleted, with its pods, this long after it ended, s. Left out: never."""
    graceful_shutdown_seconds: Annotated[Int32, Field(ge=0, le=86_400)] | None = None
    """Time that workers get from SIGTERM to save their state when their pod leaves, s.

    The pod's terminationGracePeriodSeconds is raised to 5 s more. Left out: the template's
    terminationGracePeriodSeconds (30) less 5 s. For pods that are made from then on.
    """
    clean_pods: CleanPods = CleanPods.RUNNING
    """Worker pods that are deleted when the job has ended: Running, All or None.

    Running: those that still run; the others stay, with their logs. None: none, but for those that still run when the
    job fails.
    """
    managed_by: Annotated[str, Field(max_length=63, json_schema_extra=rules.MANAGED_BY)] = ""
    """The same as spec.managedBy. Cannot be changed."""


class Scaling(Model, frozen=True):
    """How the number of workers changes by itself."""

    scale_up_delay_seconds: Annotated[Int32, Field(ge=0, le=86_400)] = 0
    """Time from a wish for more workers until they are created, s. Wishes that come meanwhile are met at the same
    moment.

    Each change of size interrupts the training for a moment: this makes one of many. Lost workers are replaced, and
    fewer workers let go, without delay.
    """
    metrics: Annotated[
        tuple[Preserved, ...], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    """What a HorizontalPodAutoscaler of the job follows (autoscaling/v2 MetricSpec). Empty: there is none.

    The operator makes it, from minReplicas to maxReplicas. It changes workers.replicas: leave that out of what you
    apply again.
    """
    behavior: Preserved | None = None
    """How fast that HorizontalPodAutoscaler changes the size (autoscaling/v2 HorizontalPodAutoscalerBehavior). Unused
    without metrics."""


class Scheduling(Model, frozen=True):
    """How the workers get their nodes."""

    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the worker pods. Empty: the template's. Changed only while suspended."""
    avoid_nodes_after: Annotated[Int32, Field(ge=0, le=1000)] = 3
    """Failures of workers on one node within an hour from which on new workers rather go to other nodes. 0: never.

    A preference, not a demand: where only such nodes are left, they are taken.
    """


class Spec(Model, frozen=True, json_schema_extra=rules.SPEC):
    """What the job's owner wants."""

    workers: Workers
    """The worker pods: how many, and what each runs."""
    rendezvous: Rendezvous = Rendezvous()
    """How the workers find each other and agree who takes part. Cannot be changed."""
    checkpoint: Checkpoint | None = None
    """Where the training keeps its checkpoints. Left out: the script knows itself. Changed only while suspended."""
    restart_policy: RestartPolicy = RestartPolicy()
    """What failures the job survives."""
    scaling: Scaling = Scaling()
    """How the number of workers changes by itself."""
    scheduling: Scheduling = Scheduling()
    """How the workers get their nodes."""
    lifecycle: Lifecycle = Lifecycle()
    """When the job runs, and how it ends."""
    managed_by: Annotated[str, Field(max_length=63, json_schema_extra=rules.MANAGED_BY)] = ""
    """Controller that reconciles this job, such as kueue.x-k8s.io/multikueue. Cannot be changed.

    Empty or elasticjob.dev/operator: this operator. Any other: this operator leaves the job alone.
    """
