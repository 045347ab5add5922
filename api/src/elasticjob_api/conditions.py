"""Conditions of an ElasticJob: types, reasons, and the message of each reason. Events and logs use the same words."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from elasticjob_api.fields import ConditionMessage, Int64, Model, Time


class ConditionType(enum.StrEnum):
    """Aspects of a job's state, in the order in which a job goes through them."""

    ACCEPTED = "Accepted"
    """The spec is valid and the API server accepts its worker pods."""
    QUEUED = "Queued"
    """The job waits in a queue. Only jobs in a queue have it."""
    RENDEZVOUS_READY = "RendezvousReady"
    """The etcd used for the rendezvous is reachable."""
    RUNNING = "Running"
    """A worker group is training."""
    STALLED = "Stalled"
    """Worker processes are running, but make no progress."""
    RESTARTING = "Restarting"
    """Training has started before, is interrupted now, and will continue."""
    RESIZING = "Resizing"
    """The worker group is changing to a new size."""
    DEGRADED = "Degraded"
    """Training continues with fewer worker pods than requested."""
    STRAGGLERS_FOUND = "StragglersFound"
    """Ranks are slow, so that the others wait for them in each step."""
    NODES_SUSPECTED = "NodesSuspected"
    """Nodes fail the checks of spec.workers.preflight, or made a rank slow that was replaced."""
    SUSPENDED = "Suspended"
    """No pods are left, because spec.suspend is true or the job waits in a queue (condition Queued)."""
    SUCCEEDED = "Succeeded"
    """All worker processes exited successfully. Terminal."""
    FAILED = "Failed"
    """The job failed and is not retried. Terminal."""


class Reason(enum.StrEnum):
    """Why a condition has its status, or what an Event reports."""

    # Accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    POD_REJECTED = "PodRejected"
    """The API server rejects worker pods or the etcd's for a cause outside the template: quota or admission. Also of
    RendezvousReady."""
    ENDPOINT_NOT_ALLOWED = "EndpointNotAllowed"
    """spec.rendezvous.endpoint is not among the endpoints that the operator allows. Also of RendezvousReady."""
    SECRET_NOT_ALLOWED = "SecretNotAllowed"  # noqa: S105 a reason
    """spec.rendezvous.secretName names a Secret of the operator itself. Also of RendezvousReady."""
    GANG_UNAVAILABLE = "GangUnavailable"
    """The cluster has no PodGroups of spec.scheduling.gang.provider."""
    OBJECT_REJECTED = "ObjectRejected"
    """A Service, the etcd, its certificates, the run's user in etcd or the autoscaler of the job cannot be created."""

    # Queued
    NOT_ACCEPTED = "NotAccepted"
    """The API server rejects the worker pods, so no quota is asked for."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_CHECKS = "WaitingForChecks"
    """Quota is reserved, and an admission check is pending."""
    EVICTED = "Evicted"
    """The queue wants the quota of the whole job back."""
    DEACTIVATED = "Deactivated"
    """Someone, or a rejected admission check, has set spec.active of the job's Workload to false."""
    REQUEUED = "Requeued"
    """The job was changed so that it needs another Workload, or someone has marked it as finished."""
    QUEUE_UNAVAILABLE = "QueueUnavailable"
    """Kueue is not installed, or the operator may not watch it."""
    PRIORITY_CLASS_MISSING = "PriorityClassMissing"
    PREBUILT_WORKLOAD_UNUSABLE = "PrebuiltWorkloadUnusable"
    """The Workload that MultiKueue made for the job is missing, or does not fit."""
    WORKLOAD_REJECTED = "WorkloadRejected"
    """The API server, or Kueue's webhook, rejects a Workload of the job."""
    ADMITTED = "Admitted"
    PARTLY_ADMITTED = "PartlyAdmitted"
    """The job trains with fewer worker pods than requested until there is more quota."""
    SURPLUS_EVICTED = "SurplusEvicted"
    """The job gives back worker pods above minReplicas."""
    SURPLUS_WITHDRAWN = "SurplusWithdrawn"
    """Worker pods above minReplicas were admitted, and never got ready."""
    NOT_QUEUED = "NotQueued"

    # RendezvousReady
    ETCD_READY = "EtcdReady"
    ETCD_STARTING = "EtcdStarting"
    ETCD_UNREACHABLE = "EtcdUnreachable"
    ETCD_DENIED = "EtcdDenied"
    ETCD_UNTRUSTED = "EtcdUntrusted"
    """The operator or etcd does not accept the other's certificate."""
    ETCD_CREDENTIALS_UNUSABLE = "EtcdCredentialsUnusable"
    """The Secret with the credentials for etcd is missing or incomplete, or the operator may not read it."""
    NO_ETCD_TIER = "NoEtcdTier"
    """Each etcd tier is full, closed or unreachable, so the run has no etcd yet. Also of Running."""
    ETCD_TIER_REMOVED = "EtcdTierRemoved"
    """The operator no longer knows the etcd tier that the run uses. Also of Running."""
    VALUE_NOT_UNDERSTOOD = "ValueNotUnderstood"
    """etcd is reachable, but a value of the run is invalid."""
    STORE_READY = "StoreReady"
    """With c10d: worker pod 0, which hosts the store, is running."""
    STORE_STARTING = "StoreStarting"
    """With c10d: worker pod 0, which hosts the store, is not running yet."""

    # Running
    TRAINING = "Training"
    WAITING_FOR_RENDEZVOUS = "WaitingForRendezvous"
    WAITING_FOR_ETCD = "WaitingForEtcd"
    """No worker pod is created until etcd has accepted the credentials."""
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    RUNTIME_UNAVAILABLE = "RuntimeUnavailable"
    """The runtime cannot be injected into worker pods (spec.workers.runtime.inject). Also of Accepted."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes a worker pod or the etcd. The message quotes the scheduler."""
    CLAIM_UNBOUND = "ClaimUnbound"
    """A PersistentVolumeClaim of a worker pod or of the etcd has no volume. The message quotes its Events."""
    NAME_IN_USE = "NameInUse"
    """Something that an earlier job of the same name left has a name that the job needs."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """The job's namespace is being deleted, so nothing can be created in it."""
    NODE_SILENT = "NodeSilent"
    """A worker pod or the etcd is on an unreachable node, and spec.rendezvous.onPartition, or a toleration, keeps it
    there."""
    NODES_UNHEALTHY = "NodesUnhealthy"
    """So many nodes are not ready that none of their pods are replaced."""
    OUTCOME_UNKNOWN = "OutcomeUnknown"
    """No worker pod is left of a job that has trained: whether it has ended must be read from etcd first."""
    RENDEZVOUS_LOST = "RendezvousLost"
    """etcd is unreachable and a member of the last round is gone, so no new round can be agreed on."""
    FINISHED = "Finished"

    # Stalled
    HANG = "Hang"
    """An agent is sure that worker processes hang, and does not restart them. Also of failures."""
    NO_PROGRESS = "NoProgress"
    PROGRESSING = "Progressing"

    # Restarting
    WORKER_FAILED = "WorkerFailed"
    WORKER_LOST = "WorkerLost"
    RESUMED = "Resumed"

    # Resizing
    SCALING_UP = "ScalingUp"
    SCALE_UP_DELAYED = "ScaleUpDelayed"
    SCALING_DOWN = "ScalingDown"
    RESIZED = "Resized"

    # Degraded
    WORKERS_MISSING = "WorkersMissing"
    FINISHED_EARLY = "FinishedEarly"
    COMPLETE = "Complete"
    NOT_TRAINING = "NotTraining"
    """Also of Restarting, in a run that has not trained yet."""
    RESIZING = "Resizing"

    # StragglersFound
    RANKS_SLOW = "RanksSlow"
    NO_STRAGGLERS = "NoStragglers"

    # NodesSuspected
    CHECK_FAILED = "CheckFailed"
    NO_SUSPECTS = "NoSuspects"

    # Suspended. While a job is suspended, the other conditions have reason Suspended too; in a queue, that of Queued.
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    JOB_RESUMED = "JobResumed"
    JOB_STARTED = "JobStarted"
    """The job has waited, in a queue or because it was created suspended, and starts its first run."""

    # Succeeded, Failed
    WORKERS_SUCCEEDED = "WorkersSucceeded"
    WORKERS_FAILED = "WorkersFailed"
    """The agents gave up for a cause other than the restart budget."""
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    FAILED_BY_RULE = "FailedByRule"
    SCRIPT_FAILS = "ScriptFails"
    """The script fails in the same way whenever it starts (spec.failurePolicy.beforeFirstStep)."""
    RUNTIME_UNUSABLE = "RuntimeUnusable"
    """The injected runtime cannot run in the image of the worker pods. Also of failures."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    NOT_FINISHED = "NotFinished"

    # Events only
    WORKER_CREATED = "WorkerCreated"
    WORKER_DELETED = "WorkerDeleted"
    ETCD_CREATED = "EtcdCreated"
    CERTIFICATES_DELETED = "CertificatesDeleted"
    """All pods of the job are replaced, by those of a new run: they must have the same certificates."""


REMEDY = " What to do: "
"""Stands between what a message says and the remedy."""

# A time stands in a sentence of its own, without which the message becomes that of the Event.
MESSAGES: dict[Reason, str] = {
    Reason.ACCEPTED: "The job is accepted.{warning}",
    Reason.INVALID_SPEC: "This version of the operator cannot read the spec: {error}",
    Reason.INVALID_POD_TEMPLATE: f"spec.workers.template is invalid: {{error}}{REMEDY}correct it and apply the job "
    "again.",
    Reason.POD_REJECTED: "The API server rejects {object}, retrying: {detail}",
    Reason.ENDPOINT_NOT_ALLOWED: f"spec.rendezvous.endpoint {{endpoint}} is not allowed.{REMEDY}use an allowed "
    "endpoint, choose another type, or ask your cluster administrator to add it to the operator's "
    "rendezvous.allowedEndpoints.",
    Reason.SECRET_NOT_ALLOWED: "spec.rendezvous.secretName {secret} is a Secret of the operator itself, whose content "
    f"it sends to no endpoint that a job names.{REMEDY}use a Secret with credentials of your own.",
    Reason.GANG_UNAVAILABLE: f"The worker pods cannot start as a gang: {{problem}}.{REMEDY}install that scheduler, or "
    "set spec.scheduling.gang.provider to another one, to Auto or to None.",
    Reason.OBJECT_REJECTED: "The API server rejects {object}, retrying: {detail}",
    Reason.NOT_ACCEPTED: "The job asks LocalQueue {queue} for nothing before the API server accepts its worker pods."
    f"{REMEDY}see condition Accepted, which says why it does not.",
    Reason.WAITING_FOR_QUOTA: "Workload {workload} waits in LocalQueue {queue} for quota for {pods}."
    f"{{detail}}{REMEDY}{{remedy}}",
    Reason.WAITING_FOR_CHECKS: "Workload {workload} has quota in LocalQueue {queue} and waits for its admission "
    f"checks.{{detail}}{REMEDY}kubectl describe workloads.kueue.x-k8s.io {{workload}} -n {{namespace}}",
    Reason.EVICTED: "Workload {workload} is evicted from LocalQueue {queue}. The job saves its state, stops, and "
    f"continues from there once it is admitted again.{{detail}}{REMEDY}{{remedy}}",
    Reason.DEACTIVATED: "Workload {workload} is deactivated: its spec.active is false.{detail}"
    f"{REMEDY}to put the job back into queue {{queue}}: kubectl patch workloads.kueue.x-k8s.io {{workload}} -n "
    '{namespace} --type merge -p \'{{"spec":{{"active":true}}}}\'',
    Reason.REQUEUED: "The job needs another Workload: it stops, and waits in LocalQueue {queue} again with a new "
    "Workload {workload} for {pods}.{detail}",
    Reason.QUEUE_UNAVAILABLE: f"LocalQueue {{queue}} cannot be used.{{detail}}{REMEDY}install Kueue 0.15 or newer and "
    "set the chart's queueing.kueue to Auto, or remove the label kueue.x-k8s.io/queue-name from the job.",
    Reason.PRIORITY_CLASS_MISSING: "There is no WorkloadPriorityClass of the name that the job gives:{detail}"
    f"{REMEDY}create it, or correct the label kueue.x-k8s.io/priority-class or "
    "spec.scheduling.queue.surplusPriorityClassName.",
    Reason.PREBUILT_WORKLOAD_UNUSABLE: "The job has the label kueue.x-k8s.io/prebuilt-workload-name, which MultiKueue "
    f"sets, and has no Workload to run by:{{detail}}{REMEDY}nothing, if MultiKueue has just created it; else run the "
    "same version of the operator in all clusters, or remove the label.",
    Reason.WORKLOAD_REJECTED: f"A Workload of the job is rejected, retrying:{{detail}}{REMEDY}follow the message.",
    Reason.ADMITTED: "LocalQueue {queue} has admitted all worker pods of the job: {wanted}.{detail}",
    Reason.PARTLY_ADMITTED: "LocalQueue {queue} has admitted {there} of {wanted} worker pods; the others wait for "
    "quota.{detail}",
    Reason.SURPLUS_EVICTED: "The job gives worker pods back to LocalQueue {queue} and continues with {there} of "
    "{wanted}.{detail}",
    Reason.SURPLUS_WITHDRAWN: "LocalQueue {queue} had admitted more worker pods, but not all of them were ready within "
    f"10 minutes: the job gives their quota back, and continues with {{there}} of {{wanted}}.{{detail}}{REMEDY}see "
    "what kept them from starting: kubectl get events -n {namespace}; or lower spec.workers.replicas.",
    Reason.NOT_QUEUED: "The job is in no queue.",
    Reason.ETCD_READY: "etcd is reachable at {endpoint}.",
    Reason.ETCD_STARTING: "Waiting for the job's etcd at {endpoint} to start.",
    Reason.ETCD_UNREACHABLE: f"etcd is unreachable at {{endpoint}}{{where}}: {{error}}.{REMEDY}{{remedy}}",
    Reason.ETCD_DENIED: "The operator cannot use etcd at {endpoint}: {error}{remedy}",
    Reason.ETCD_UNTRUSTED: "The operator and etcd at {endpoint} do not accept each other's certificates: "
    "{error}{remedy}",
    Reason.ETCD_CREDENTIALS_UNUSABLE: "The credentials for etcd at {endpoint} cannot be used: {error}",
    Reason.NO_ETCD_TIER: "{object} takes no new run: {detail}",
    Reason.ETCD_TIER_REMOVED: "{object} was removed: {detail}",
    Reason.VALUE_NOT_UNDERSTOOD: "etcd at {endpoint} holds an invalid value for this run, which is ignored: {error}",
    Reason.STORE_READY: "Worker pod 0 is running and hosts the c10d store at {endpoint}.",
    Reason.STORE_STARTING: "Waiting for worker pod 0, which hosts the c10d store at {endpoint}.",
    Reason.TRAINING: "Round {round}: {processes} training; {ready} of {wanted} worker pods are ready.",
    Reason.WAITING_FOR_RENDEZVOUS: "{ready} of {wanted} worker pods are ready, but have not completed a rendezvous.",
    Reason.WAITING_FOR_ETCD: "Worker pods are created once etcd at {endpoint} has accepted the job's credentials."
    f"{REMEDY}see condition RendezvousReady, which says why it has not.",
    Reason.WAITING_FOR_WORKERS: "{ready} of {wanted} worker pods are ready; training needs at least {min}.",
    Reason.IMAGE_UNAVAILABLE: "Cannot pull the image of {object}: {detail}",
    Reason.CONTAINER_CONFIG_ERROR: "Cannot start {object}: {detail}",
    Reason.RUNTIME_UNAVAILABLE: "The runtime cannot be injected into {object}: {detail}",
    Reason.UNSCHEDULABLE: "No node takes {object}: {detail}",
    Reason.CLAIM_UNBOUND: "{object} is not bound: {detail}",
    Reason.NAME_IN_USE: "{object} has a name that the job needs: {detail}",
    Reason.NAMESPACE_TERMINATING: "Namespace {namespace} is being deleted, and nothing can be created in it."
    f"{REMEDY}apply the job in another namespace.",
    Reason.NODE_SILENT: "Node {node} is unreachable. With spec.rendezvous.onPartition: Consistent, or a toleration of "
    "that taint, its pods are not replaced until the node is back. Since {since}."
    f"{REMEDY}if the node is certainly shut down, delete it or run: "
    "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    Reason.NODES_UNHEALTHY: "{count} of {total} nodes are not ready. The nodes themselves are probably not at fault, "
    "so their pods are not replaced until most nodes are ready again."
    f"{REMEDY}kubectl get nodes. To replace the pods of a node that is shut down, delete the node or add the taint "
    "node.kubernetes.io/out-of-service.",
    Reason.OUTCOME_UNKNOWN: "No worker pod is left, and the job may have ended. New worker pods are created once etcd "
    f"at {{endpoint}} confirms that it has not.{REMEDY}see why that etcd does not answer: condition RendezvousReady.",
    Reason.RENDEZVOUS_LOST: "{left} of {size} worker pods of round {round} are ready and etcd is unreachable. Training "
    f"continues once etcd is back.{REMEDY}see condition RendezvousReady.",
    Reason.HANG: f"Worker processes hang: {{why}}. Since {{since}}. {{consequence}}{REMEDY}{{remedy}}",
    Reason.NO_PROGRESS: "No step has been reported after step {step}. Since {since}. Saving a checkpoint or "
    f"evaluating may take this long.{REMEDY}otherwise check the logs and stack traces of the worker processes.",
    Reason.PROGRESSING: "Training is not stalled.",
    Reason.FINISHED: "The job has finished.",
    Reason.WORKER_FAILED: "{worker} failed ({detail}); restart {restarts} of at most {max_restarts}.",
    Reason.WORKER_LOST: "Lost {worker} ({detail}); this does not count towards maxRestarts.",
    Reason.RESUMED: "Training resumed in round {round}.",
    Reason.SCALING_UP: "Scaling up to {wanted} worker pods; training: {there}.",
    Reason.SCALE_UP_DELAYED: "Scaling up to {wanted} worker pods is delayed (spec.scaling.scaleUpDelaySeconds). It "
    "begins at {time}.",
    Reason.SCALING_DOWN: "Scaling down to {wanted}; worker pods that have not left: {leaving}, the first of them "
    "{worker}.",
    Reason.RESIZED: "No resize is in progress; {wanted} worker pods are requested.",
    Reason.WORKERS_MISSING: "{there} of {wanted} worker pods are training.",
    Reason.FINISHED_EARLY: "Worker processes of {worker} ended with code 0 while others were training. The others "
    "continue, and the job ends when they end. Let all ranks decide alike when to stop (session.values).",
    Reason.NOT_TRAINING: "The job is not training.",
    Reason.RESIZING: "A resize is in progress; see the Resizing condition.",
    Reason.COMPLETE: "All requested worker pods are training.",
    Reason.RANKS_SLOW: "The others wait in each step for {ranks}. See the guide Find what slows a job down."
    f"{REMEDY}{{remedy}}",
    Reason.NO_STRAGGLERS: "No rank is known to be slow.",
    Reason.CHECK_FAILED: "Nodes fail checks or are slow, and new worker pods avoid them for an hour: {nodes}."
    f"{REMEDY}repair the nodes, or keep all pods away from them: kubectl cordon {{node}}",
    Reason.NO_SUSPECTS: "No node has failed a check within the last hour.",
    Reason.SUSPENDED: "The job is suspended (spec.suspend is true).{queue}",
    Reason.SUSPENDING: "The job is being suspended; worker pods that have not ended: {count}, the first of them "
    "{worker}.",
    Reason.JOB_RESUMED: "The job was resumed with run {run}.",
    Reason.JOB_STARTED: "The job waits no longer, and starts with run {run}.",
    Reason.WORKERS_SUCCEEDED: "All worker processes exited successfully.",
    Reason.WORKERS_FAILED: "The worker pods gave up: {detail}",
    Reason.MAX_RESTARTS_EXCEEDED: "Failed {restarts} times{window}, more than spec.failurePolicy.maxRestarts "
    "({max_restarts}) allows. Last failure: {detail}",
    Reason.FAILED_BY_RULE: "A rule in spec.failurePolicy.rules with action Fail matches the failure of {worker}: "
    "{detail}",
    Reason.SCRIPT_FAILS: "The script fails in the same way whenever it starts, so restarts would not help "
    "(spec.failurePolicy.beforeFirstStep): {detail}",
    Reason.RUNTIME_UNUSABLE: "{worker} cannot run the injected runtime: {detail}",
    Reason.DEADLINE_EXCEEDED: "The job was active longer than spec.lifecycle.activeDeadlineSeconds ({seconds} s).",
    Reason.STARTUP_DEADLINE_EXCEEDED: "Training did not start within spec.lifecycle.startupDeadlineSeconds ({seconds} "
    "s): {detail}",
    Reason.NOT_FINISHED: "The job has not finished.",
    Reason.WORKER_CREATED: "Created {worker}.",
    Reason.WORKER_DELETED: "Deleted {worker}: {detail}",
    Reason.ETCD_CREATED: "Created StatefulSet {name} for the job's etcd.",
    Reason.CERTIFICATES_DELETED: "Secret {secret} was deleted. All worker pods and the job's etcd are replaced, with "
    "new certificates; this does not count towards maxRestarts.",
}


def message(reason: Reason, **values: object) -> str:
    """The message of `reason`. Raises KeyError if a value is missing."""
    return MESSAGES[reason].format(**values)


class ConditionStatus(enum.StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model, frozen=True):
    """One aspect of the job's state (metav1.Condition)."""

    type: Annotated[str, Field(max_length=316)]
    """Accepted, Queued, RendezvousReady, Running, Stalled, Restarting, Resizing, Degraded, StragglersFound,
    NodesSuspected, Suspended, Succeeded or Failed."""
    status: ConditionStatus
    """Whether the condition holds: True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why the condition has this status, as one CamelCase word for programs."""
    message: ConditionMessage = ""
    """Why the condition has this status, as a human-readable message."""
    observed_generation: Int64 | None = None
    """metadata.generation of the spec that the condition was set for."""
    last_transition_time: Time
    """When the condition last changed from one status to another."""


def set_condition(
    conditions: Iterable[Condition],
    *,
    type: ConditionType,  # noqa: A002 the field's own word
    status: bool | None,
    reason: Reason,
    message: str,
    generation: int | None,
    now: datetime.datetime,
) -> tuple[Condition, ...]:
    """A copy of `conditions` with this one replaced or appended. `status`: None means Unknown.

    last_transition_time changes only with the status, so setting the same condition again results in no write.
    """
    conditions = tuple(conditions)
    value = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
    old = next((condition for condition in conditions if condition.type == type), None)
    new = Condition(
        type=type.value,
        status=value,
        reason=reason.value,
        message=message,
        observed_generation=generation,
        last_transition_time=old.last_transition_time if old is not None and old.status == value else now,
    )
    if old is None:
        return (*conditions, new)
    return tuple(new if condition is old else condition for condition in conditions)
